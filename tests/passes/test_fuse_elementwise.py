"""Elementwise ops as one: the same bits as one by one, whatever the graph; and what may not be joined stays apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataflow as df
from dataflow.ops.fused import PROGRAM_OPS, REDUCTIONS, program
from dataflow.planning.verify import check_plan
from tests.support import ops_of

UNARY = ("neg", "abs", "tanh", "relu", "sigmoid", "exp", "erf", "softplus")
BINARY = ("add", "sub", "mul", "maximum", "minimum", "div")
SHAPES = ((6, 50), (50,), (6, 1), (1, 1), (), (1, 50))
RANDOM = np.random.default_rng(3)


def compared(graph, feeds):
    """The session that fuses, once its results were compared with those of one that doesn't."""
    fused, plain = (df.Session(graph, devices=["cpu"], fuse=fuse) for fuse in (True, False))
    expected = plain.run(feeds)
    for name, array in fused.run(feeds).items():
        np.testing.assert_array_equal(array, expected[name])
    check_plan(fused.plan({name: array.shape for name, array in feeds.items()}))
    return fused


@st.composite
def graphs(draw):
    """A graph of elementwise ops on operands that broadcast, with some inner values and reductions as results too."""
    g = df.GraphBuilder()
    shapes = [SHAPES[0], *draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=5))]
    values = [g.input(f"x{i}", df.float32, shape) for i, shape in enumerate(shapes)]
    feeds = {f"x{i}": RANDOM.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    for index in range(draw(st.integers(2, 22))):
        pick = st.integers(max(0, len(values) - 9), len(values) - 1)
        if draw(st.booleans()):
            values.append(getattr(df.ops, draw(st.sampled_from(UNARY)))(values[draw(pick)]))
        else:
            values.append(getattr(df.ops, draw(st.sampled_from(BINARY)))(values[draw(pick)], values[draw(pick)]))
        if draw(st.integers(0, 9)) == 0:
            g.output(f"inner{index}", values[-1])
        if draw(st.integers(0, 5)) == 0:
            axes = draw(st.sampled_from(((-1,), (1,), (0, 1), (0,))))
            value = values[draw(pick)]
            if value.type.rank == 2:
                made = REDUCTIONS[draw(st.sampled_from(sorted(REDUCTIONS)))](value, axes=axes, keepdims=1)
                values.append(made)
    g.output("y", values[-1])
    return g.build(), feeds


@given(graphs())
@settings(max_examples=80)
def test_fused_graphs_give_the_same_bits(made):
    compared(*made)


def test_a_tree_that_reads_its_input_twice_is_one_step():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (40, 300))
    g.output("y", x * (df.ops.erf(x / np.float32(1.7)) + 1.0) * 0.5)
    session = compared(g.build(), {"x": RANDOM.standard_normal((40, 300)).astype(np.float32)})
    assert ops_of(session.plan()) == ["fused_elementwise"]
    assert session.plan().peak_bytes == 0  # nothing between input and output


def test_what_others_read_is_computed_apart():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (8, 9))
    inner = df.ops.tanh(df.ops.exp(x))
    g.output("y", df.ops.neg(df.ops.abs(inner)))
    g.output("z", df.ops.reduce_sum(inner, axes=(0,)))
    session = compared(g.build(), {"x": RANDOM.standard_normal((8, 9)).astype(np.float32)})
    assert sorted(ops_of(session.plan())) == ["fused_elementwise", "fused_elementwise", "reduce_sum"]


@pytest.mark.parametrize("name", sorted(PROGRAM_OPS))
def test_the_cpu_joins_every_op_that_can_be_a_step(name):
    g = df.GraphBuilder()
    operands = [g.input(f"x{i}", df.float32, (30, 40)) for i in range(len(PROGRAM_OPS[name].inputs))]
    g.output("y", df.ops.neg(PROGRAM_OPS[name](*operands)))
    feeds = {v.name: RANDOM.uniform(1.1, 1.9, (30, 40)).astype(np.float32) for v in operands}
    assert ops_of(compared(g.build(), feeds).plan()) == ["fused_elementwise"]


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize(
    ("shape", "axes", "keepdims"),
    [
        ((30, 40), (1,), 0),
        ((30, 40), (-1, 0), 1),
        ((5, 6, 7), (2, 1), 1),
        ((3, 2500), (1,), 0),  # rows of more than a run
        ((2, 90000), (1,), 0),  # few results, whose rows are cut into parts
        ((400, 300), (0, 1), 0),
        ((2000, 17), (1,), 1),
        ((6, 1), (1,), 0),
        ((5, 0), (1,), 0),
        ((9,), (0,), 0),
    ],
)
def test_a_reduction_over_the_last_axes_joins_with_the_same_bits(name, shape, axes, keepdims):
    g = df.GraphBuilder()
    x, y = g.input("x", df.float32, shape), g.input("y", df.float32, shape[-1:])
    g.output("z", REDUCTIONS[name](df.ops.mul(df.ops.sub(x, y), df.ops.exp(x)), axes=axes, keepdims=keepdims))
    feeds = {v: RANDOM.standard_normal(s).astype(np.float32) for v, s in (("x", shape), ("y", shape[-1:]))}
    assert ops_of(compared(g.build(), feeds).plan()) == ["fused_elementwise"]


