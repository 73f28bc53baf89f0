"""Products of few rows with columns that lie together, on each instruction set: short and long sums, added up alike."""

from __future__ import annotations

import pytest

from tests.support import left_to_nightly, python_on

COMPARED = """
import numpy as np
import dataflow as df

random = np.random.default_rng(0)

def product(x, w, bias, high=False):
    g = df.GraphBuilder()
    columns = df.ops.transpose(g.input("w", df.float32, w.shape), perm=(1, 0))
    y = df.ops.add(df.ops.matmul(g.input("x", df.float32, x.shape), columns), g.input("b", df.float32, bias.shape))
    g.output("y", df.ops.relu(y) if high else y)
    return df.Session(df.Model(g.build()), ["cpu"], threads=1).run({"x": x, "w": w, "b": bias})["y"]

for m in (1, 3, 4):
    for k in (1, 7, 16, 36, 128, 129):
        for n in (3, 16, 37):
            x, w = random.standard_normal((m, k)).astype(np.float32), random.standard_normal((n, k)).astype(np.float32)
            bias = random.standard_normal(n).astype(np.float32)
            if k > 1:
                w[n // 2, 0] = np.nan
            y = product(x, w, bias)
            exact = x.astype(np.float64) @ w.T.astype(np.float64) + bias
            np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(product(x, w, bias, high=True), np.maximum(y, 0))
            for j in (0, n - 2, n - 1):  # by itself a column is added up in the same order
                np.testing.assert_array_equal(product(x, w[j : j + 1], bias[j : j + 1]), y[:, j : j + 1])
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_columns_have_the_bits_that_they_have_alone(isa):
    left_to_nightly(isa)
    python_on(isa, "-c", COMPARED)
