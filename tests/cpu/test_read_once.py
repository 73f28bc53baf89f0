"""Products whose rows fill at most one tile read the other operand as it lies, on each instruction set."""

from __future__ import annotations

import pytest

from tests.support import left_to_nightly, python_on

COMPARED = """
import numpy as np
import dataflow as df

random = np.random.default_rng(0)

for m in range(2, 17):
    for k, n in ((1, 40), (15, 32), (16, 97), (50, 64), (400, 33), (33, 7)):
        x = random.standard_normal((m, k)).astype(np.float32)
        wide = random.standard_normal((k, n + 5)).astype(np.float32)
        bias = random.standard_normal(n).astype(np.float32)
        g = df.GraphBuilder()
        w = df.ops.slice(g.input("w", df.float32, wide.shape), starts=(0, 2), stops=(k, n + 2), steps=(1, 1))
        y = df.ops.matmul(g.input("x", df.float32, x.shape), w)
        g.output("y", df.ops.relu(df.ops.add(y, g.input("b", df.float32, bias.shape))))
        model = df.Model(g.build())
        exact = np.maximum(x.astype(np.float64) @ wide[:, 2 : n + 2].astype(np.float64) + bias, 0)
        for threads in (1, 3):
            y = df.Session(model, ["cpu"], threads=threads).run({"x": x, "w": wide, "b": bias})["y"]
            np.testing.assert_allclose(y, exact, rtol=1e-5, atol=2e-5)
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_products_of_few_rows_are_those_of_float64(isa):
    left_to_nightly(isa)
    python_on(isa, "-c", COMPARED)


SAME = """
import numpy as np
import dataflow as df

random = np.random.default_rng(0)
for k, n in ((50, 97), (769, 353), (17, 16000)):
    x, w = random.standard_normal((30, k)).astype(np.float32), random.standard_normal((k, n)).astype(np.float32)
    bias = random.standard_normal(n).astype(np.float32)
    wide = w, bias

    def product(rows, constant=False, transposed=False, threads=2):
        g = df.GraphBuilder()
        right, feeds = np.ascontiguousarray(w.T) if transposed else w, {"x": x[:rows], "b": bias}
        if not constant:
            feeds["w"] = right
        b = g.parameter("w", right) if constant else g.input("w", df.float32, right.shape)
        y = df.ops.matmul(g.input("x", df.float32, (rows, k)), df.ops.transpose(b, perm=(1, 0)) if transposed else b)
        g.output("y", df.ops.add(y, g.input("b", df.float32, bias.shape)))
        return df.Session(df.Model(g.build()), ["cpu"], threads=threads).run(feeds)["y"]

    packed = product(30)
    for rows in range(5, 17):
        np.testing.assert_array_equal(product(rows), packed[:rows])
    for rows in (5, 8, 15, 29, 30):
        for transposed in (False, True):
            for threads in (1, 3):
                np.testing.assert_array_equal(product(rows, True, transposed, threads), packed[:rows])
    for rows in (5, 30):  # few columns: panels of one vector, panels of a that pass over them
        narrow = w[:, :20].copy(), bias[:20].copy()
        for columns in (1, 7, 20):
            w, bias = narrow[0][:, :columns].copy(), narrow[1][:columns].copy()
            np.testing.assert_array_equal(product(rows, True, True), product(rows))
            np.testing.assert_array_equal(product(rows, True), product(rows))
        w, bias = wide
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_a_row_has_the_same_bits_however_many_there_are(isa):
    """Of a large operand some rows are read at a time; sums go on in the order in which they began."""
    left_to_nightly(isa)
    python_on(isa, "-c", SAME)
