"""Exponentials of numbers below zero, as sigmoid and softmax have them: denormal results, infinities and NaN."""

from __future__ import annotations

import pytest

from tests.support import left_to_nightly, python_on

COMPARED = """
import numpy as np
import dataflow as df

bits = np.linspace(0x00000000, 0x7F800000, 200_001).astype(np.uint32)  # from 0 to infinity
x = np.concatenate([bits.view(np.float32), (bits | 0x80000000).view(np.float32)])
x = np.concatenate([x, np.linspace(-105, 0, 100_000).astype(np.float32)])
nan = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFC00155], np.uint32).view(np.float32)


def run(op, x, **attributes):
    g = df.GraphBuilder()
    g.output("y", op(g.input("x", df.float32, x.shape), **attributes))
    return df.Session(df.Model(g.build()), ["cpu"], threads=1).run({"x": x})["y"]


def off(y, exact):
    # in units of the last place, those of denormals included
    return np.max(np.abs(y - exact) / np.maximum(np.spacing(np.abs(exact).astype(np.float32)), 2.0**-149))


wide = x.astype(np.float64)
with np.errstate(over="ignore"):
    small = np.exp(-np.abs(wide))
    assert off(run(df.ops.sigmoid, x).astype(np.float64), np.where(wide < 0, small, 1) / (1 + small)) < 2.5
assert np.isnan(run(df.ops.sigmoid, nan)).all()

below = np.stack([np.linspace(-104, 0, 50_000).astype(np.float32), np.zeros(50_000, np.float32)])
for axis, pairs in ((0, below), (1, np.ascontiguousarray(below.T))):  # by columns and by rows, of which one is 0
    e = np.exp(pairs.astype(np.float64))
    assert off(run(df.ops.softmax, pairs, axis=axis).astype(np.float64), e / e.sum(axis, keepdims=True)) < 3
for row in ([-np.inf, 0.0], [0.0, -3e38]):
    y = run(df.ops.softmax, np.array([row], np.float32), axis=1)
    np.testing.assert_array_equal(y, [[float(v == 0) for v in row]])
assert np.isnan(run(df.ops.softmax, np.stack([nan, np.zeros(4, np.float32)]), axis=0)).all()
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_exponentials_below_zero_are_those_of_float64(isa):
    left_to_nightly(isa)
    python_on(isa, "-c", COMPARED)
