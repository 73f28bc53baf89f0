"""What is done to a file's local functions before they are inlined: their size then is computed, calls are completed.

A function that calls another twice doubles it, so a small file can expand to more nodes than fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dataflow.errors import ModelError

MOST_NODES = 200_000  # that functions may stand for; the largest exported models have some ten thousand
MOST_BYTES = (1 << 31) - 1  # of a message of protobuf
MOST_CALLS = 100  # within calls

_Key = tuple[str, str, str]  # domain, name and overload


@dataclass(frozen=True, slots=True)
class _Extent:
    """The size of a function once inlined, with those that it calls."""

    nodes: int
    bytes: int
    calls: int


def check_functions(proto: Any) -> None:
    """Checks the functions of a model before they are inlined.

    Raises:
        ModelError: one calls itself, or they exceed the limits once inlined.
    """
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    extents: dict[_Key, _Extent] = {}
    opened: set[_Key] = set()

    def extent(nodes: Iterable[Any], size: int) -> _Extent:
        count = calls = 0
        for node in _with_bodies(nodes):
            key = (node.domain, node.op_type, node.overload)
            count += 1
            if key in functions:
                inner = extent_of(key)
                count, size, calls = count + inner.nodes, size + inner.bytes, max(calls, inner.calls + 1)
        return _Extent(count, size, calls)

    def extent_of(key: _Key) -> _Extent:
        if key in opened:
            raise ModelError(f"the local function {key[1]!r} calls itself")
        if len(opened) > MOST_CALLS:
            raise ModelError(f"local functions call each other more than {MOST_CALLS} deep, down to {key[1]!r}")
        if key not in extents:
            opened.add(key)
            extents[key] = extent(functions[key].node, functions[key].ByteSize())
            opened.remove(key)
        return extents[key]

    for key in functions:
        extent_of(key)
    total = extent(proto.graph.node, proto.graph.ByteSize())
    if total.nodes > MOST_NODES or total.bytes > MOST_BYTES or total.calls > MOST_CALLS:
        raise ModelError(
            f"its local functions stand for {total.nodes} nodes of {total.bytes} bytes, {total.calls} calls deep; at "
            f"most {MOST_NODES} nodes, {MOST_BYTES} bytes and {MOST_CALLS} calls are replaced by their nodes"
        )


def complete_calls(proto: Any) -> None:
    """Gives calls of a model's functions the attributes that they leave at their defaults: the inliner knows none."""
    defaults = {(f.domain, f.name, f.overload): list(f.attribute_proto) for f in proto.functions if f.attribute_proto}
    if not defaults:
        return
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        for node in _with_bodies(nodes):
            given = {attribute.name for attribute in node.attribute}
            missing = defaults.get((node.domain, node.op_type, node.overload), ())
            node.attribute.extend(attribute for attribute in missing if attribute.name not in given)


def _with_bodies(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes and those of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _with_bodies(attribute.g.node)
            for body in attribute.graphs:
                yield from _with_bodies(body.node)
