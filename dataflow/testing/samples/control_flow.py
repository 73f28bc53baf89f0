"""Samples of ops with bodies."""

from __future__ import annotations

import numpy as np

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


def _rows_of_rows() -> Graph:
    """A scan within a scan: over the entries of a row, from a carried value that both go on with."""
    inner = GraphBuilder("inner")
    total, entry = inner.input("total", float32, (3,)), inner.input("entry", float32, (3,))
    matrix, kept = inner.input("row", float32, (4, 3)), inner.input("kept", float32, (3,))
    new = ops.tanh(ops.add(ops.mul(total, kept), entry))
    inner.output("total", new)
    inner.output("y", ops.add(new, ops.reduce_max(matrix, axes=(0,), keepdims=0)))
    g = GraphBuilder("outer")
    start, row, kept = g.input("start", float32, (3,)), g.input("row", float32, (4, 3)), g.input("kept", float32, (3,))
    carried = ops.mul(start, 0.5)
    attributes = {"n_carries": 1, "n_xs": 1, "reverse": 1}
    end, rows, *_ = g.add(ops.scan, [carried, row, row, start], attributes, bodies=(inner.build(),)).outputs
    assert end is not None and rows is not None
    g.output("start", ops.mul(end, kept))
    g.output("rows", rows)
    return g.build()


def _chosen_by_row(within: bool) -> Graph:
    """An if within a scan, about whose condition a row decides; or such a one within another."""
    captured = [("a", (4,)), ("b", (4,))]

    def branch(name: str, op: Op) -> Graph:
        b = GraphBuilder(name)
        b.output("y", op(*(b.input(label, float32, shape) for label, shape in captured)))
        return b.build()

    branches = (branch("then", ops.mul), branch("else", ops.sub))
    g = GraphBuilder("choose")
    h, go, row = g.input("h", float32, (4,)), g.input("go", bool_, ()), g.input("row", float32, (4,))
    if within:
        outer = []
        for name, op in (("first", ops.add), ("second", ops.maximum)):
            b = GraphBuilder(name)
            a, other = (b.input(label, float32, shape) for label, shape in captured)
            down = ops.less(ops.reduce_sum(a, axes=(0,), keepdims=0), 0.0)
            (y,) = b.add(ops.if_, [down, a, op(a, other)], {}, bodies=branches).outputs
            assert y is not None
            b.output("y", y)
            outer.append(b.build())
        branches = (outer[0], outer[1])
    (new,) = g.add(ops.if_, [go, h, row], {}, bodies=branches).outputs
    assert new is not None
    g.output("h", new)
    g.output("y", new)
    return g.build()


def _until() -> Graph:
    """A loop of unknown length within a scan: a row is halved until it is small, or thrice."""
    inner = GraphBuilder("halve")
    inner.input("i", int64, ()), inner.input("go", bool_, ())
    value, least = inner.input("v", float32, (5,)), inner.input("least", float32, ())
    half = ops.mul(value, 0.5)
    inner.output("go", ops.less(least, ops.reduce_max(half, axes=(0,), keepdims=0)))
    inner.output("v", half)
    g = GraphBuilder("until")
    total, limit, row = g.input("total", float32, (5,)), g.input("limit", int64, ()), g.input("row", float32, (5,))
    least = ops.reduce_min(row, axes=(0,), keepdims=0)
    operands = [limit, ops.less(least, 1.0), row, least]
    attributes = {"n_carries": 1, "max_iterations": 3}
    made, small = g.add(ops.loop, operands, attributes, bodies=(inner.build(),)).outputs
    assert made is not None and small is not None
    g.output("total", ops.add(total, small))
    g.output("made", made)
    return g.build()


def _nested() -> list[Sample]:
    over = {"n_carries": 1, "n_xs": 1, "reverse": 0}
    goes, often = (Operand((n,), bool_, value=np.arange(n) % 3 != 1) for n in (5, 6))
    limits = Operand((4,), int64, value=np.array([3, 0, 1, 2]))
    return [
        Sample(ops.scan, (x(3), x(5, 4, 3), x(3)), over, gradient=(0, 1, 2), bodies=(_rows_of_rows(),)),
        Sample(ops.scan, (x(4), goes, x(5, 4)), over | {"n_xs": 2}, gradient=(0, 2), bodies=(_chosen_by_row(False),)),
        Sample(ops.scan, (x(4), often, x(6, 4)), over | {"n_xs": 2}, gradient=(0, 2), bodies=(_chosen_by_row(True),)),
        Sample(ops.scan, (x(5), limits, x(4, 5)), over | {"n_xs": 2}, bodies=(_until(),)),
    ]


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


SAMPLES: list[Sample] = [*_control(), *_nested()]
