"""A file's local functions replaced by their nodes: what they would stand for is computed before, calls are completed.

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


def inlined(proto: Any, path: str) -> Any:
    """The model with its local functions replaced by their nodes; itself where it has none.

    Args:
        proto: the model; its calls get the attributes that they leave at their defaults, functions the model's opset.
        path: of the file.

    Raises:
        ModelError: a function calls itself, they stand for too much, are of another opset, or can't be replaced.
    """
    if not proto.functions:
        return proto
    from onnx import inliner

    try:
        check_functions(proto)
        complete_calls(proto)
        align_opsets(proto)
        made = inliner.inline_local_functions(proto)
        called = {(node.domain, node.op_type) for node in _with_bodies(made.graph.node)}
        names = ", ".join([str(f.name) for f in made.functions if (f.domain, f.name) in called][:5])
        if names:
            raise ModelError(f"the local functions ({names}) are of another opset than the model, which differs there")
        return made
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None
    except Exception as error:  # whatever the inliner makes of a malformed function
        names = ", ".join(str(f.name) for f in proto.functions[:5])
        raise ModelError(f"{path}: the local functions ({names}) can't be replaced by their nodes: {error}") from None


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


def align_opsets(proto: Any) -> None:
    """Gives functions the model's opset where each of their operators is the same in it: the inliner leaves others.

    ONNX asks of a file that they are the same (its checker's ``check_opset_compatibility``). Calls of local functions
    are found by name, whatever version of their domain is imported.
    """
    wanted = {opset.domain: opset.version for opset in proto.opset_import}
    local = {(function.domain, function.name) for function in proto.functions}
    for function in proto.functions:
        for opset in function.opset_import:
            domain, version = opset.domain, wanted.get(opset.domain, opset.version)
            used = {node.op_type for node in _with_bodies(function.node) if node.domain == domain}
            used -= {name for where, name in local if where == domain}
            known = ([_since(op, domain, v) for v in (opset.version, version)] for op in used)
            if version != opset.version and all(first == second is not None for first, second in known):
                opset.version = version


def _since(operator: str, domain: str, version: int) -> int | None:
    """The opset since which an operator is as in this one; None of an unknown operator."""
    from onnx import defs

    try:
        return int(defs.get_schema(operator, version, domain).since_version)
    except defs.SchemaError:
        return None


def _with_bodies(nodes: Iterable[Any]) -> Iterator[Any]:
    """Nodes and those of their bodies."""
    for node in nodes:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _with_bodies(attribute.g.node)
            for body in attribute.graphs:
                yield from _with_bodies(body.node)