def test_a_nan_comes_through_a_reduction():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (4, 100))
    g.output("z", df.ops.reduce_max(df.ops.neg(df.ops.mul(x, x)), axes=(1,), keepdims=0))
    data = RANDOM.standard_normal((4, 100)).astype(np.float32)
    data[1, 7], data[2, 9] = np.nan, np.inf
    assert ops_of(compared(g.build(), {"x": data}).plan()) == ["fused_elementwise"]


def test_what_a_reduction_needs_takes_no_memory():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (300, 500))
    g.output("z", df.ops.reduce_sum(df.ops.mul(x, x), axes=(0, 1), keepdims=0))
    plan = compared(g.build(), {"x": RANDOM.standard_normal((300, 500)).astype(np.float32)}).plan()
    assert plan.peak_bytes < 4096


@pytest.mark.parametrize("axes", [(0,), (0, 2)])
def test_a_reduction_over_other_axes_stays(axes):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (4, 5, 6))
    g.output("z", df.ops.reduce_sum(df.ops.mul(x, df.ops.exp(x)), axes=axes, keepdims=0))
    session = compared(g.build(), {"x": RANDOM.standard_normal((4, 5, 6)).astype(np.float32)})
    assert ops_of(session.plan()) == ["fused_elementwise", "reduce_sum"]


@pytest.mark.parametrize("length", [12, 13, 40])
def test_long_chains_are_split(length):
    g = df.GraphBuilder()
    value = g.input("x", df.float32, (100,))
    for _ in range(length):
        value = df.ops.tanh(value)
    g.output("y", value)
    session = compared(g.build(), {"x": RANDOM.standard_normal(100).astype(np.float32)})
    assert len(ops_of(session.plan())) == -(-length // 12)


def test_forward_and_backward_stay_apart():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 5))
    w = g.parameter("w", RANDOM.standard_normal((5, 3)).astype(np.float32))
    y = df.ops.matmul(x, w)
    for _ in range(3):
        y = df.ops.tanh(df.ops.mul(y, df.ops.sigmoid(y)))
    g.output("y", y)
    graph = g.build()
    batch = {"x": RANDOM.standard_normal((7, 5)).astype(np.float32), "labels": np.arange(7) % 3}
    losses = []
    for fuse in (True, False):
        model = df.Model(graph)
        with df.Trainer(model, devices=["cpu"], fuse=fuse, seed=0) as trainer:
            losses.append([trainer.step(batch) for _ in range(4)])
            plan = trainer.programs.plans()
            assert any("fused_elementwise" in str(p) for p in plan.values()) == fuse
            for p in plan.values():
                check_plan(p)
    assert losses[0] == losses[1]


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([("conv", 0, 1)], "'conv' can't be a step"),
        ([("add", 0)], "doesn't fit"),
        ([("neg", 0), ("add", 1, 3)], "doesn't fit"),
        ([("neg", 1), ("add", 0, 2)], "the result's shape"),
    ],
)
def test_programs_that_make_no_sense_are_refused(steps, reason):
    check_refused(steps, reason)


@pytest.mark.parametrize(
    ("steps", "trailing", "reason"),
    [
        ([("neg", 0), ("tanh", 2)], 1, "no reduction"),
        ([("reduce_sum", 0)], 1, "no reduction"),
        ([("neg", 0), ("reduce_sum", 0)], 1, "no reduction"),
        ([("neg", 0), ("reduce_sum", 2)], 0, "'reduce_sum' can't be a step"),
        ([("neg", 0), ("reduce_sum", 2)], 3, "3 axes can't be reduced"),
    ],
)
def test_reductions_that_make_no_sense_are_refused(steps, trailing, reason):
    check_refused(steps, reason, trailing=trailing)


def check_refused(steps, reason, **more):
    g = df.GraphBuilder()
    x, small = g.input("x", df.float32, (4, 3)), g.input("small", df.float32, (3,))
    with pytest.raises(df.InputError, match=reason):
        df.ops.fused_elementwise(x, small, program=program(*steps), **more)


@pytest.mark.parametrize(
    ("numbers", "reason"),
    [((), "is empty"), ((-1, 0), "no op with number -1"), ((1000, 0), "no op with number 1000"), ((0,), "ends within")],
)
def test_numbers_that_are_no_program_are_refused(numbers, reason):
    x = df.GraphBuilder().input("x", df.float32, (4, 3))
    with pytest.raises(df.InputError, match=reason):
        df.ops.fused_elementwise(x, program=numbers)
