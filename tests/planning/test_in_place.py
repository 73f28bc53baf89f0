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
