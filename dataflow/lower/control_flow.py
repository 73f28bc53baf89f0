"""Nodes with bodies -> loops and branches on one device; see ``loop_buffers`` for where their values lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..ir.graph import Node
from ..ir.lowered import Loop, LoweredNode, Storage
from ..ir.op import AnyOp
from ..ir.types import TensorType
from ..ir.value import Value
from ..ops import control_flow as ops
from .loop_buffers import Scan, half, halves, make_loop, placeable, row
from .storage import StorageTable

LowerNodes = Callable[[StorageTable, Sequence[Node]], None]


def _result(table: StorageTable, value: Value, memory: str, device: str) -> Storage:
    """A base tensor of its own for a result."""
    storage = table.storage[value] = table.new_base(value.name, value.type, memory, "computed")
    table.device_of[storage.base] = device
    return storage


def _unmoving(table: StorageTable, value: Value, node: Node, device: str) -> Storage:
    """The storage of a value that a body reads; what moves with a loop around, as a row, is copied there first.

    Operands of a body move with its own iterations alone.
    """
    storage = table.transfer_in(value, device, node)
    moves = storage.iteration_stride or storage.buffer_stride
    return table.contiguous(storage, node, device) if moves else storage


def _add_body(
    table: StorageTable, node: Node, inner: StorageTable, around: Sequence[Storage], iterations: int, **how: Any
) -> None:
    """Adds a lowered body; ``around`` is what it shares with the outside."""
    known = {s.base for s in around} | {s.storage.base for s in table.stored.values()}
    items = [item for item in inner.items if isinstance(item, LoweredNode | Loop)]
    table.items.append(make_loop(node, table.choices[node].device, items, iterations, lambda s: s.base in known, **how))


def branches(table: StorageTable, node: Node, lower_nodes: LowerNodes) -> None:
    """Two bodies, of which one runs; each leaves its results in the same storage."""
    device, memory = table.choices[node].device, table.memory_of(table.choices[node].device)
    condition, *captures = [_unmoving(table, v, node, device) for v in node.inputs if v is not None]
    buffers = [None if v is None else _result(table, v, memory, device) for v in node.outputs]
    for index, choice in enumerate(table.choices[node].bodies):
        inner, body = table.inside(node, index), choice.graph
        inner.storage.update(zip(body.inputs, captures, strict=True))
        results = zip(body.outputs.values(), buffers, strict=True)
        _body(inner, [(value, buffer) for value, buffer in results if buffer is not None], node, device, lower_nodes)
        around = [condition, *captures, *(p for p in buffers if p is not None)]
        _add_body(table, node, inner, around, 1, kind="when", when=index == 0, control=(condition,))


def loop(table: StorageTable, node: Node, lower_nodes: LowerNodes) -> None:
    """A body that runs as long as a condition holds."""
    device, memory = table.choices[node].device, table.memory_of(table.choices[node].device)
    carried = int(node.attributes["n_carries"])
    given = [v for v in node.inputs if v is not None]
    starts = [table.transfer_in(v, device, node) for v in given[1 : 2 + carried]]
    limit, *captures = [_unmoving(table, v, node, device) for v in (given[0], *given[2 + carried :])]
    inner, body = table.inside(node), table.choices[node].bodies[0].graph
    buffers = []
    for index, start in enumerate(starts):
        buffer = table.new_base(f"{node.name}:carry{index}", start.type, memory, "computed")
        table.device_of[buffer.base] = device
        table.copy_into(start, buffer, node, device)
        buffers.append(buffer)
    number = table.new_base(f"{node.name}:iteration", body.inputs[0].type, memory, "computed")
    first = node.outputs[0]
    made = table.new_base(f"{node.name}:iterations", body.inputs[0].type, memory, "computed")
    if first is not None:
        table.storage[first] = made
        table.device_of[made.base] = device
    inner.storage.update(zip(body.inputs, (number, *buffers, *captures), strict=True))
    _carry(inner, list(zip(body.outputs.values(), buffers, strict=True)), node, device, lower_nodes)
    around = [limit, number, made, *buffers, *captures]
    control, counts = (limit, buffers[0]), (number, made)
    iterations = int(node.attributes["max_iterations"])
    _add_body(table, node, inner, around, iterations, kind="while", control=control, counts=counts)
    for value, buffer in zip(node.outputs[1:], buffers[1:], strict=True):
        if value is not None:
            table.storage[value] = buffer


def _carry(
    table: StorageTable, targets: Sequence[tuple[Value, Storage]], loop: Node, device: str, lower_nodes: LowerNodes
) -> None:
    """Lowers the body of a loop that leaves each value where the next iteration reads it."""
    lower_nodes(table, table.graph.nodes)
    carried = {storage.base for _, storage in targets}
    results = []
    for value, target in targets:
        source = table.read(value, target.base.memory)
        if source.base in carried and source != target:  # of another carry, which is about to change
            source = table.fresh(source, loop, device)
        results.append((source, target))
    for source, target in results:
        if source != target:
            table.copy_into(source, target, loop, device)


def scan(table: StorageTable, node: Node, lower_nodes: LowerNodes) -> None:
    """A loop over rows whose body runs on one device; see ``loop_buffers``."""
    choice, scan = table.choices[node], Scan.of(node)
    device, memory = choice.device, table.memory_of(choice.device)
    given = [v for v in node.inputs if v is not None]
    starts = [table.transfer_in(given[i], device, node) for i in scan.carries]
    read = [*starts, *(_unmoving(table, v, node, device) for v in given[len(starts) :])]
    inner = table.inside(node)
    buffers, body = [], choice.bodies[0].graph
    for index in scan.carries:
        start = read[index]
        shape = (2, *start.type.sizes)
        buffer = table.new_base(f"{node.name}:carry{index}", TensorType(start.type.dtype, shape), memory, "computed")
        table.copy_into(start, half(buffer, 0), node, device)
        inner.storage[body.inputs[index]] = halves(buffer)[0]
        buffers.append(buffer)
    for index in scan.xs:
        inner.storage[body.inputs[index]] = row(read[index], scan)
    for index in scan.captures:
        inner.storage[body.inputs[index]] = read[index]
    targets: list[tuple[Value, Storage]] = []
    results = list(body.outputs.values())
    targets += [(results[i], halves(buffer)[1]) for i, buffer in enumerate(buffers)]
    for index in (*scan.ys, *scan.saved):
        value = node.outputs[index]
        if value is not None:
            stacked = _result(table, value, memory, device)
            saved = index in scan.saved
            source = body.inputs[index - scan.saved.start] if saved else results[index]
            targets.append((source, row(stacked, scan)))
    _body(inner, targets, node, device, lower_nodes)
    _add_body(table, node, inner, [*read, *buffers, *(s for _, s in targets)], scan.iterations)
    for index, buffer in zip(scan.finals, buffers, strict=True):
        value = node.outputs[index]
        if value is not None:
            final = _result(table, value, memory, device)
            table.copy_into(half(buffer, scan.iterations % 2), final, node, device)


def _body(
    table: StorageTable, targets: Sequence[tuple[Value, Storage]], loop: Node, device: str, lower_nodes: LowerNodes
) -> None:
    """Lowers the body of a loop; each of ``targets`` is a value and where an iteration must leave it."""
    nodes = [n for n in table.graph.nodes if n.op.view is None and table.choices[n].kernel is not None]
    computed = {v for n in nodes for v in n.outputs if v is not None}
    for value, storage in targets:
        if value in computed and value not in table.destination and placeable(value, storage):
            table.destination[value] = storage
    lower_nodes(table, table.graph.nodes)
    for value, storage in targets:
        if table.destination.get(value) is not storage:
            table.copy_into(table.read(value, storage.base.memory), storage, loop, device)


LOWERINGS: Mapping[AnyOp, Callable[[StorageTable, Node, LowerNodes], None]] = {
    ops.scan: scan,
    ops.if_: branches,
    ops.loop: loop,
}
