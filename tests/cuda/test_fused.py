"""Programs of elementwise ops on CUDA: the bits of the ops one by one, whatever lies where; what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import dataflow as df
from dataflow.ops.fused import PROGRAM_OPS, REDUCTIONS
from dataflow.planning.verify import check_plan
from tests.passes.test_fuse_elementwise import graphs
from tests.support import ops_of

RANDOM = np.random.default_rng(5)
MODERATE = settings(max_examples=30, suppress_health_check=[*HealthCheck])


def compared(registry, graph, feeds):
    """The plan that fuses, once its results were compared with those of one that doesn't; both on the card."""
    sessions = [df.Session(graph, devices=["cuda", "cpu"], registry=registry, fuse=fuse) for fuse in (True, False)]
    fused, plain = (session.run(feeds) for session in sessions)
    for name, array in fused.items():
        np.testing.assert_array_equal(array, plain[name])
    plan = sessions[0].plan({name: array.shape for name, array in feeds.items()})
    check_plan(plan)
    return plan


def is_one_program(plan):
    return ops_of(plan) == ["fused_elementwise"] and plan.segments[0].device == "cuda"


@given(graphs())
@MODERATE
def test_fused_graphs_give_the_same_bits(cuda, made):
    compared(cuda, *made)


@pytest.mark.parametrize("name", sorted(PROGRAM_OPS))
def test_every_op_that_can_be_a_step_joins(cuda, name):
    g = df.GraphBuilder()
    operands = [g.input(f"x{i}", df.float32, (30, 41)) for i in range(len(PROGRAM_OPS[name].inputs))]
    g.output("y", df.ops.mul(df.ops.neg(PROGRAM_OPS[name](*operands)), 0.5))
    feeds = {v.name: RANDOM.standard_normal((30, 41)).astype(np.float32) for v in operands}
    for array in feeds.values():
        array[:2, :6] = [[np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0], [1e-42, 3e38, -3e38, 1e30, 105615.0, -1.0]]
    assert is_one_program(compared(cuda, g.build(), feeds))


@pytest.mark.parametrize("name", sorted(REDUCTIONS))
@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((30, 40), (1,)),
        ((5, 6, 7), (2, 1)),  # rows of 42: elements one by one
        ((5, 6, 10), (2, 1)),  # rows of 60 by vectors, whose operands lie in rows of 10
        ((3, 2500), (1,)),  # a block per row
        ((2, 90001), (1,)),  # few results: splits
        ((9000, 20), (1,)),
        ((6, 1), (1,)),
        ((5, 0), (1,)),
    ],
)
def test_a_reduction_joins_with_the_same_bits(cuda, name, shape, axes):
    g = df.GraphBuilder()
    x, y = g.input("x", df.float32, shape), g.input("y", df.float32, shape[-1:])
    g.output("z", REDUCTIONS[name](df.ops.mul(df.ops.sub(x, y), df.ops.exp(x)), axes=axes, keepdims=0))
    feeds = {v: RANDOM.standard_normal(s).astype(np.float32) for v, s in (("x", shape), ("y", shape[-1:]))}
    assert is_one_program(compared(cuda, g.build(), feeds))


@pytest.mark.parametrize("shape", [(30, 40), (5, 42), (3, 2500), (2, 90001), (6, 1), (7, 63), (4, 64)])
def test_a_reduction_of_one_operand_joins_with_the_same_bits(cuda, shape):
    """A thread computes sixteen elements of it at a time."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, shape)
    g.output("z", df.ops.reduce_sum(df.ops.mul(df.ops.sub(x, 0.25), x), axes=(1,), keepdims=0))
    assert is_one_program(compared(cuda, g.build(), {"x": RANDOM.standard_normal(shape).astype(np.float32)}))


@pytest.mark.parametrize("shape", [(3,), (16,), (7, 19), (20, 1028), (2, 20011)])
@pytest.mark.parametrize("begin", [0, 1])
def test_a_long_program_of_one_operand_gives_the_same_bits(cuda, shape, begin):
    """A thread computes sixteen elements of it at a time, by vectors or, from an odd address on, one by one."""
    g = df.GraphBuilder()
    count = int(np.prod(shape))
    x = g.input("x", df.float32, (count + begin,))
    y = df.ops.reshape(df.ops.slice(x, starts=(begin,), stops=(count + begin,), steps=(1,)), shape=shape)
    found = df.ops.mul(df.ops.sub(df.ops.tanh(df.ops.mul(df.ops.add(df.ops.mul(y, y), 0.5), y)), y), 0.125)
    g.output("y", df.ops.maximum(df.ops.erf(found), y))
    feeds = {"x": RANDOM.standard_normal(count + begin).astype(np.float32)}
    assert "fused_elementwise" in ops_of(compared(cuda, g.build(), feeds))


def test_a_nan_comes_through_a_reduction(cuda):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (4, 100))
    for name, op in REDUCTIONS.items():
        g.output(name, op(df.ops.neg(df.ops.mul(x, x)), axes=(1,), keepdims=0))
    data = RANDOM.standard_normal((4, 100)).astype(np.float32)
    data[1, 7], data[2, 9] = np.nan, np.inf
    compared(cuda, g.build(), {"x": data})


@pytest.mark.parametrize("perm", [(1, 0, 2), (2, 0, 1), (0, 2, 1)])
def test_operands_of_any_strides(cuda, perm):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (8, 12, 20))
    moved = df.ops.transpose(df.ops.exp(x), perm=perm)
    row, column = g.input("row", df.float32, moved.type.sizes[2:]), g.input("column", df.float32, (12, 1))
    length = moved.type.sizes[2]
    long = df.ops.tanh(g.input("long", df.float32, (length + 3,)))
    tail = df.ops.slice(long, starts=(3,), stops=(length + 3,), steps=(1,))  # not at an address of vectors
    y = df.ops.mul(df.ops.add(moved, row), tail)
    g.output("y", df.ops.sub(y, column) if moved.type.sizes[1] == 12 else y)
    graph = g.build()
    feeds = {v.name: RANDOM.standard_normal(v.type.sizes).astype(np.float32) for v in graph.inputs}
    assert "fused_elementwise" in ops_of(compared(cuda, graph, feeds))


def test_values_that_wait_for_later_steps_take_more_slots_than_a_full_block_has(cuda):
    g = df.GraphBuilder()
    xs = [g.input(f"x{i}", df.float32, (7, 130)) for i in range(6)]
    held = [df.ops.tanh(x) for x in xs]
    y = df.ops.mul(held[0], held[5])
    for value in held[1:5]:
        y = df.ops.add(y, value)
    g.output("y", df.ops.neg(y))
    feeds = {v.name: RANDOM.standard_normal((7, 130)).astype(np.float32) for v in xs}
    assert is_one_program(compared(cuda, g.build(), feeds))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_reduction_of_many_operands_fits_into_a_block_or_stays(cuda, count):
    g = df.GraphBuilder()
    xs = [g.input(f"x{i}", df.float32, (7, 130)) for i in range(count)]
    y = df.ops.tanh(xs[0])
    for x in xs[1:]:
        y = df.ops.mul(y, x)
    g.output("y", df.ops.reduce_sum(y, axes=(1,), keepdims=0))
    feeds = {v.name: RANDOM.standard_normal((7, 130)).astype(np.float32) for v in xs}
    assert "fused_elementwise" in ops_of(compared(cuda, g.build(), feeds))
