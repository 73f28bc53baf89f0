"""Results lie where an operand that nothing reads any more lay, if their kernel may overwrite it."""

import numpy as np
import pytest

import dataflow as df
from dataflow import ops


@pytest.mark.parametrize(("start", "shared"), [(0, True), (1, False)])
def test_a_result_takes_the_begin_of_what_is_larger(start, shared):
    g = df.GraphBuilder()
    x = ops.exp(g.input("x", df.float32, (10, 8)))
    rows = ops.slice(x, starts=(start, 0), stops=(9 + start, 8), steps=(1, 1))
    g.output("y", ops.reduce_sum(ops.neg(rows), axes=(0,), keepdims=False))
    session = df.Session(g.build(), devices=["cpu"], fuse=False)
    feeds = {"x": np.linspace(-1, 1, 80, dtype=np.float32).reshape(10, 8)}
    np.testing.assert_allclose(session.run(feeds)["y"], -np.exp(feeds["x"])[start : 9 + start].sum(0), rtol=1e-5)
    (step,) = (s for segment in session.plan().segments for s in segment.steps if s.node.op is ops.neg)
    source, result = step.inputs[0], step.outputs[0]
    assert (source.arena == result.arena and source.offset == result.offset) == shared


def test_a_gradient_takes_the_bytes_of_what_it_is_summed_from():
    random = np.random.default_rng(3)
    g = df.GraphBuilder()
    w = g.parameter("w", random.standard_normal((6, 6)).astype(np.float32))
    x = g.input("x", df.float32, (4, 6))
    g.output("y", ops.matmul(ops.tanh(ops.matmul(x, w)), w))
    batch = {"x": random.standard_normal((4, 6)).astype(np.float32), "labels": np.arange(4)}
    with df.Trainer(df.Model(g.build()), devices=["cpu"], optimizer="sgd") as trainer:
        trainer.step(batch)
        steps = [step for plan in trainer.plans().values() for s in plan.segments for step in s.steps]
    sums = [step for step in steps if step.node.op is ops.add and step.outputs[0].type.sizes == (6, 6)]
    assert sums
    for step in sums:
        found = {(operand.arena, operand.offset) for operand in step.inputs}
        assert (step.outputs[0].arena, step.outputs[0].offset) in found
