"""Graph -> Lowered: storage and a memory for every value, kernels with operands as they take them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from functools import partial
from types import MappingProxyType

from ..errors import ModelError
from ..host.limits import poll
from ..ir.graph import Graph, Initializer, Node
from ..ir.kernel import HOST
from ..ir.lowered import NO_STATE, BaseTensor, Lowered, LoweredNode, Move, RunState, Stage, Storage
from ..ir.operand import is_contiguous
from ..ir.types import element_count
from ..ir.value import Value
from ..plugin.registry import Registry
from .concat import Slice, concat_storage
from .control_flow import LOWERINGS
from .growing import added, computed_there, grown_states
from .placement import Pins
from .select import select
from .state_aliasing import alias_states
from .storage import StorageTable

_LINE = 16  # bytes that kernels of devices with a memory of their own read and write at once


def lower(
    graph: Graph,
    pins: Pins,
    registry: Registry,
    owners: Mapping[str, str] = MappingProxyType({}),
    state: RunState = NO_STATE,
) -> tuple[Lowered, dict[str, Initializer]]:
    """``graph`` with devices, kernels and storage; its types must be bound.

    The data of its initializers come apart from it, by the keys of ``Lowered.stored``: whoever fills the stored tensors
    lets go of the data one by one.

    Args:
        graph: bound, without dead nodes.
        pins: devices in order of preference, the last resort last, and what the user wants where.
        registry: what plugins offer.
        owners: owning memory of each mutable initializer; others have a copy in every memory that reads them.
        state: inputs and outputs that stay in a memory from run to run.

    Raises:
        ModelError: a type isn't bound, or no device takes a node.
    """
    if graph.has_open_sizes:
        value = next(value for value in graph.values() if not value.type.is_bound)
        raise ModelError(f"value {value.name!r} has type {value.type}: bind its named dims first")
    selection = select(graph, pins, registry)
    table = StorageTable(selection, pins.devices, registry, owners)
    graph = selection.graph
    inputs: dict[str, Storage] = {}
    kept = frozenset(state.pairs.values())
    table.grown = grown_states(table, state)
    for value in graph.inputs:
        if value not in table.storage:
            memory = state.memory if value.name in kept else HOST
            table.storage[value] = table.new_base(value.name, value.type, memory, "input")
        inputs[value.name] = table.storage[value]
    concats, table.destination = concat_storage(graph, partial(_concat_base, table), partial(_can_write, table))
    for value, storage in computed_there(table, concats):
        table.destination[value] = storage
    stops, names = graph.stage_stops(), [*graph.stages.values()] or [frozenset(graph.outputs)]
    last, joined = len(stops) - 1, graph.joined
    found: dict[str, Storage] = {}
    states: list[tuple[BaseTensor, BaseTensor]] = []
    passing = {value for value, initializer in graph.initializers.items() if initializer.role == "passing"}
    ends = []
    for number, (start, stop) in enumerate(zip((0, *stops), stops, strict=False)):
        table.starting = number == 0 or joined
        lower_nodes(table, graph.nodes[start:stop], concats)
        returned = names[number] if not joined else frozenset(graph.outputs) if number == last else frozenset()
        found |= _results(table, returned, {storage.base for storage in found.values()}, state)
        # What passes is read behind its program; all others change when the last one ends.
        complete = [s for s in graph.states if s.before in passing and s.name in names[number]]
        states += alias_states(table, complete, _claimed(found, states))
        ends.append(len(table.items))
    lasting = [s for s in graph.states if s.before not in passing]
    states += alias_states(table, lasting, _claimed(found, states))
    ends[-1] = len(table.items)
    ends = _without_unread(table, ends, _claimed(found, states) | {base for _, base in states})
    stages = tuple(
        Stage(name, end + len(table.first), tuple(n for n in graph.outputs if n in results))
        for (name, results), end in zip(graph.stages.items(), ends, strict=False)
    )
    outputs = {name: found[name] for name in graph.outputs}
    items = (*table.first, *table.items)
    return Lowered(items, inputs, outputs, table.stored, tuple(states), stages, selection.refusals, state), table.data


def _claimed(found: Mapping[str, Storage], states: Iterable[tuple[BaseTensor, BaseTensor]]) -> set[BaseTensor]:
    """The base tensors of results and of states."""
    return {storage.base for storage in found.values()} | {base for base, _ in states}


def _without_unread(table: StorageTable, ends: Iterable[int], read: set[BaseTensor]) -> list[int]:
    """Drops moves of what nobody reads, as operands that a body leaves aside; returns where stages end then.

    Such bytes would be nobody's as soon as they are there, and moves that stand together may be done in any order.
    """
    kept: list[bool] = []
    for item in reversed((*table.first, *table.items)):
        kept.append(not isinstance(item, Move) or item.target.base in read)
        if kept[-1]:
            sources = (item.source,) if isinstance(item, Move) else item.inputs
            read |= {storage.base for storage in sources if storage is not None}
    kept.reverse()
    count = len(table.first)
    table.first = [item for item, keep in zip(table.first, kept, strict=False) if keep]
    table.items = [item for item, keep in zip(table.items, kept[count:], strict=True) if keep]
    return [sum(kept[count : count + end]) for end in ends]


def lower_nodes(
    table: StorageTable, nodes: Iterable[Node], concats: Mapping[Node, Storage] = MappingProxyType({})
) -> None:
    """Lowers nodes in their order.

    Args:
        table: what is lowered so far.
        nodes: of its graph.
        concats: the storage of those whose operands are computed in it.

    Raises:
        InputError: a result, also one that is a view, has more elements than can be addressed.
    """
    for node in nodes:
        poll(node)
        for value in node.outputs:
            if value is not None:
                element_count(value.type.sizes)  # kernels and strides count in 63 bits
        if node.op.view is not None:
            _lower_view(table, node)
        elif node in table.grown:
            _lower_grown(table, node)
        elif node in concats:
            result = node.outputs[0]
            assert result is not None
            storage = table.storage[result] = concats[node]  # the operands are there
            table.device_of.setdefault(storage.base, table.choices[node].device)
        elif table.choices[node].kernel is None:
            LOWERINGS[node.op](table, node, lower_nodes)
        else:
            _lower_kernel(table, node)


def _lower_view(table: StorageTable, node: Node) -> None:
    """The result lies where its operand lies, or in a contiguous copy of it."""
    value, result = node.inputs[0], node.outputs[0]
    assert value is not None and result is not None and node.op.view is not None
    source = table.storage.get(value)
    if source is None:
        source = table.read(value, _memory_of_readers(table, result))
    view = node.view_of(source.strides)
    if view is None:
        source = table.contiguous(source, node)
        view = node.view_of(source.strides)
    if view is None:
        raise ModelError(f"{node.describe()}: not even a contiguous input makes it a view")
    offset = source.offset + view.offset * value.type.dtype.nbytes(1)
    table.storage[result] = Storage(
        source.base, offset, view.strides, result.type, source.iteration_stride, source.buffer_stride
    )


def _memory_of_readers(table: StorageTable, view: Value) -> str:
    """The memory of the first node that reads a view, through other views too."""
    node = table.first_readers.get(view)
    while node is not None and node.op.view is not None:
        node = None if node.outputs[0] is None else table.first_readers.get(node.outputs[0])
    return table.memory_when_unread if node is None else table.memory_of(table.choices[node].device)


def _lower_grown(table: StorageTable, node: Node) -> None:
    """What a concat adds to state lies where it is to be, or is copied there."""
    result, device = node.outputs[0], table.choices[node].device
    assert result is not None
    storage = table.storage[result] = table.grown[node]
    table.device_of[storage.base] = device
    for value, target in added(node, storage):
        if value.type.elements and table.destination.get(value) != target:
            table.copy_into(table.transfer_in(value, device, node), target, node, device)


def _lower_kernel(table: StorageTable, node: Node) -> None:
    """A node that one kernel computes: operands in its memory and as it takes them, a base tensor per result."""
    choice = table.choices[node]
    assert choice.kernel is not None
    memory = table.memory_of(choice.device)
    inputs: list[Storage | None] = []
    for index, value in enumerate(node.inputs):
        if value is None:
            inputs.append(None)
            continue
        storage = table.transfer_in(value, choice.device, node)
        if not choice.kernel.input_spec(index).strided and not is_contiguous(storage.type.shape, storage.strides):
            storage = table.contiguous(storage, node, choice.device)
        inputs.append(storage)
    outputs: list[Storage | None] = []
    for value in node.outputs:
        if value is None:
            outputs.append(None)
            continue
        storage = table.destination.get(value) or table.new_base(value.name, value.type, memory, "computed")
        table.storage[value] = storage
        table.device_of[storage.base] = choice.device
        outputs.append(storage)
    table.items.append(LoweredNode(node, choice.device, choice.kernel, tuple(inputs), tuple(outputs)))


def _concat_base(table: StorageTable, value: Value, node: Node) -> Storage:
    """A base tensor for a concat whose operands are computed in it."""
    memory = table.memory_of(table.choices[node].device)
    return table.new_base(value.name, value.type, memory, "computed")


def _can_write(table: StorageTable, node: Node, one: Slice) -> bool:
    """Whether a node's kernel can write its result straight into a slice of another value.

    Where there are several memories, only what nothing else reads: a base tensor is transferred at once, and isn't
    complete when another slice of it is read.
    """
    choice = None if node.op.view is not None else table.choices[node]
    if choice is None or choice.kernel is None or node in table.grown:
        return False
    sizes, storage = one.storage.type.sizes, one.storage
    spec = choice.kernel.output_spec(node.outputs.index(one.value))
    if not is_contiguous(sizes, storage.strides) and not (spec.strided and one.alone):
        return False
    memory = table.memory_of(choice.device)
    if len({table.memory_of(d) for d in table.devices}) == 1:
        return memory == HOST
    return one.alone and memory == storage.base.memory and storage.offset % _LINE == 0


def _results(
    table: StorageTable, names: Collection[str], returned: Set[BaseTensor], state: RunState
) -> dict[str, Storage]:
    """Storage on the host for each of these outputs: a computed base tensor of its own, contiguous.

    ``returned`` are the base tensors of other outputs; those in ``state`` lie in its memory.
    """
    found: dict[str, Storage] = {}
    kept = [table.storage.get(s.after) for s in table.graph.states]
    taken = {*returned, *(s.base for s in kept if s is not None)}  # the latter get the bytes of their state
    marker = Node(table.copy, "result", (), (), {})
    grown = {storage.base for storage in table.grown.values()}
    for name, value in table.graph.outputs.items():
        if name not in names:
            continue
        if name in state.pairs and table.read(value, state.memory).base in grown:
            found[name] = table.storage[value]
            continue
        memory = state.memory if name in state.pairs else HOST
        device = table.device_in(memory)
        storage = table.read(value, memory)
        if storage.base.memory != memory:
            storage = table.transfer(storage, memory, device, marker)
        all_of_it = storage.offset == 0 and storage.type.nbytes == storage.base.type.nbytes
        straight = is_contiguous(storage.type.sizes, storage.strides)
        if storage.base.kind != "computed" or not all_of_it or not straight or storage.base in taken:
            storage = table.fresh(storage, marker, device)
        taken.add(storage.base)
        found[name] = storage
    return found
