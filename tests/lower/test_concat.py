"""Concats whose parts are computed where they lie in the whole, also through views of all of a value."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataflow as df
from dataflow.planning.verify import check_plan
from dataflow_numpy.evaluate import evaluate
from tests.support import ops_of

ops = df.ops
RANDOM = np.random.default_rng(3)


def there_and_back(x):
    swapped = ops.transpose(ops.reshape(x, shape=(2, 3, 4)), perm=(2, 0, 1))
    return ops.reshape(ops.transpose(swapped, perm=(1, 2, 0)), shape=(1, 6, 4))


def swapped(x):
    return ops.reshape(ops.transpose(ops.reshape(x, shape=(6, 4)), perm=(1, 0)), shape=(1, 6, 4))


def halved(x):
    return ops.slice(ops.reshape(x, shape=(2, 3, 4)), starts=(0, 0, 0), stops=(1, 3, 4), steps=(1, 1, 1))


def repeated(x):
    return ops.broadcast_to(ops.reshape(x, shape=(1, 6, 4)), shape=(2, 6, 4))


def compared(graph, device="cpu"):
    """The ops that run, once the results were compared with the reference's."""
    feeds = {v.name: RANDOM.standard_normal(v.type.sizes).astype(np.float32) for v in graph.inputs}
    session = df.Session(graph, devices=[device])
    found = session.run(feeds)
    for name, expected in evaluate(graph, feeds).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-6)
    check_plan(session.plan())
    return ops_of(session.plan())


@pytest.mark.parametrize(
    ("views", "steps"),
    [
        ((lambda x: ops.reshape(x, shape=(2, 3, 4)), lambda x: ops.reshape(x, shape=(2, 3, 4))), 0),
        ((there_and_back, lambda x: ops.reshape(x, shape=(1, 6, 4))), 0),
        ((there_and_back, swapped), 1),  # its elements lie in another order
        ((halved, halved), 1),
        ((repeated, there_and_back), 1),
    ],
)
def test_an_operand_may_be_another_shape_of_what_is_computed_there(views, steps):
    g = df.GraphBuilder()
    x = [g.input(f"x{i}", df.float32, (24,)) for i in range(2)]
    operands = [view(ops.relu(v)) for view, v in zip(views, x, strict=True)]
    g.output("y", ops.sin(ops.concat(*operands, axis=0)))
    assert compared(g.build()).count("concat") == steps


def test_two_operands_from_one_value_stay_a_step():
    g = df.GraphBuilder()
    made = ops.relu(g.input("x", df.float32, (24,)))
    g.output("y", ops.sin(ops.concat(ops.reshape(made, shape=(1, 6, 4)), there_and_back(made), axis=0)))
    assert "concat" in compared(g.build())


@given(data=st.data())
@settings(max_examples=60)
def test_any_views_give_equal_results(data):
    """Also where parts, what they are views of, and the whole have readers and results of their own."""
    g = df.GraphBuilder()
    given_ = [g.input(f"x{i}", df.float32, (24,)) for i in range(2)]
    made = [getattr(ops, data.draw(st.sampled_from(("relu", "tanh"))))(v) for v in given_]
    values = made + given_[:1]
    operands = []
    for _ in range(data.draw(st.integers(2, 4))):
        view = data.draw(st.sampled_from((there_and_back, swapped, halved, repeated)))
        viewed = view(data.draw(st.sampled_from(values)))
        operands.append(ops.reshape(viewed, shape=(viewed.type.elements // 4, 4)))
        if data.draw(st.booleans()):
            values.append(ops.sin(ops.reshape(there_and_back(made[0]), shape=(24,))))
    joined = ops.concat(*operands, axis=0)
    g.output("y", ops.cos(joined) if data.draw(st.booleans()) else joined)
    for index, value in enumerate((*made, *operands)):
        if data.draw(st.integers(0, 3)) == 0:
            g.output(f"also{index}", value if data.draw(st.booleans()) else ops.exp(value))
    compared(g.build())
