"""Concat without copies: its operands are computed where they lie in the result.

This works where the operands are contiguous in the result, every axis before the one of the concat having size
one, and where every operand can be computed there, or is another shape of what can: a view of all of it, in its order.
With one operand that can't (an input, a slice of another value, the result of another concat) the result would be
held from the first operand on and copied into all the same, so then it stays a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ..ir.graph import Graph, Node
from ..ir.lowered import Storage
from ..ir.operand import is_contiguous
from ..ir.types import TensorType, contiguous_strides
from ..ir.value import Value
from ..ops.shape import concat


def is_outermost(node: Node) -> bool:
    """True for a concat whose parts lie one behind the other."""
    if node.op is not concat or node.outputs[0] is None or len(node.inputs) < 2:
        return False
    type_ = node.outputs[0].type
    axis = node.attributes["axis"] % type_.rank
    return type_.elements > 0 and all(d == 1 for d in type_.sizes[:axis])


def operands(node: Node, result: Storage) -> Iterator[tuple[Value, Storage]]:
    """Each operand of a concat with its storage in the result."""
    offset = result.offset
    for value in node.inputs:
        assert value is not None
        type_ = TensorType(value.type.dtype, value.type.shape)
        yield value, Storage(result.base, offset, contiguous_strides(type_.sizes), type_)
        offset += type_.nbytes


def source(value: Value, makers: Mapping[Value, Node]) -> Value:
    """The computed value that has the bytes of ``value``, all and in order; itself where no other has."""
    chain: list[Node] = []
    first = value
    while first in makers and makers[first].op.view is not None and makers[first].inputs[0] is not None:
        chain.append(makers[first])
        first = makers[first].inputs[0]  # type: ignore[assignment]
    strides = contiguous_strides(first.type.sizes)
    for node in reversed(chain):
        view = node.op.view(node, strides) if node.op.view is not None else None
        if view is None or view.offset:
            return value
        strides = view.strides
    same = first.type.nbytes == value.type.nbytes and is_contiguous(value.type.sizes, strides)
    return first if same else value


def concat_storage(
    graph: Graph, make_base: Callable[[Value, Node], Storage], fits: Callable[[Node, Storage], bool]
) -> tuple[dict[Node, Storage], dict[Value, Storage]]:
    """Where concats lie, and values that are computed there.

    Args:
        graph: bound.
        make_base: storage for the result of a concat.
        fits: whether the node that makes a value can write it to a storage.

    Returns:
        The storage of each concat that needs no step, and of each value that is computed in one.
    """
    makers = graph.producers()
    concats: dict[Node, Storage] = {}
    wanted: dict[Value, Storage] = {}
    for node in graph.nodes:
        if not is_outermost(node) or node.outputs[0] is None:
            continue
        result = make_base(node.outputs[0], node)
        found: dict[Value, Storage] = {}
        count = 0
        for value, operand in operands(node, result):
            if value.type.elements:
                count += 1
                first = source(value, makers)
                found[first] = replace(operand, strides=contiguous_strides(first.type.sizes), type=first.type)
        free = all(v in makers and v not in wanted and not is_outermost(makers[v]) for v in found)
        if len(found) == count and free and all(fits(makers[v], storage) for v, storage in found.items()):
            concats[node] = result
            wanted.update(found)
    return concats, wanted
