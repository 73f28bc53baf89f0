"""The largest and smallest elements with their indices: by a heap, by sorted keys, and by those that a digit leaves."""

import numpy as np
import pytest

import dataflow as df
from tests.support import again_on

SPECIAL = [np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45, 3.4e38, -3.4e38]


def elements(random, dtype, shape, near):
    """With many equal ones; of floats some are no numbers, and integers that are ``near`` differ by less than 2^32."""
    if np.dtype(dtype).kind != "f":
        info = np.iinfo(dtype)
        least, most = (max(info.min, -(2**31)), min(info.max, 2**31 - 1)) if near else (info.min, info.max)
        few = random.integers(-3 if info.min else 0, 4, shape)
        return np.where(random.random(shape) < 0.5, few, random.integers(least, most, shape)).astype(dtype)
    x = random.standard_normal(shape).astype(dtype)
    x = np.where(random.random(shape) < 0.3, np.rint(x), x)
    return np.where(random.random(shape) < 0.05, random.choice(SPECIAL, shape), x).astype(dtype)


def indices(x, k, axis, largest):
    """NaN is the largest, and of equal elements the first comes first."""
    none = np.isnan(x) if x.dtype.kind == "f" else np.zeros(x.shape, bool)
    rank = np.unique(np.where(none, 0, x), return_inverse=True)[1].reshape(x.shape)  # zeros are equal
    rank = np.where(none, x.size, rank)
    return np.take(np.argsort(-rank if largest else rank, axis=axis, kind="stable"), range(k), axis=axis)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.uint8, np.int16, np.int32, np.int64])
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(
    ("shape", "axis", "ks"),
    [
        ((7, 9), 1, (1, 4, 9)),
        ((64, 5), 0, (2, 16, 64)),
        ((3, 511), 1, (3, 60, 511)),
        ((4, 1500), 1, (1, 5, 40, 200, 1499, 1500)),
        ((700, 3), 0, (2, 100, 700)),
        ((2, 513, 2), 1, (17, 513)),
    ],
)
def test_order(dtype, largest, shape, axis, ks):
    g = df.GraphBuilder()
    value = g.input("x", dtype, shape)
    for k in ks:
        found, at = g.add(df.ops.topk, (value,), {"k": k, "axis": axis, "largest": largest}).outputs
        g.output(f"values {k}", found)
        g.output(f"indices {k}", at)
    model = df.Model(g.build())
    for threads in (1, 2):
        x = elements(np.random.default_rng(shape[axis]), dtype, shape, near=threads == 2)
        found = df.Session(model, devices=["cpu"], threads=threads).run(x)
        for k in ks:
            expected = indices(x, k, axis, largest)
            np.testing.assert_array_equal(found[f"indices {k}"], expected)
            np.testing.assert_array_equal(found[f"values {k}"], np.take_along_axis(x, expected, axis))


@pytest.mark.parametrize("constant", [0.0, -1.5, np.nan, np.inf])
def test_equal_elements_keep_their_order(constant):
    """All digits are the same, or the first one leaves all."""
    x = np.full((2, 1200), constant, np.float32)
    for k in (30, 600, 1200):
        g = df.GraphBuilder()
        values, at = g.add(df.ops.topk, (g.input("x", df.float32, x.shape),), {"k": k, "axis": 1}).outputs
        g.output("values", values)
        g.output("indices", at)
        found = df.Session(g.build(), devices=["cpu"]).run(x)
        np.testing.assert_array_equal(found["indices"], np.tile(np.arange(k), (2, 1)))
        np.testing.assert_array_equal(found["values"], x[:, :k])


@pytest.mark.parametrize("isa", ["avx512", "portable"])
def test_other_instruction_sets(isa):
    again_on(isa, __file__, but="other_instruction_sets")
