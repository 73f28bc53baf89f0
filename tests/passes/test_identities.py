"""Nodes that only pass their operand on: gone where they do nothing, kept where they do something."""

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.identities import remove_identities
from tests.support import ops_of

ops = df.ops
SHAPE = (2, 1, 3)


def graph_of(change):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, SHAPE)
    g.output("y", ops.relu(change(x)))
    return g.build()


@pytest.mark.parametrize(
    "change",
    [
        lambda x: ops.reshape(x, shape=SHAPE),
        lambda x: ops.transpose(x, perm=(0, 1, 2)),
        lambda x: ops.broadcast_to(x, shape=SHAPE),
        lambda x: ops.slice(x, starts=(0, 0, 0), stops=SHAPE, steps=(1, 1, 1)),
        lambda x: ops.dropout(x, None, ratio=0.5),
        lambda x: ops.pad(x, pads=(0,) * 6, mode="reflect"),
    ],
)
def test_what_does_nothing_goes(change):
    assert [node.op.name for node in remove_identities(graph_of(change)).nodes] == ["relu"]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: ops.reshape(x, shape=(1, 2, 3)),
        lambda x: ops.transpose(x, perm=(0, 2, 1)),
        lambda x: ops.slice(x, starts=(1, 0, 0), stops=(-1, 1, 3), steps=(-1, 1, 1)),
        lambda x: ops.transpose(ops.reshape(x, shape=(3, 2)), perm=(1, 0)),
        lambda x: ops.pad(x, pads=(0, 0, -1, 0, 0, 1)),
    ],
)
def test_what_does_something_stays(change):
    graph = graph_of(change)
    assert len(remove_identities(graph).nodes) == len(graph.nodes)


def test_an_input_that_is_an_output_through_one():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, 3))
    g.output("y", ops.reshape(x, shape=(2, 3)))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = df.Session(g.build(), devices=["cpu"]).run({"x": array})["y"]
    np.testing.assert_array_equal(found, array)
    assert not np.shares_memory(found, array)


def test_a_fused_op_is_found_across_one():
    """As exports of einsum leave it."""
    g = df.GraphBuilder()
    q, kt, v = (g.input(n, df.float32, s) for n, s in (("q", (2, 4, 5)), ("kt", (2, 5, 6)), ("v", (2, 6, 3))))
    weights = ops.softmax(ops.reshape(ops.matmul(q, kt), shape=(2, 4, 6)), axis=-1)
    g.output("y", ops.matmul(ops.reshape(weights, shape=(2, 4, 6)), v))
    assert ops_of(df.Session(g.build(), devices=["cpu"]).plan()) == ["attention"]
