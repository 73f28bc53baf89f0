"""What comes down in few bytes comes in one kernel: results of a few numbers, and what kernels noted."""

from __future__ import annotations

import numpy as np
import pytest

import dataflow as df
from dataflow import ops

DEVICES = ["cuda", "cpu"]


def sums(count, large=False):
    """The sum of x times each number up to ``count``, and of the gathered rows; perhaps x doubled."""
    g = df.GraphBuilder()
    x, rows = g.input("x", df.float32, (6, 5)), g.input("rows", df.int64, (2,))
    for number in range(count):
        g.output(f"sum{number}", ops.reduce_sum(ops.mul(x, float(number)), axes=(0, 1), keepdims=False))
    g.output("rows", ops.reduce_sum(ops.gather(x, rows, axis=0), axes=(0,), keepdims=False))
    if large:
        g.output("large", ops.concat(*[ops.mul(x, 2.0)] * 40, axis=0))
    return df.Model(g.build())


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 40])
@pytest.mark.parametrize("large", [False, True])
def test_small_results_come_down_as_they_are(count, large, cuda):
    random = np.random.default_rng(0)
    session = df.Session(sums(count, large), devices=DEVICES, registry=cuda)
    for _ in range(4):
        x = random.integers(-8, 8, (6, 5)).astype(np.float32)
        found = session.run({"x": x, "rows": np.array([1, 4])})
        for number in range(count):
            assert found[f"sum{number}"] == number * x.sum()
        np.testing.assert_array_equal(found["rows"], x[1] + x[4])
        if large:
            np.testing.assert_array_equal(found["large"], np.concatenate([2 * x] * 40))


@pytest.mark.parametrize("count", [0, 5])
def test_a_fault_comes_down_with_small_results(count, cuda):
    session = df.Session(sums(count), devices=DEVICES, registry=cuda)
    x = np.ones((6, 5), np.float32)
    for _ in range(3):
        with pytest.raises(df.InputError, match="9 is out of range for size 6"):
            session.run({"x": x, "rows": np.array([1, 9])})
        np.testing.assert_array_equal(session.run({"x": x, "rows": np.array([0, 5])})["rows"], np.full(5, 2.0))


def test_few_copies_take_no_kernel_and_several_take_one(standin, standin_registry):
    x, rows = np.ones((6, 5), np.float32), np.array([1, 4])
    for count, more in ((0, 0), (1, 1), (3, 1), (40, 2)):
        session = df.Session(sums(count), devices=DEVICES, registry=standin_registry)
        session.run({"x": x, "rows": rows})
        steps = sum(len(segment.steps) for segment in session.plan({"x": x, "rows": rows}).segments)
        before = standin.launches
        session.run({"x": x, "rows": rows})
        assert standin.launches - before == steps + more
