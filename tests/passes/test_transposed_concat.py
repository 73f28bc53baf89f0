"""A concat that is transposed and reshaped is copied once, and nothing else changes."""

import numpy as np
import pytest

import dataflow as df
from tests.support import ops_of

ops = df.ops
RANDOM = np.random.default_rng(7)


def run(build, *shapes):
    """The ops of the plan on the CPU and the results, once these were compared with the reference's."""
    g = df.GraphBuilder()
    build(g, *(ops.neg(g.input(f"x{i}", df.float32, shape)) for i, shape in enumerate(shapes)))
    graph = g.build()
    feeds = {f"x{i}": RANDOM.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    session, reference = (df.Session(graph, devices=[device], fold=False, fuse=False) for device in ("cpu", "numpy"))
    expected = reference.run(feeds)
    for name, array in session.run(feeds).items():
        np.testing.assert_array_equal(array, expected[name])
    return ops_of(session.plan())


@pytest.mark.parametrize("axis", [0, -5, 2])
def test_a_copy_is_spared(axis):
    def build(g, *xs):
        y = ops.transpose(ops.concat(*xs, axis=axis), perm=(1, 3, 0, 2, 4))
        g.output("y", ops.reshape(y, shape=(10, 72)))

    shapes = ((1, 2, 1, 5, 6), (1, 2, 11, 5, 6)) if axis == 2 else ((1, 2, 4, 5, 6), (2, 2, 4, 5, 6))
    assert run(build, *shapes) == ["neg", "neg", "concat"]


def test_the_gradient_of_queries_keys_and_values_is_joined_where_it_is_read():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 6, 8))
    w = g.parameter("w", RANDOM.standard_normal((8, 24)).astype(np.float32))
    qkv = ops.transpose(ops.reshape(ops.matmul(x, w), shape=(x.type.shape[0], 6, 3, 2, 4)), perm=(2, 0, 3, 1, 4))
    n = x.type.shape[0]
    q, k, v = (
        ops.slice(qkv, starts=(i, 0, 0, 0, 0), stops=(i + 1, n, 2, 6, 4), steps=(1, 1, 1, 1, 1)) for i in range(3)
    )
    g.output("y", ops.reduce_mean(ops.add(ops.mul(q, ops.exp(k)), ops.tanh(v)), axes=(0, 2, 3), keepdims=0))
    batch = {"x": RANDOM.standard_normal((5, 6, 8)).astype(np.float32), "labels": np.arange(5) % 4}
    with df.Trainer(df.Model(g.build()), devices=["cpu"], seed=0) as trainer:
        trainer.step(batch)
        segments = [segment for plan in trainer.programs.plans().values() for segment in plan.segments]
    joined = [step.node for segment in segments for step in segment.steps if step.node.op is ops.concat]
    assert [node.outputs[0].type.sizes for node in joined] == [(5, 6, 3, 2, 4)]


@pytest.mark.parametrize("shown", ["concat", "transpose", "view"])
def test_what_is_read_as_it_lies_stays(shown):
    def build(g, a, b):
        joined = ops.concat(a, b, axis=0)
        moved = ops.transpose(joined, perm=(1, 0, 2))
        g.output("y", ops.reshape(moved, shape=(12, 15)))
        if shown == "concat":
            g.output("z", joined)
        elif shown == "transpose":
            g.output("z", moved)
        else:
            g.output("z", ops.abs(ops.reshape(moved, shape=(3, 4, 3, 5))))

    assert "copy" in run(build, (1, 3, 5), (11, 3, 5))  # the concat is where its operands were computed
