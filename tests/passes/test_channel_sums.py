"""Sums per channel of what elementwise ops give are computed with it, and what doesn't fit stays apart."""

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.training.channel_sums import sum_with_elementwise
from tests.support import graph_of, targets_of

ops = df.ops
SHAPE = (2, 3, 5)
X, Y = (np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32) for seed in (1, 2))
SUMMING = targets_of("relu_grad", "tanh", "mul", "gelu_grad", "layer_norm_grad", "reduce_sum",
                     "fused_elementwise_sums", "gelu_grad_sums", "layer_norm_grad_sums")  # fmt: skip


def results(build, *arrays):
    """The ops after the pass, once the result was compared with that of the graph before it."""
    graph, feeds = graph_of(build, *arrays)
    made = sum_with_elementwise(graph, SUMMING)
    after, before = (df.Session(df.Model(g), devices=["numpy"], fold=False, fuse=False) for g in (made, graph))
    np.testing.assert_array_equal(after.run(feeds)["y"], before.run(feeds)["y"])
    return [node.op.name for node in made.nodes]


def total(value, axes=(0, 2), keepdims=0):
    """The sum per channel times what it is of: both are read."""
    summed = ops.reduce_sum(value, axes=axes, keepdims=keepdims)
    return ops.mul(value, summed if keepdims else ops.reshape(summed, shape=(1, 3, 1)))


@pytest.mark.parametrize(("axes", "keepdims"), [((0, 2), 1), ((-1, 0), 0)])
def test_a_sum_per_channel_is_computed_with_what_it_is_of(axes, keepdims):
    found = results(lambda g, x, y: total(ops.relu_grad(x, y), axes, keepdims), X, Y)
    assert found[0] == "fused_elementwise_sums"
    assert "reduce_sum" not in found


@pytest.mark.parametrize(("axes", "op"), [((0, 1), "gelu_grad_sums"), ((0, 2), "gelu_grad")])
def test_sums_of_the_gradient_of_gelu_are_per_column(axes, op):
    def build(g, x, y):
        value = ops.gelu_grad(x, y, approximate="tanh")
        return ops.mul(value, ops.reduce_sum(value, axes=axes, keepdims=1))

    assert results(build, X, Y)[0] == op


@pytest.mark.parametrize(
    ("axis", "axes", "op"),
    [(-1, (0, 1), "layer_norm_grad_sums"), (2, (0, 2), "layer_norm_grad"), (1, (0, 1), "layer_norm_grad")],
)
def test_sums_of_the_gradient_of_a_norm_are_over_its_rows(axis, axes, op):
    def build(g, x, y):
        rows = SHAPE[: axis % 3]
        operands = (x, y, None, np.zeros(rows, np.float32), np.ones(rows, np.float32))
        value, _, dbias = g.add(ops.layer_norm_grad, operands, {"axis": axis}).outputs
        return ops.mul(ops.mul(value, dbias), ops.reduce_sum(value, axes=axes, keepdims=1))

    assert results(build, X, Y)[0] == op


def test_only_one_sum_of_a_value_is():
    found = results(lambda g, x: ops.mul(total(z := ops.tanh(x)), total(z, keepdims=1)), X)
    assert found.count("fused_elementwise_sums") == found.count("reduce_sum") == 1


@pytest.mark.parametrize(
    "build",
    [
        lambda g, x: total(x),  # nothing computes it
        lambda g, x: ops.reduce_sum(ops.tanh(x), axes=(2,), keepdims=0),  # two axes are left
        lambda g, x: ops.reduce_sum(ops.tanh(x), axes=(0, 1, 2), keepdims=0),  # none is
        lambda g, x: ops.reduce_sum(ops.mul(x, x), axes=(0, 1), keepdims=0),  # it reads one operand twice
    ],
)
def test_what_does_not_fit_stays(build):
    assert "fused_elementwise_sums" not in results(build, X)
