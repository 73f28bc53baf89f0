"""Concat without copies: its operands are computed where they lie in the result.

An operand is computed there, or it is a view of what can be: of all of it, in its order or with its axes in another
one. Where operands lie one behind the other in the result, any kernel can write them; where there are gaps between
their rows, one that takes results of any strides.
With one operand that can't (an input, a slice of another value, the result of another concat) the result would be
held from the first operand on and copied into all the same, so then it stays a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..ir.graph import Graph, Node
from ..ir.lowered import Storage
from ..ir.operand import is_contiguous
from ..ir.types import TensorType, contiguous_strides
from ..ir.value import Value
from ..ops.shape import concat


@dataclass(frozen=True, slots=True)
class Slice:
    """A computed value that has the elements of a concat's operand.

    Attributes:
        value: it.
        storage: where it lies in the result.
        alone: nothing but the concat reads it.
    """

    value: Value
    storage: Storage
    alone: bool


def operands(node: Node, result: Storage) -> Iterator[tuple[Value, Storage]]:
    """Each operand of a concat with its storage in the result."""
    axis, offset = node.attributes["axis"] % result.type.rank, result.offset
    for value in node.inputs:
        assert value is not None
        type_ = TensorType(value.type.dtype, value.type.shape)
        yield value, Storage(result.base, offset, result.strides, type_)
        offset += value.type.sizes[axis] * result.strides[axis] * value.type.dtype.nbytes(1)


class _Slices:
    """What is known of a graph whose concats are looked at."""

    def __init__(self, graph: Graph) -> None:
        self.makers, self.readers = graph.producers(), graph.readers()
        self.kept = {*graph.outputs.values(), *(state.after for state in graph.states)}

    def of(self, value: Value, storage: Storage) -> Slice:
        """The computed value that has the elements of an operand; the operand itself where no other has."""
        chain: list[Node] = []
        first, alone = value, self.is_alone(value)
        while first in self.makers and self.makers[first].op.view is not None:
            source = self.makers[first].inputs[0]
            if source is None:
                break
            chain.append(self.makers[first])
            first, alone = source, alone and self.is_alone(source)
        strides: tuple[int, ...] | None = contiguous_strides(first.type.sizes)
        for node in reversed(chain):
            view = node.view_of(strides) if strides is not None else None
            strides = None if view is None or view.offset else view.strides
        found = None
        if strides is not None and first.type.nbytes == value.type.nbytes:
            found = _inverted(first.type.sizes, strides, storage)
        if found is None:
            return Slice(value, storage, self.is_alone(value))
        return Slice(first, replace(storage, strides=found, type=first.type), alone)

    def is_alone(self, value: Value) -> bool:
        return value not in self.kept and len(self.readers.get(value, ())) == 1


def _inverted(sizes: tuple[int, ...], strides: tuple[int, ...], storage: Storage) -> tuple[int, ...] | None:
    """The strides of a value of ``sizes`` whose view by ``strides`` lies in ``storage``; None: there are none."""
    own, shown = contiguous_strides(sizes), storage.type.sizes
    if is_contiguous(shown, strides) and is_contiguous(shown, storage.strides):
        return own
    found = []
    for size, stride in zip(sizes, own, strict=True):
        # Strides first: most differ, and then no size is compared, which would fix a traced one.
        axes = [axis for axis, pair in enumerate(zip(strides, shown, strict=True)) if pair == (stride, size)]
        if size == 1:
            found.append(stride)
        elif len(axes) == 1:
            found.append(storage.strides[axes[0]])
        else:
            return None  # an axis that the view divides or joins
    return tuple(found)


def concat_storage(
    graph: Graph, make_base: Callable[[Value, Node], Storage], fits: Callable[[Node, Slice], bool]
) -> tuple[dict[Node, Storage], dict[Value, Storage]]:
    """Where concats lie, and values that are computed there.

    Args:
        graph: bound.
        make_base: storage for the result of a concat.
        fits: whether the node that makes a value can write it to its storage.

    Returns:
        The storage of each concat that needs no step, and of each value that is computed in one.
    """
    slices = _Slices(graph)
    makers = slices.makers
    concats: dict[Node, Storage] = {}
    wanted: dict[Value, Storage] = {}
    for node in graph.nodes:
        value = node.outputs[0] if node.op is concat else None
        if value is None or len(node.inputs) < 2 or not value.type.elements:
            continue
        result = make_base(value, node)
        found = [slices.of(v, storage) for v, storage in operands(node, result) if v.type.elements]
        apart = len({one.value for one in found}) == len(found)
        if apart and all(
            one.value in makers
            and one.value not in wanted
            and makers[one.value] not in concats
            and fits(makers[one.value], one)
            for one in found
        ):
            concats[node] = result
            wanted.update((one.value, one.storage) for one in found)
    return concats, wanted
