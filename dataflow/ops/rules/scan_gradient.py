"""The gradient of a scan: a scan in the other direction, and products of what it leaves behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...ir.builder import GraphBuilder
from ...ir.dims import Size
from ...ir.graph import Graph, Node
from ...ir.op import Differentiate
from ...ir.rewrite import rewrite
from ...ir.types import TensorType
from ...ir.value import Builder, Value
from ..arithmetic import add
from ..infer import builder_for, product
from ..linalg import matmul, swapped
from ..shape import reshape
from .subgraph import dtype_and_shape, inline, zeros

_Key = TypeVar("_Key")


def scan_gradient(node: Node, *cotangents: Value | None, differentiate: Differentiate) -> list[Value | None]:
    """Cotangents of a scan's inputs: iteration by iteration the body once more from its saved carries, and its vjp.

    The carries of the backward scan are the cotangents of the forward carries and, for captures, sums over iterations;
    its rows the saved carries, the scanned inputs and the cotangents of the stacked results. The weight of a product
    has no sum: both factors of its gradient are stacked, and multiplied once behind the loop.
    """
    n_carries = node.attributes["n_carries"]
    first = n_carries + node.attributes["n_xs"]  # of the captures
    inputs = [v for v in node.inputs if v is not None]
    floats = [i for i, v in enumerate(inputs) if v.type.dtype.is_float]
    outer = builder_for(inputs[0])
    taken = _take_out(node.bodies[0], first)
    body, weights = taken.body, taken.weights_of(outer, inputs[first:])

    scan = _Scan(f"{body.name}.backward", outer)
    carried: dict[int, _Carried] = {}  # by the input of the forward scan whose cotangent it ends as
    for i in floats:
        if i < n_carries:
            given = cotangents[i]
            start = zeros(outer, inputs[i].type) if given is None else given
            carried[i] = scan.carry(f"d.{body.inputs[i].name}", start)
    saved = node.outputs[len(body.outputs) :]
    read = [
        scan.row(f"at.{v.name}", v.type, rows)
        for v, rows in zip(body.inputs[:first], [*saved, *inputs[n_carries:first]], strict=True)
    ]
    results = [*body.outputs.values(), *body.inputs[:n_carries]]  # an iteration's, and the carries before it
    seeded = [(results[i], d.input) for i, d in carried.items()]
    seeded += [
        (results[i], scan.row(f"d.row{i}", results[i].type, cotangents[i]))
        for i in range(n_carries, len(node.outputs))
        if cotangents[i] is not None
    ]
    outside = [*inputs[first:], *weights]
    read += [scan.capture(f"in.{v.name}", value) for v, value in zip(body.inputs[first:], outside, strict=True)]

    new = inline(scan.body, body, read)
    seeds = _sums((new[result], seed) for result, seed in seeded)
    wrt = [*(read[i] for i in floats), *(new[p.result] for p in taken.products)]
    found = differentiate(scan.body, seeds, wrt)

    def cotangent(value: Value) -> Value:
        known = found[value]
        return zeros(scan.body, value.type) if known is None else known

    for i, d in carried.items():
        d.next = cotangent(read[i])
    for i in floats:
        if i >= first and found[read[i]] is not None:
            carried[i] = scan.carry(f"sum.{body.inputs[i].name}", zeros(outer, inputs[i].type))
            carried[i].next = add(carried[i].input, cotangent(read[i]))
    scanned = {i: scan.stack(cotangent(read[i])) for i in floats if n_carries <= i < first}
    factors = [
        (scan.stack(new[p.left]), scan.stack(cotangent(new[p.result])), p.weight)
        for p in taken.products
        if found[new[p.result]] is not None
    ]
    scan.add(node)

    totals: dict[int, Value] = {i: scan.final(d) for i, d in carried.items()}
    totals |= {i: scan.rows_of(value) for i, value in scanned.items()}
    d_weights = _sums(
        (weight, matmul(swapped(_matrix(scan.rows_of(left))), _matrix(scan.rows_of(right))))
        for left, right, weight in factors
    )
    for i, share in taken.shares(outer, inputs[first:], d_weights, differentiate).items():
        totals[first + i] = add(totals[first + i], share) if first + i in totals else share
    return [totals.get(i) for i in range(len(inputs))]


def _sums(pairs: Iterable[tuple[_Key, Value]]) -> dict[_Key, Value]:
    """The sum of the second values for each first one."""
    found: dict[_Key, Value] = {}
    for key, summand in pairs:
        found[key] = add(found[key], summand) if key in found else summand
    return found


def _matrix(rows: Value) -> Value:
    """Stacked rows as one matrix."""
    return reshape(rows, shape=(product(rows.type.shape[:-1]), rows.type.shape[-1]))


# ---- a scan that is built -------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Carried:
    """A carried value: the body's input, what it starts with outside, and what an iteration makes of it."""

    input: Value
    start: Value
    next: Value | None = None


