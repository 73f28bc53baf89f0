"""Products of few rows on each instruction set: columns have the bits that they have alone, whoever adds them up."""

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


SHARED = """
import ml_dtypes
import numpy as np
import dataflow as df

random = np.random.default_rng(0)
dtypes = [(df.float32, np.float32), (df.float16, np.float16), (df.bfloat16, ml_dtypes.bfloat16)]

def product(x, w, bias, threads, high=False):
    g = df.GraphBuilder()
    dtype = next(ours for ours, theirs in dtypes if w.dtype == theirs)
    y = df.ops.matmul(g.input("x", df.float32, x.shape), df.ops.cast(g.input("w", dtype, w.shape), to=df.float32))
    y = df.ops.add(y, g.input("b", df.float32, bias.shape))
    g.output("y", df.ops.relu(y) if high else y)
    return df.Session(df.Model(g.build()), ["cpu"], threads=threads).run({"x": x, "w": w, "b": bias})["y"]

# blocks of 256 steps that threads share, some columns of them or all; the last steps and columns are fewer
shapes = [(1, 768, 256), (2, 513, 300), (3, 257, 515), (4, 1030, 133), (1, 300, 5000)]
for (m, k, n), (_, dtype) in [*((s, dtypes[0]) for s in shapes), *((shapes[1], d) for d in dtypes[1:])]:
    x = random.standard_normal((m, k)).astype(np.float32)
    w = random.standard_normal((k, n)).astype(dtype)
    bias = random.standard_normal(n).astype(np.float32)
    y = product(x, w, bias, 1)
    np.testing.assert_allclose(y, x.astype(np.float64) @ w.astype(np.float64) + bias, rtol=1e-5, atol=1e-4)
    np.testing.assert_array_equal(product(x, w, bias, 2, high=True), np.maximum(y, 0))
    for threads in (2, 7):
        np.testing.assert_array_equal(product(x, w, bias, threads), y)
    for j in (0, n - 40):  # few columns are added up by one thread, block after block
        some = np.ascontiguousarray(w[:, j : j + 40])
        np.testing.assert_array_equal(product(x, some, bias[j : j + 40], 1), y[:, j : j + 40])
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_threads_that_share_a_sum_give_the_bits_of_one(isa):
    left_to_nightly(isa)
    python_on(isa, "-c", SHARED)


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_columns_have_the_bits_that_they_have_alone(isa):
    left_to_nightly(isa)
    python_on(isa, "-c", COMPARED)
