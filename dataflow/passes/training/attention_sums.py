"""Graph -> Graph: sums of attention's gradients over batch and rows are computed with these, where a device does.

The gradient of a bias of the products before attention is such a sum, mostly of all three in one tensor, which would be
read again for it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from types import MappingProxyType
from typing import NamedTuple

from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ir.op import Op
from ...ir.types import TensorType
from ...ir.value import Value
from ...ops.attention import attention_grad, attention_grad_sums
from ...ops.reduce import reduce_sum
from ...ops.shape import concat, reshape
from ..grouping import Groups
from ..rounding.new_names import NewNames
from ..view_axes import axes_of, is_view, joined, through


def sum_with_attention_gradients(graph: Graph, targets: Targets) -> Graph:
    """The graph with ``attention_grad_sums`` and joins of its sums for ``attention_grad`` and sums of what it gives."""
    if not targets.offer(attention_grad_sums.name) or not graph.has(attention_grad):
        return graph
    return _Search(graph, targets).replaced()


class _Sum(NamedTuple):
    """A sum over all but some last axes of what consists of results of one node.

    Attributes:
        results: of the node, one behind the other, by index.
        shapes: of each the axes that are left.
        axis: of these along which they are joined.
    """

    results: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    axis: int


class _Search(Groups):
    def replaced(self) -> Graph:
        found: dict[Node, dict[Node, _Sum]] = {}
        for node in self.graph.nodes:
            if node.op is reduce_sum:
                maker, total = self.sum_of(node) or (None, None)
                if maker is not None and total is not None and self.together((maker, node)):
                    found.setdefault(maker, {})[node] = total
        names = NewNames(self.graph)
        stands: dict[Node, list[Node]] = {}
        for maker, totals in found.items():
            wanted = {result for total in totals.values() for result in total.results}
            made, sums = _with_sums(maker, wanted, names)
            if self.targets.taker(made, maker) is None:
                continue
            stands[maker] = [dataclasses.replace(made, pin=self.targets.pin(maker))]
            stands |= {node: list(_joined(node, total, sums, names)) for node, total in totals.items()}
        nodes = itertools.chain.from_iterable(stands.get(node, [node]) for node in self.graph.nodes)
        return dataclasses.replace(self.graph, nodes=tuple(nodes)) if stands else self.graph

    def sum_of(self, node: Node) -> tuple[Node, _Sum] | None:
        """What a node sums, and the node that computes this; None where it is something else."""
        value = node.inputs[0]
        assert value is not None
        axes = sorted(axis % value.type.rank for axis in node.attributes["axes"])
        summed = value.type.sizes[: len(axes)]
        if axes != [*range(len(axes))] or not value.type.elements:
            return None
        maker = self.makers.get(value)
        while maker is not None and maker.op is reshape and maker.inputs[0] is not None:
            if maker.inputs[0].type.sizes[: len(axes)] != summed:
                break
            value = maker.inputs[0]
            maker = self.makers.get(value)
        several = maker is not None and maker.op is concat and maker.attributes["axis"] % value.type.rank >= len(axes)
        operands = maker.inputs if maker is not None and several else (value,)
        sources = [self.source(operand, len(axes)) for operand in operands if operand is not None]
        first = sources[0]
        if first is None or any(source is None or source[0] is not first[0] for source in sources):
            return None
        results = tuple(source[1] for source in sources if source is not None)
        shapes = tuple(operand.type.sizes[len(axes) :] for operand in operands if operand is not None)
        axis = maker.attributes["axis"] % value.type.rank - len(axes) if maker is not None and several else 0
        return first[0], _Sum(results, shapes, axis)

    def source(self, value: Value, count: int) -> tuple[Node, int] | None:
        """The node of which a value is a result, with batch and rows in its first axes, and which one it is."""
        chain: list[Node] = []
        maker = self.makers.get(value)
        while maker is not None and is_view(maker) and maker.inputs[0] is not None:
            chain.append(maker)
            value = maker.inputs[0]
            maker = self.makers.get(value)
        if maker is None or maker.op is not attention_grad:
            return None
        own = axes_of(value.type.sizes)
        axes = through(reversed(chain), own)
        if axes is None:
            return None
        summed = {factor for axis in axes[:count] for factor in joined(axis)}
        left = joined(itertools.chain.from_iterable(axes[count:]))
        fits = summed == {*own[0], *own[-2]} and left == joined(itertools.chain(*own[1:-2], own[-1]))
        return (maker, maker.outputs.index(value)) if fits else None


def _with_sums(node: Node, wanted: set[int], names: NewNames) -> tuple[Node, list[Value | None]]:
    """The node that also gives sums of its results ``wanted``, and these."""
    sums: list[Value | None] = []
    for index, value in enumerate(node.outputs):
        if value is None or index not in wanted:
            sums.append(None)
            continue
        shape = value.type.shape
        type_ = TensorType(value.type.dtype, (*shape[1:-2], shape[-1]))
        sums.append(Value(names.unique(f"{value.name}/sums"), type_, None))
    return dataclasses.replace(node, op=attention_grad_sums, outputs=(*node.outputs, *sums)), sums


def _joined(node: Node, total: _Sum, sums: list[Value | None], names: NewNames) -> Iterator[Node]:
    """What stands for a sum: the sums of its parts, one behind the other."""
    (result,) = node.outputs
    assert result is not None

    def made(op: Op, inputs: tuple[Value | None, ...], value: Value, **attributes: object) -> Node:
        complete = MappingProxyType(op.complete(attributes))
        return Node(op, names.unique(f"{node.name}/{op.name}"), inputs, (value,), complete, (), node.origin, node.pin)

    def like(shape: tuple[int, ...]) -> Value:
        return Value(names.unique(f"{node.name}/sums"), TensorType(result.type.dtype, shape), None)

    values = [like(shape) for shape in total.shapes]
    for index, value in zip(total.results, values, strict=True):
        yield made(reshape, (sums[index],), value, shape=value.type.shape)
    joint = values[0]
    if len(values) > 1:
        sizes = list(total.shapes[0])
        sizes[total.axis] = sum(shape[total.axis] for shape in total.shapes)
        joint = like(tuple(sizes))
        yield made(concat, tuple(values), joint, axis=total.axis)
    yield made(reshape, (joint,), result, shape=result.type.shape)
