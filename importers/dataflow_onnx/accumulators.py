"""What a loop only appends to: a sequence, or a tensor that grows along an axis, which no iteration reads.

TorchScript's lists become such. What each iteration appends is stacked then, as a result of the loop: nothing that it
carries grows, and it can be one node.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from dataflow import Value, ops
from dataflow.errors import ModelError

from .emit import merged, slice_axis
from .file.records import GraphRecord, NodeRecord, free_names
from .importer import Importer
from .shape_eval import axis_in
from .tensor import Tensor


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A value that a loop carries, and only appends to.

    Attributes:
        row: name, in the body, of what an iteration appends.
        axis: along which a tensor grows; None of a sequence.
        nodes: of the body, which append it.
        in_front: each is put before what is there.
    """

    row: str
    axis: int | None
    nodes: tuple[NodeRecord, ...]
    in_front: bool = False


def accumulators(body: GraphRecord) -> dict[int, Accumulator]:
    """By position among what a loop carries."""
    reads = Counter(body.outputs)
    for reader in body.nodes:
        reads.update(reader.reads())
    makers = {name: maker for maker in body.nodes for name in maker.outputs}
    found = {}
    for position, (name, result) in enumerate(zip([*body.inputs][2:], body.outputs[1:], strict=False)):
        nodes: list[NodeRecord] = []
        node: NodeRecord | None = makers.get(result)
        while node is not None and reads[node.outputs[0]] == 1 and not node.domain:
            nodes.append(node)
            if node.op != "Identity":
                break
            node = makers.get(node.inputs[0])
        if not nodes or reads[name] != 1 or len(nodes[-1].inputs) < 2:
            continue
        last = nodes[-1]
        first, row, *others = last.inputs
        in_front = last.op == "Concat" and row == name
        if in_front:
            first, row = row, first
        if first != name or row == name or any(others) or last.op not in ("SequenceInsert", "Concat"):
            continue
        axis = last.attributes.get("axis") if last.op == "Concat" else None
        if last.op == "Concat" and axis is None:
            continue
        found[position] = Accumulator(row, axis, tuple(nodes), in_front)
    return found


def hoisted(body: GraphRecord) -> GraphRecord:
    """The body, in which a branch gives what it appends to a sequence where the other appends to it too."""
    nodes: list[NodeRecord] = []
    taken = {*body.inputs, *body.initializers, *free_names(body), *(n for node in body.nodes for n in node.outputs)}
    for node in body.nodes:
        nodes += _parted(node, taken) if node.op == "If" and not node.domain else [node]
    return body if len(nodes) == len(body.nodes) else dataclasses.replace(body, nodes=tuple(nodes))


def _parted(node: NodeRecord, taken: set[str]) -> list[NodeRecord]:
    """An ``If``, and the nodes that append behind it what its branches did; their names are none of ``taken``."""
    branches = {key: hoisted(value) for key, value in node.attributes.items() if isinstance(value, GraphRecord)}
    outputs, behind = list(node.outputs), list[NodeRecord]()
    for index, name in enumerate(node.outputs):
        inserts = [_insert(branch, index) for branch in branches.values()]
        first = inserts[0] if inserts else None
        if first is None or not all(one is not None and one.inputs[0] == first.inputs[0] for one in inserts):
            continue
        for (key, branch), one in zip(branches.items(), inserts, strict=True):
            assert one is not None
            given = (*branch.outputs[:index], one.inputs[1], *branch.outputs[index + 1 :])
            kept = tuple(other for other in branch.nodes if other is not one)
            branches[key] = dataclasses.replace(branch, nodes=kept, outputs=given)
        outputs[index] = f"{name}/appended"
        while outputs[index] in taken:
            outputs[index] += "'"
        behind.append(
            dataclasses.replace(first, name=node.name, inputs=(first.inputs[0], outputs[index]), outputs=(name,))
        )
    if not behind and all(branches[key] is node.attributes[key] for key in branches):
        return [node]
    changed = dataclasses.replace(node, outputs=tuple(outputs), attributes={**node.attributes, **branches})
    return [changed, *behind]


def _insert(branch: GraphRecord, index: int) -> NodeRecord | None:
    """The node that gives a result of a branch, and nothing else, if it appends to a sequence of a graph around it."""
    name = branch.outputs[index] if index < len(branch.outputs) else ""
    maker = next((node for node in branch.nodes if name in node.outputs), None)
    if maker is None or maker.op != "SequenceInsert" or maker.domain or len(maker.inputs) != 2:
        return None
    defined = {n for node in branch.nodes for n in node.outputs} | branch.initializers.keys()
    read = [*branch.outputs, *(n for node in branch.nodes for n in node.reads())]
    return maker if maker.inputs[0] not in defined and read.count(name) == 1 else None


def stacking(body: GraphRecord, found: Mapping[int, Accumulator]) -> GraphRecord:
    """The body, which gives what it appended as its last results instead of carrying it."""
    names = [*body.inputs]
    gone = {names[2 + position] for position in found}
    dropped = {id(node) for one in found.values() for node in one.nodes}
    inputs = {name: type_ for name, type_ in body.inputs.items() if name not in gone}
    outputs = tuple(name for index, name in enumerate(body.outputs) if index - 1 not in found)
    nodes = tuple(node for node in body.nodes if id(node) not in dropped)
    rows = tuple(one.row for one in found.values())
    return dataclasses.replace(body, inputs=inputs, outputs=(*outputs, *rows), nodes=nodes)


def appended(c: Importer, one: Accumulator, operand: Tensor, rows: Value) -> Tensor | Value:
    """What a loop appended to, behind the loop.

    Args:
        c: importer of the graph around the loop.
        one: it.
        operand: what it was before the first iteration.
        rows: what was appended.

    Raises:
        ModelError: it isn't like what it was appended to.
    """
    if one.axis is None:
        if operand.elements == ():
            return Tensor(operand.name, rows=rows)
        first = c.rows(operand)
        if first is None or (first.type.dtype, first.type.shape[1:]) != (rows.type.dtype, rows.type.shape[1:]):
            raise ModelError(f"the tensors of {operand.name!r} aren't like those that a loop appends")
        return Tensor(operand.name, rows=ops.concat(first, rows, axis=0))
    start = c.value(operand)
    axis = axis_in(one.axis, start.type.rank)
    if one.in_front:
        rows = slice_axis(rows, 0, rows.type.shape[0] - 1, -1, -1)
    both = (start, merged(rows, axis))
    grown: Value = ops.concat(*(both[::-1] if one.in_front else both), axis=axis)
    return grown
