"""The gradient of a scan: a scan in the other direction, and products of what it leaves behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.builder import GraphBuilder
from ..ir.dims import Size
from ..ir.graph import Graph, Node
from ..ir.op import Differentiate
from ..ir.rewrite import rewrite
from ..ir.value import Builder, Value
from .arithmetic import add
from .infer import product
from .linalg import matmul, swapped
from .shape import reshape
from .subgraph import inline, parts, zeros


def scan_gradient(node: Node, *cotangents: Value | None, differentiate: Differentiate) -> list[Value | None]:
    """Cotangents of a scan's inputs: iteration by iteration the body once more from its saved carries, and its vjp.

    The carries of the backward scan are the cotangents of the forward carries and, for captures, sums over iterations;
    its rows the saved carries, the scanned inputs and the cotangents of the stacked results. The weight of a product
    has no sum: both factors of its gradient are stacked, and multiplied once behind the loop.
    """
    n_carries, n_xs = node.attributes["n_carries"], node.attributes["n_xs"]
    first = n_carries + n_xs  # of the captures
    inputs = [v for v in node.inputs if v is not None]
    outer = inputs[0].builder
    assert outer is not None
    taken = _take_out(node.bodies[0], first)
    body, weights = taken.body, taken.weights_of(outer, inputs[first:])
    saved = node.outputs[len(body.outputs) :]

    g = GraphBuilder(f"{body.name}.backward")
    floats = [i for i, v in enumerate(inputs) if v.type.dtype.is_float]
    moving, scanned = [i for i in floats if i < n_carries], [i for i in floats if n_carries <= i < first]
    stacked = [i for i in range(n_carries, len(node.outputs)) if cotangents[i] is not None]
    d_carry = [g.input(f"d.{body.inputs[i].name}", *parts(body.inputs[i].type)) for i in moving]
    before = [g.input(f"at.{v.name}", *parts(v.type)) for v in body.inputs[:first]]
    results_of = [*body.outputs.values(), *body.inputs[:n_carries]]  # an iteration's, and the carries before it
    d_rows = [g.input(f"d.row{i}", *parts(results_of[i].type)) for i in stacked]
    outside = [g.input(f"in.{v.name}", *parts(v.type)) for v in body.inputs[first:]]

    read = [*before, *outside]
    new = inline(g, body, read)
    seeds: dict[Value, Value] = {}
    for output, seed in zip([*moving, *stacked], [*d_carry, *d_rows], strict=True):
        value = new[results_of[output]]
        seeds[value] = add(seeds[value], seed) if value in seeds else seed
    found = differentiate(g, seeds, [*(read[i] for i in floats), *(new[p.result] for p in taken.products)])

    def result(value: Value) -> Value:
        cotangent = found[value]
        return cotangent if cotangent is not None else zeros(g, value.type)

    summed = [i for i in floats if i >= first and found[read[i]] is not None]
    sums = [g.input(f"sum.{body.inputs[i].name}", *parts(body.inputs[i].type)) for i in summed]
    for i in moving:
        g.output(f"c{i}", result(read[i]))
    for i, total in zip(summed, sums, strict=True):
        g.output(f"s{i}", add(total, result(read[i])))
    place: dict[Value, int] = {}  # of what is stacked among the results
    for i in scanned:
        value = result(read[i])
        place[value] = len(g.outputs())
        g.output(f"x{i}", value)
    products = [p for p in taken.products if found[new[p.result]] is not None]
    for value in [v for p in products for v in (new[p.left], result(new[p.result]))]:
        if value not in before and value not in place:
            place[value] = len(g.outputs())
            g.output(f"f{len(place)}", value)
    if not g.outputs():
        return [None] * len(inputs)
    backward = dataclasses.replace(g.build(), inputs=(*d_carry, *sums, *before, *d_rows, *outside))

    given = [cotangents[i] for i in moving]
    starts = [zeros(outer, inputs[i].type) if v is None else v for i, v in zip(moving, given, strict=True)]
    starts += [zeros(outer, inputs[i].type) for i in summed]
    feeds = [*saved, *inputs[n_carries:first], *(cotangents[i] for i in stacked)]
    attributes = {"n_carries": len(starts), "n_xs": len(feeds), "reverse": not node.attributes["reverse"]}
    operands = [*starts, *feeds, *inputs[first:], *weights]
    made = outer.add(node.op, operands, attributes, bodies=(backward,)).outputs
    results: list[Value | None] = [None] * len(inputs)
    for at, i in enumerate([*moving, *summed, *scanned]):
        results[i] = made[at]

    def stack(value: Value) -> Value:
        """Of all iterations, as one matrix: a result, or what the scan reads."""
        whole = made[place[value]] if value in place else feeds[before.index(value)]
        assert whole is not None
        return reshape(whole, shape=(product(whole.type.shape[:-1]), whole.type.shape[-1]))

    d_weights: dict[Value, Value] = {}
    for p in products:
        d, weight = matmul(swapped(stack(new[p.left])), stack(result(new[p.result]))), weights[p.weight]
        d_weights[weight] = add(d_weights[weight], d) if weight in d_weights else d
    captured = [i for i in floats if i >= first]
    origin = outer.origin
    shares = differentiate(outer, d_weights, [inputs[i] for i in captured])
    outer.origin = origin
    for i in captured:
        share, summand = shares.pop(inputs[i], None), results[i]  # once, where a value is captured twice
        if share is not None:
            results[i] = share if summand is None else add(summand, share)
    return results


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
            inputs.append(builder.input(f"weight{at}", *parts(weight.type)))
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
