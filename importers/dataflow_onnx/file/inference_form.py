"""A file in training mode -> in inference mode: its batch norms take the running statistics, and no node drops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dataflow.errors import ModelError

from .records import plain_domain

_TRAINS_BY_ATTRIBUTE = 14  # the opset since which a batch norm has ``training_mode``
_TESTS_BY_ATTRIBUTE = 7  # and the one before which nodes have ``is_test``


def as_in_inference(proto: Any) -> int:
    """Changes the nodes of a model without local functions that are in training mode; how many there were.

    Batch norms whose running statistics are stored normalize by these, and dropout nodes pass on what they get. What
    an exporter writes as a batch norm without running ones stays: the standardized weights of a convolution, and a
    module that keeps no statistics.

    Raises:
        ModelError: something reads the statistics that such a batch norm gives.
    """
    opset = next((int(entry.version) for entry in proto.opset_import if not plain_domain(entry.domain)), 1)
    graph = proto.graph
    given = {value.name for value in graph.input} - {tensor.name for tensor in graph.initializer}
    return _changed(graph, opset, given, set())


def _changed(graph: Any, opset: int, varying: set[str], stored: set[str]) -> int:
    """As above, of a graph or body; ``varying`` are names that depend on inputs, ``stored`` those of tensors."""
    stored = stored | {tensor.name for tensor in graph.initializer}
    stored |= {node.output[0] for node in graph.node if node.op_type == "Constant" and node.output}
    varying = _varying(graph.node, varying)
    read = {name for node in graph.node for name in _reads(node)} | {value.name for value in graph.output}
    count = 0
    for node in graph.node:
        if not plain_domain(node.domain):
            if node.op_type == "BatchNormalization":
                running = node.input[3:5]  # fewer than two where the node is malformed, which the import says
                if len(running) == 2 and node.input[0] in varying and stored.issuperset(running):
                    count += _norm(node, opset, read)
            elif node.op_type == "Dropout":
                count += _dropout(node, opset)
        for body in _bodies(node):
            count += _changed(body, opset, varying | {value.name for value in body.input}, stored)
    return count


def _norm(node: Any, opset: int, read: set[str]) -> bool:
    trains = bool(_number(node, "training_mode")) if opset >= _TRAINS_BY_ATTRIBUTE else any(node.output[1:])
    if opset < _TESTS_BY_ATTRIBUTE:
        trains = not _number(node, "is_test")
    if not trains:
        return False
    used = [name for name in node.output[1:] if name in read]
    if used:
        raise ModelError(
            f"mode='inference': BatchNormalization {node.name or node.output[0]!r} gives {used[0]!r}, statistics "
            "of the batch, which are read; expected one whose first result alone is"
        )
    del node.output[1:]
    _tests(node, opset)
    return True


def _dropout(node: Any, opset: int) -> bool:
    """Without ``training_mode``, its third operand, a node never drops."""
    if opset < _TESTS_BY_ATTRIBUTE:
        trains = not _number(node, "is_test")
        _tests(node, opset)
        return trains
    trains = len(node.input) > 2 and bool(node.input[2])
    del node.input[2:]
    return trains


def _tests(node: Any, opset: int) -> None:
    """Sets the attributes of a node in inference mode."""
    kept = [attribute for attribute in node.attribute if attribute.name not in ("training_mode", "is_test")]
    del node.attribute[:]
    node.attribute.extend(kept)
    if opset < _TESTS_BY_ATTRIBUTE:
        test = node.attribute.add(name="is_test", i=1)
        test.type = test.INT


def _number(node: Any, name: str) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), 0)


def _varying(nodes: Iterable[Any], names: set[str]) -> set[str]:
    """These names, and those of results that depend on them, in whatever order the nodes are."""
    found, before = set(names), -1
    while len(found) > before:
        before = len(found)
        for node in nodes:
            if not found.isdisjoint(_reads(node)):
                found.update(name for name in node.output if name)
    return found


def _reads(node: Any) -> Iterator[str]:
    """Names of its operands, and of all that nodes of its bodies read."""
    yield from node.input
    for body in _bodies(node):
        yield from (value.name for value in body.output)
        for inner in body.node:
            yield from _reads(inner)


def _bodies(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.type == attribute.GRAPH:
            yield attribute.g
