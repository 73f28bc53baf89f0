"""Samples of ops with bodies."""

from __future__ import annotations

from ... import ops
from ...ir.builder import GraphBuilder
from ...ir.graph import Graph
from ...ir.op import Op
from ...ir.types import bool_, float32, int64
from ..sample import Operand, Sample, x


def cell() -> Graph:
    """A recurrent cell: h' = tanh(h w + x), a running sum, and a row of each iteration."""
    g = GraphBuilder("cell")
    h, total, row = g.input("h", float32, (2, 3)), g.input("total", float32, (2,)), g.input("row", float32, (2, 3))
    w = g.input("w", float32, (3, 3))
    new = ops.tanh(ops.add(ops.matmul(h, w), row))
    g.output("h", new)
    g.output("total", ops.add(total, ops.reduce_sum(new, axes=(1,), keepdims=0)))
    g.output("y", ops.mul(new, row))
    return g.build()


def _branch(name: str, op: Op) -> Graph:
    g = GraphBuilder(name)
    g.output("y", op(g.input("a", float32, (3, 4)), g.input("b", float32, (4,))))
    return g.build()


def _count_down() -> Graph:
    g = GraphBuilder("count")
    iteration, _ = g.input("i", int64, ()), g.input("go", bool_, ())
    value = ops.mul(g.input("v", float32, (3,)), 0.5)
    g.output("go", ops.less(iteration, 3))
    g.output("v", value)
    g.output("row", value)
    return g.build()


def _control() -> list[Sample]:
    rows = []
    for iterations in (0, 1, 2, 5):
        for reverse in (0, 1):
            data = (x(2, 3), x(2), x(iterations, 2, 3), x(3, 3))
            a = {"n_carries": 2, "n_xs": 1, "reverse": reverse}
            rows.append(Sample(ops.scan, data, a, gradient=(0, 1, 2, 3) if iterations else (), bodies=(cell(),)))
    branches = (_branch("then", ops.mul), _branch("else", ops.add))
    for truth in (0, 1):
        condition = Operand((), bool_, value=truth)
        rows.append(Sample(ops.if_, (condition, x(3, 4), x(4)), gradient=(1, 2), bodies=branches))
    for count in (0, 2, 9):
        start = (Operand((), int64, value=count), Operand((), bool_, value=True), x(3))
        rows.append(Sample(ops.loop, start, {"n_carries": 1, "max_iterations": 10}, bodies=(_count_down(),)))
    return rows


SAMPLES: list[Sample] = _control()