class _Scan:
    """A scan in the making: its body, and what the inputs and results of the body are outside."""

    def __init__(self, name: str, outer: Builder) -> None:
        self.body = GraphBuilder(name)
        self._outer = outer
        self._carried: list[_Carried] = []
        self._rows: dict[Value, Value] = {}  # input of the body -> the rows outside
        self._captures: dict[Value, Value] = {}
        self._stacked: list[Value] = []  # results of an iteration
        self._made: tuple[Value | None, ...] = ()

    def carry(self, name: str, start: Value) -> _Carried:
        """A carried value; its ``next`` is yet to be set."""
        self._carried.append(_Carried(self.body.input(self.body.free_name(name), *dtype_and_shape(start.type)), start))
        return self._carried[-1]

    def row(self, name: str, type_: TensorType, rows: Value | None) -> Value:
        """The body's input that is a row of ``rows`` in each iteration."""
        assert rows is not None
        value = self.body.input(self.body.free_name(name), *dtype_and_shape(type_))
        self._rows[value] = rows
        return value

    def capture(self, name: str, outside: Value) -> Value:
        """The body's input that is the same value in each iteration."""
        value = self.body.input(self.body.free_name(name), *dtype_and_shape(outside.type))
        self._captures[value] = outside
        return value

    def stack(self, value: Value) -> Value:
        """Has a value of the body kept for each iteration, where rows don't hold it already."""
        if value not in self._rows and value not in self._stacked:
            self._stacked.append(value)
        return value

    def add(self, like: Node) -> None:
        """Adds the node, against the direction of ``like``, if it has a result."""
        for index, carried in enumerate(self._carried):
            assert carried.next is not None
            self.body.output(f"carry{index}", carried.next)
        for index, value in enumerate(self._stacked):
            self.body.output(f"row{index}", value)
        if not self.body.outputs():
            return
        inputs = (*(c.input for c in self._carried), *self._rows, *self._captures)
        body = dataclasses.replace(self.body.build(), inputs=inputs)
        operands = [*(c.start for c in self._carried), *self._rows.values(), *self._captures.values()]
        reverse = not like.attributes["reverse"]
        attributes = {"n_carries": len(self._carried), "n_xs": len(self._rows), "reverse": reverse}
        self._made = self._outer.add(like.op, operands, attributes, bodies=(body,)).outputs

    def final(self, carried: _Carried) -> Value:
        """A carried value after the last iteration."""
        value = self._made[self._carried.index(carried)]
        assert value is not None
        return value

    def rows_of(self, value: Value) -> Value:
        """A value of the body in all iterations."""
        if value in self._rows:
            return self._rows[value]
        rows = self._made[len(self._carried) + self._stacked.index(value)]
        assert rows is not None
        return rows


# ---- products that the loop leaves out ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Product:
    """A matmul of the body: its first operand, its result, and which weight is the second."""

    left: Value
    result: Value
    weight: int


