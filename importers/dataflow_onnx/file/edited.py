"""Changes of an imported graph in the file that it came from: what did not change keeps its bytes."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from dataflow import Graph, Node, TensorType
from dataflow.errors import ModelError
from dataflow.plugin import Edit, Edited

from .forms.windows import MICROSOFT
from .functions import inlined
from .subgraph import copied, declare, keep_subgraph, reads
from .to_onnx import LOWEST_OPSET, nodes_of
from .value_types import CODE_OF, DTYPE_OF

T = TypeVar("T")
# Operators whose form has been the same since that opset, as they are written here.
_SINCE = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "MatMul", "Transpose", "Conv", "Gather", "Sqrt", "Identity"), 7),
    "Reshape": 7, "MatMulNBits": 7, "Max": 8, "Min": 8, "Cast": 9, "Dropout": 12,
    **dict.fromkeys(("ReduceSum", "QuantizeLinear", "DequantizeLinear"), 13),
}  # fmt: skip


class NotInFile(ModelError):
    """A change has no place in the file: in its opset, or inside of what one of its nodes became."""


def apply_edits(proto: Any, graph: Graph, changes: Edited) -> Any:
    """The file's model with a graph's changes; its tensors have the data that they had.

    Args:
        proto: the file's model; is changed.
        graph: has the added nodes and stored tensors.
        changes: of its names.

    Raises:
        NotInFile: a name isn't in the file, or an added node has no form in its opset.
        ModelError: names clash, or nodes would make a cycle.
    """
    computed = {name for node in proto.graph.node for name in node.output}
    inner = {edit.old for edit in changes.edits if not edit.readers}
    inner |= {edit.old for edit in changes.edits if edit.keeps} - _names(proto.graph)
    if proto.functions and not computed.issuperset(inner):
        proto = inlined(proto, "the model")
    for edit in changes.edits:
        _rename(proto.graph, edit, {name for name, value in graph.outputs.items() if value.name == edit.old})
    forms = [] if changes.form is None else _making(changes.form, changes.added)
    known = {v.name for node in forms for v in node.outputs if v is not None}
    added = _making(graph, changes.added - known)
    stored = [value for value in graph.initializers if value.name in changes.added]
    names = _names(proto.graph)
    clash = names & {name for name in changes.added if name}
    if clash:
        raise ModelError(f"the file has another value {sorted(clash)[0]!r}; rename the added one")
    protos, constants = nodes_of(graph, added, opset := _opset(proto), names)
    if changes.form is not None:
        before = nodes_of(changes.form, forms, opset, names | {tensor.name for tensor in constants})
        protos, constants = [*before[0], *protos], [*before[1], *constants]
    for made in protos:
        if opset < _SINCE.get(made.op_type, LOWEST_OPSET):
            raise NotInFile(
                f"the file has opset {opset}, in which the added node {made.name!r} ({made.op_type}) can't be written; "
                "save the model merged, or the adapters alone"
            )
    proto.graph.initializer.extend(constants)
    for value in stored:  # the data are filled in with those of all that changed
        proto.graph.initializer.add(name=value.name, data_type=CODE_OF[value.type.dtype], dims=value.type.sizes)
    if proto.ir_version < 4:  # stored tensors are inputs too
        for tensor in proto.graph.initializer[len(proto.graph.initializer) - len(constants) - len(stored) :]:
            declare(proto.graph.input.add(), tensor.name, TensorType(DTYPE_OF[tensor.data_type], tuple(tensor.dims)))
    _check_reads(proto.graph, protos)
    if protos:
        _name_apart(proto.graph, protos)
        _insert(proto.graph, protos)
    if any(made.domain == MICROSOFT for made in protos) and MICROSOFT not in {e.domain for e in proto.opset_import}:
        proto.opset_import.add(domain=MICROSOFT, version=1)
    gone = {edit.new for edit in changes.edits if not edit.readers}
    _remove_unread(proto.graph, gone | {edit.old for edit in changes.edits if edit.keeps})
    if changes.reduced:
        keep_subgraph(proto, {}, list(graph.outputs))
    return proto


def _making(graph: Graph, names: Collection[str]) -> list[Node]:
    """The nodes that give values of these names."""
    return [node for node in graph.nodes if any(v is not None and v.name in names for v in node.outputs)]


def names_after(stored: Mapping[str, T], changes: Edited) -> dict[str, T]:
    """What is known of a file's stored tensors, by the names that they have now."""
    found = dict(stored)
    for edit in changes.edits:
        if edit.old in found and not edit.keeps:
            found[edit.new] = found.pop(edit.old)
    return found


