"""Nodes with bodies -> loops and branches on one device; see ``loops`` for where their values lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..ir.graph import Node
from ..ir.lowered import LoweredNode, Storage
from ..ir.types import TensorType
from ..ir.value import Value
from .storage import Scan, half, halves, make_loop, placeable, row

if TYPE_CHECKING:
    from .lowering import Lowering


def _result(into: Lowering, value: Value, memory: str, device: str) -> Storage:
    """A root of its own for a result."""
    storage = into.storage[value] = into.root(value.name, value.type, memory, "computed")
    into.device_of[storage.root] = device
    return storage


def _add_body(
    into: Lowering, node: Node, inner: Lowering, around: Sequence[Storage], iterations: int, **how: Any
) -> None:
    """Adds a lowered body; ``around`` is what it shares with the outside."""
    into.count = inner.count
    known = {s.root for s in around} | {s.storage.root for s in into.stored.values()}
    items = [item for item in inner.items if isinstance(item, LoweredNode)]
    into.items.append(make_loop(node, into.choices[node].device, items, iterations, lambda s: s.root in known, **how))


def branches(into: Lowering, node: Node) -> None:
    """Two bodies, of which one runs; each leaves its results in the same places."""
    device, memory = into.choices[node].device, into.registry.devices[into.choices[node].device].memory
    condition, *captures = [into.bring(v, device, node) for v in node.inputs if v is not None]
    places = [None if v is None else _result(into, v, memory, device) for v in node.outputs]
    for index, choice in enumerate(into.choices[node].bodies):
        inner, body = into.inside(node, index), choice.graph
        inner.storage.update(zip(body.inputs, captures, strict=True))
        results = zip(body.outputs.values(), places, strict=True)
        _body(inner, [(value, place) for value, place in results if place is not None], node, device)
        around = [condition, *captures, *(p for p in places if p is not None)]
        _add_body(into, node, inner, around, 1, kind="when", when=index == 0, control=(condition,))


def loop(into: Lowering, node: Node) -> None:
    """A body that runs as long as a condition holds."""
    device, memory = into.choices[node].device, into.registry.devices[into.choices[node].device].memory
    limit, condition, *rest = [into.bring(v, device, node) for v in node.inputs if v is not None]
    carried = int(node.attributes["n_carries"])
    inner, body = into.inside(node), into.choices[node].bodies[0].graph
    places = []
    for index, start in enumerate((condition, *rest[:carried])):
        place = into.root(f"{node.name}:carry{index}", start.type, memory, "computed")
        into.device_of[place.root] = device
        into.copy_into(start, place, node, device)
        places.append(place)
    number = into.root(f"{node.name}:iteration", body.inputs[0].type, memory, "computed")
    first = node.outputs[0]
    made = into.root(f"{node.name}:iterations", body.inputs[0].type, memory, "computed")
    if first is not None:
        into.storage[first] = made
        into.device_of[made.root] = device
    inner.count = into.count
    inner.storage.update(zip(body.inputs, (number, *places, *rest[carried:]), strict=True))
    _carry(inner, list(zip(body.outputs.values(), places, strict=True)), node, device)
    around = [limit, condition, number, made, *places, *rest]
    control, counts = (limit, places[0]), (number, made)
    iterations = int(node.attributes["max_iterations"])
    _add_body(into, node, inner, around, iterations, kind="while", control=control, counts=counts)
    for value, place in zip(node.outputs[1:], places[1:], strict=True):
        if value is not None:
            into.storage[value] = place


def _carry(into: Lowering, targets: Sequence[tuple[Value, Storage]], loop: Node, device: str) -> None:
    """Lowers the body of a loop that leaves each value in the place where the next iteration reads it."""
    for node in into.graph.nodes:
        into.node(node)
    carried = {storage.root for _, storage in targets}
    results = []
    for value, target in targets:
        source = into.read(value, target.root.memory)
        if source.root in carried and source != target:  # of another carry, which is about to change
            source = into.fresh(source, loop, device)
        results.append((source, target))
    for source, target in results:
        if source != target:
            into.copy_into(source, target, loop, device)


def scan(into: Lowering, node: Node) -> None:
    """A loop over rows whose body runs on one device; see loops.py."""
    choice, scan = into.choices[node], Scan.of(node)
    device, memory = choice.device, into.registry.devices[choice.device].memory
    read = [into.bring(v, device, node) for v in node.inputs if v is not None]
    inner = into.inside(node)
    places, body = [], choice.bodies[0].graph
    for index in scan.carries:
        start = read[index]
        shape = (2, *start.type.sizes)
        place = into.root(f"{node.name}:carry{index}", TensorType(start.type.dtype, shape), memory, "computed")
        inner.count = into.count
        into.copy_into(start, half(place, 0), node, device)
        inner.storage[body.inputs[index]] = halves(place)[0]
        places.append(place)
    for index in scan.xs:
        inner.storage[body.inputs[index]] = row(read[index], scan)
    for index in scan.captures:
        inner.storage[body.inputs[index]] = read[index]
    targets: list[tuple[Value, Storage]] = []
    results = list(body.outputs.values())
    targets += [(results[i], halves(place)[1]) for i, place in enumerate(places)]
    for index in (*scan.ys, *scan.saved):
        value = node.outputs[index]
        if value is not None:
            stacked = _result(into, value, memory, device)
            saved = index in scan.saved
            source = body.inputs[index - scan.saved.start] if saved else results[index]
            targets.append((source, row(stacked, scan)))
    inner.count = into.count
    _body(inner, targets, node, device)
    _add_body(into, node, inner, [*read, *places, *(s for _, s in targets)], scan.iterations)
    for index, place in zip(scan.finals, places, strict=True):
        value = node.outputs[index]
        if value is not None:
            final = _result(into, value, memory, device)
            into.copy_into(half(place, scan.iterations % 2), final, node, device)


def _body(into: Lowering, targets: Sequence[tuple[Value, Storage]], loop: Node, device: str) -> None:
    """Lowers the body of a loop; each of ``targets`` is a value and where an iteration must leave it."""
    computed = {v for n in into.graph.nodes if n.op.view is None for v in n.outputs if v is not None}
    for value, storage in targets:
        if value in computed and value not in into.wanted and placeable(value, storage):
            into.wanted[value] = storage
    for node in into.graph.nodes:
        into.node(node)
    for value, storage in targets:
        if into.wanted.get(value) is not storage:
            into.copy_into(into.read(value, storage.root.memory), storage, loop, device)


LOWERINGS = {"scan": scan, "if_": branches, "loop": loop}