@dataclass(frozen=True, slots=True)
class _Taken:
    """A body whose products get their weights from outside, as inputs behind all others.

    Attributes:
        body: the new one.
        products: of the new body.
        source: what computes the weights from the captures.
    """

    body: Graph
    products: Sequence[_Product]
    source: Graph | None

    def weights_of(self, outer: Builder, captures: Sequence[Value]) -> list[Value]:
        """The weights, computed outside."""
        if self.source is None:
            return []
        new = inline(outer, self.source, captures)
        return [new[v] for v in self.source.outputs.values()]

    def shares(
        self, outer: Builder, captures: Sequence[Value], d_weights: Mapping[int, Value], differentiate: Differentiate
    ) -> dict[int, Value]:
        """What the weights, whose cotangents are given by index, pass on to captures, by index.

        What computes the weights is differentiated by itself: outside, one capture may be computed from another, and
        what it passes on there is counted where that node is differentiated.
        """
        if self.source is None or not d_weights:
            return {}
        g = GraphBuilder("weights")
        given = [g.input(f"in{i}", *dtype_and_shape(v.type)) for i, v in enumerate(captures)]
        new = inline(g, self.source, given)
        weights = [new[v] for v in self.source.outputs.values()]
        seeds = _sums((weights[i], g.input(f"d{i}", *dtype_and_shape(d.type))) for i, d in d_weights.items())
        for value, share in differentiate(g, seeds, [v for v in given if v.type.dtype.is_float]).items():
            if share is not None:
                g.output(value.name, share)
        graph = g.build()
        made = inline(outer, graph, [*captures, *d_weights.values()])
        return {i: made[graph.outputs[v.name]] for i, v in enumerate(given) if v.name in graph.outputs}


def _take_out(body: Graph, first: int) -> _Taken:
    """Takes the weights out of a body: matrices that depend on captures alone, those inputs from ``first`` on."""
    fixed, active = (
        {*body.inputs[first:], *body.initializers},
        {v for v in body.inputs[first:] if v.type.dtype.is_float},
    )
    for node in body.nodes:
        if node.op.effects == "none" and all(v in fixed for v in node.inputs if v is not None):
            fixed.update(v for v in node.outputs if v is not None)
            if any(v in active for v in node.inputs if v is not None):
                active.update(v for v in node.outputs if v is not None)
    chosen = {
        n for n in body.nodes if n.op is matmul and n.inputs[1] in active and n.inputs[0] not in fixed and _pays(n)
    }
    weights = list(dict.fromkeys(n.inputs[1] for n in body.nodes if n in chosen))
    if not chosen:
        return _Taken(body, (), None)
    inputs: list[Value] = []
    products: list[_Product] = []

    def replace(builder: GraphBuilder, node: Node, operands: list[Value | None]) -> Sequence[Value | None] | None:
        if node not in chosen:
            return None
        at, weight, left = weights.index(node.inputs[1]), node.inputs[1], operands[0]
        assert weight is not None and left is not None
        if at == len(inputs):
            inputs.append(builder.input(f"weight{at}", *dtype_and_shape(weight.type)))
        made = matmul(left, inputs[at], name=node.name)
        products.append(_Product(left, made, at))
        return (made,)

    named = {f"weight{i}": v for i, v in enumerate(weights) if v is not None}
    return _Taken(rewrite(body, replace), products, _source(body, first, named))


def _source(body: Graph, first: int, weights: Mapping[str, Value]) -> Graph:
    """The nodes of a body that compute ``weights`` from the inputs from ``first`` on."""
    needed: set[Value | None] = {*weights.values()}
    nodes = []
    for node in reversed(body.nodes):
        if not needed.isdisjoint(node.outputs):
            nodes.append(node)
            needed.update(node.inputs)
    stored = {value: data for value, data in body.initializers.items() if value in needed}
    return Graph(body.inputs[first:], weights, tuple(reversed(nodes)), stored)


def _pays(node: Node) -> bool:
    """Whether the factors of all iterations take no more memory than a few sums would have moved."""
    left, weight = node.inputs[0], node.inputs[1]
    assert left is not None and weight is not None
    if weight.type.rank != 2:
        return False
    rows: Size = product(left.type.shape[:-1])
    inner, columns = weight.type.shape
    sizes = [size for size in (rows, inner, columns) if isinstance(size, int)]
    return len(sizes) < 3 or sizes[0] * (sizes[1] + sizes[2]) <= 4 * sizes[1] * sizes[2]