def _opset(proto: Any) -> int:
    return next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _rename(graph: Any, edit: Edit, outputs: Collection[str]) -> None:
    """Gives what defines a value its new name, unless it keeps it, and what reads it where the readers follow.

    Args:
        graph: of the file.
        edit: of one name.
        outputs: of the graph that are the value under other names too.

    Raises:
        ModelError: nothing defines it.
    """
    found = False
    name_now = edit.old if edit.keeps else edit.new
    for node in graph.node:
        for index, name in enumerate(node.output):
            if name == edit.old:
                node.output[index], found = name_now, True
    for record in (*graph.initializer, *graph.input):
        if record.name == edit.old:
            record.name, found = name_now, True
    if not found and not edit.added:
        raise NotInFile(
            f"the file has no value {edit.old!r}: it is one inside of what a node of the file became, or one that "
            "loading computed; save the model merged, or the adapters alone"
        )
    if edit.keeps:
        _redirect(graph, edit, outputs)
    elif edit.readers:
        for node in graph.node:
            _rename_reads(node, edit)
        for record in (*graph.value_info, *graph.output):
            if record.name == edit.old:
                record.name = edit.new


def _redirect(graph: Any, edit: Edit, outputs: Collection[str]) -> None:
    """Has nodes read another value, but those that only give an output its name."""
    makers = {name: node for node in graph.node for name in node.output}
    same = {edit.old}
    for name in outputs:
        chain = list[str]()
        while name != edit.old and name in makers and len(makers[name].input) > 0:
            chain.append(name)
            name = makers[name].input[0]
        same.update(chain if name == edit.old else ())
    for node in graph.node:
        if same.isdisjoint(node.output):
            for name in same:
                _rename_reads(node, replace(edit, old=name))


def _rename_reads(node: Any, edit: Edit) -> None:
    """Renames what a node and its bodies read."""
    for index, name in enumerate(node.input):
        if name == edit.old:
            node.input[index] = edit.new
    for attribute in node.attribute:
        for body in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
            own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
            own |= {name for inner in body.node for name in inner.output}
            if edit.old in own:
                continue
            for inner in body.node:
                _rename_reads(inner, edit)
            for value in body.output:
                if value.name == edit.old:
                    value.name = edit.new


def _names(graph: Any) -> set[str]:
    """Names of all that the file defines outside of bodies."""
    return {
        *(name for node in graph.node for name in node.output),
        *(record.name for record in (*graph.initializer, *graph.input)),
    }


def _remove_unread(graph: Any, names: set[str]) -> None:
    """Removes nodes that made values of these names, where nothing reads them, and what was there for them alone."""
    read = Counter(name for node in graph.node for name in reads(node))
    read.update(value.name for value in graph.output)
    makers = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    queue, gone, unread = [name for name in names if not read[name]], set[int](), set[str]()
    while queue:
        name = queue.pop()
        index = makers.get(name)
        if index is None:
            unread.add(name)
        elif index not in gone and not any(read[output] for output in graph.node[index].output if output):
            gone.add(index)
            for source in reads(graph.node[index]):
                read[source] -= 1
                if not read[source]:
                    queue.append(source)
    for index in sorted(gone, reverse=True):
        del graph.node[index]
    stored = unread & {tensor.name for tensor in graph.initializer}
    for field in (graph.initializer, graph.input):
        for index in range(len(field) - 1, -1, -1):
            if field[index].name in stored | (names & unread):
                del field[index]


def _check_reads(graph: Any, added: Sequence[Any]) -> None:
    """Raises ModelError where an added node reads what the file doesn't have."""
    known = _names(graph).union(*(node.output for node in added))
    for node in added:
        for name in node.input:
            if name and name not in known:
                raise NotInFile(
                    f"the added node {node.name!r} reads {name!r}, which the file doesn't have: it is inside of what a "
                    "node of the file became; save the model merged, or the adapters alone"
                )


def _name_apart(graph: Any, added: Sequence[Any]) -> None:
    """Gives added nodes names that no node has."""
    taken = {node.name for node in graph.node}
    for node in added:
        while node.name and node.name in taken:
            node.name += "'"
        taken.add(node.name)


def _insert(graph: Any, added: Sequence[Any]) -> None:
    """Puts nodes behind those whose results they read; the others keep their order as far as they can."""
    nodes = [*graph.node, *added]
    makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
    sources = [{makers[name] for name in reads(node) if name in makers} for node in nodes]
    first = len(graph.node)
    behind = list(range(first))
    for index in range(first, len(nodes)):
        behind.append(max((behind[source] for source in sources[index] if source < index), default=-1))
    waits = [len(found) for found in sources]
    readers: dict[int, list[int]] = {}
    for index, found in enumerate(sources):
        for source in found:
            readers.setdefault(source, []).append(index)
    ready = [(behind[index], index) for index, count in enumerate(waits) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready)[1])
        for reader in readers.get(order[-1], ()):
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (behind[reader], reader))
    if len(order) != len(nodes):
        raise ModelError("the added nodes would make a cycle in the file")
    copies = [copied(nodes[index]) for index in order]
    graph.ClearField("node")
    graph.node.extend(copies)
