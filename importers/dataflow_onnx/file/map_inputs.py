"""Inputs that are maps: matrices whose columns are the keys that the nodes of the file read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import onnx  # noqa: TID251 - the types are those of protobuf

from dataflow import DType, TensorType, int64, string
from dataflow.errors import ModelError

from .records import GraphRecord, NodeRecord
from .value_types import DTYPE_OF

Keys: TypeAlias = "tuple[int, ...] | tuple[str, ...]"
_MOST_KEYS = 1 << 22  # a sparse CastMap has as many columns as its file says


def with_vocabularies(graph: GraphRecord, proto: onnx.GraphProto) -> GraphRecord:
    """The main graph with the keys of its inputs that are maps, and as many columns.

    Raises:
        ModelError: a node reads one that can't, or not beside the others.
    """
    given = {v.name: DTYPE_OF[v.type.map_type.key_type] for v in proto.input if v.type.HasField("map_type")}
    found = {name: _vocabulary(name, key, graph.nodes) for name, key in given.items()}
    inputs = dict(graph.inputs)
    for name, keys in found.items():
        matrix = inputs[name]
        if keys and matrix is not None:
            inputs[name] = TensorType(matrix.dtype, (matrix.shape[0], len(keys)))
    return replace(graph, inputs=inputs, vocabularies=found) if found else graph


def _vocabulary(name: str, key: DType, nodes: Sequence[NodeRecord]) -> Keys:
    """The keys that the nodes read of an input; none where they read all of them, in their order."""
    readers = [node for node in _with_bodies(nodes) if name in node.inputs]
    if not readers:
        raise ModelError(f"input {name!r} is a map that no node reads")
    read = [_keys(name, node, key) for node in readers]
    if any(read) and not all(read):
        one = readers[read.index(())].describe()
        raise ModelError(f"input {name!r} is a map that {one} reads as a list of any length, and others by its keys")
    return tuple({each: None for keys in read for each in keys})  # type: ignore[return-value]


def _keys(name: str, node: NodeRecord, key: DType) -> Keys:
    """The keys that a node reads; none for all."""
    given = node.attributes
    if (node.domain, node.op) == ("ai.onnx.ml", "DictVectorizer"):
        attribute = "string_vocabulary" if key == string else "int64_vocabulary"
        if not given.get(attribute):
            raise ModelError(f"input {name!r} is a map with keys of {key}; {node.describe()} has no {attribute}")
        return tuple(given[attribute])
    if (node.domain, node.op) == ("ai.onnx.ml", "CastMap"):
        if key != int64:
            raise ModelError(f"input {name!r} is a map with keys of {key}; {node.describe()} reads those of int64")
        if given.get("map_form", "DENSE") == "DENSE":
            return ()
        count = given.get("max_map", 1)
        if not 0 < count <= _MOST_KEYS:
            raise ModelError(f"{node.describe()}: max_map is {count}; expected 1 to {_MOST_KEYS}")
        return tuple(range(count))
    raise ModelError(
        f"input {name!r} is a map that {node.describe()} reads; expected DictVectorizer or CastMap of ai.onnx.ml"
    )


def _with_bodies(nodes: Sequence[NodeRecord]) -> Iterator[NodeRecord]:
    for node in nodes:
        yield node
        for body in node.bodies:
            yield from _with_bodies(body.nodes)
