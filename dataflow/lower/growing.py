"""State that grows is not copied: where a run leaves what it found with more behind it, only that is written.

A decoder's cache is such state: ``concat(past, new)``. Both the past and the result lie in memory for more rows than a
run has, see ``RunState.reserved``; those of a head follow the memory of the head before it, so both are strided.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ..ir.graph import Node
from ..ir.kernel import HOST
from ..ir.lowered import RunState, Storage
from ..ir.types import TensorType, contiguous_strides
from ..ir.value import Value
from ..ops.shape import concat
from .storage import StorageTable


def grown_states(table: StorageTable, state: RunState) -> dict[Node, Storage]:
    """The storage of concats whose results are state, by node; that of their first operands is in the table then."""
    graph = table.graph
    makers, inputs = graph.producers(), {value.name: value for value in graph.inputs}
    found: dict[Node, Storage] = {}
    for output, sizes in state.reserved.items():
        past, after = inputs[state.pairs[output]], graph.outputs[output]
        node = makers.get(after)
        if node is None or node in found or node.op is not concat or node.inputs[0] is not past:
            continue
        if not _fits(node, after, sizes) or not _can_write(table, node, state.memory):
            continue
        others = [value for name, value in graph.outputs.items() if name != output]
        if _stays(table, [past, after], state.memory, after) and past not in others and after not in others:
            type_ = TensorType(past.type.dtype, sizes)
            base = table.new_base(past.name, type_, state.memory, "input").base
            strides = contiguous_strides(sizes)
            table.storage[past] = Storage(base, 0, strides, past.type)
            found[node] = Storage(base, 0, strides, after.type)
    return found


def added(node: Node, result: Storage) -> Iterator[tuple[Value, Storage]]:
    """Each operand of such a concat but the first, with its storage in the result."""
    axis = node.attributes["axis"] % result.type.rank
    position = 0
    for index, value in enumerate(node.inputs):
        assert value is not None
        offset = result.offset + position * result.strides[axis] * value.type.dtype.nbytes(1)
        if index:
            yield value, Storage(result.base, offset, result.strides, value.type)
        position += value.type.sizes[axis]


def computed_there(table: StorageTable, elsewhere: Collection[Node]) -> Iterator[tuple[Value, Storage]]:
    """What is added to state and can be computed where it is to lie, with that storage.

    Args:
        table: has the kernels, and the concats.
        elsewhere: nodes of which it is known where their results lie.
    """
    makers = table.graph.producers()
    for node, result in table.grown.items():
        for value, storage in added(node, result):
            maker = makers.get(value)
            choice = None if maker is None else table.choices.get(maker)  # of a view there is none
            if maker is None or maker in elsewhere or maker in table.grown or choice is None or choice.kernel is None:
                continue
            memory, spec = table.memory_of(choice.device), choice.kernel.output_spec(maker.outputs.index(value))
            once = node.inputs.count(value) == 1 and value not in table.destination
            if spec.strided and once and memory == result.base.memory and _stays(table, [value], memory):
                yield value, storage


def _fits(node: Node, after: Value, sizes: tuple[int, ...]) -> bool:
    """Whether the result of a concat needs memory of these sizes, but for its own along the axis."""
    axis = node.attributes["axis"] % after.type.rank
    least = list(sizes)
    least[axis] = after.type.sizes[axis]
    return tuple(least) == after.type.sizes and sizes[axis] >= least[axis] > 0 and after.type.dtype.kind != "s"


def _can_write(table: StorageTable, node: Node, memory: str) -> bool:
    """Whether the device of a concat has that memory, and copies to where rows have gaps between them."""
    device = table.choices[node].device
    copies = table.registry.kernels[device].get("copy", ())
    return table.memory_of(device) == memory and any(kernel.output_spec(0).strided for kernel in copies)


def _stays(table: StorageTable, values: Sequence[Value], memory: str, own: Value | None = None) -> bool:
    """Whether kernels in one memory alone read values: base tensors move to another before any node runs.

    Results go to the host, but for ``own``.
    """
    readers, pending = table.graph.readers(), [*values]
    returned = set() if memory == HOST else {value for value in table.graph.outputs.values() if value is not own}
    while pending:
        value = pending.pop()
        if value in returned:
            return False
        for node in readers.get(value, ()):
            if node.op.view is not None:
                pending += [result for result in node.outputs if result is not None]
            elif table.choices[node].kernel is None or table.memory_of(table.choices[node].device) != memory:
                return False
    return True
