"""A subgraph of an ONNX file: what some of its values need, from others on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dataflow import Dim, TensorType
from dataflow.errors import InputError

from .value_types import CODE_OF


def keep_subgraph(proto: Any, inputs: Mapping[str, TensorType], outputs: Sequence[str] | None) -> None:
    """Reduces a model to the nodes between some of its values.

    Args:
        proto: is changed.
        inputs: values that need not be computed, by name; those that are read become inputs of these types.
        outputs: the results, in order; None: everything that nodes of the main graph compute.

    Raises:
        InputError: there is no such value.
    """
    graph = proto.graph
    made = {name: index for index, node in enumerate(graph.node) for name in node.output if name}
    results = list(made) if outputs is None else list(outputs)
    known = {*made, *(t.name for t in graph.initializer), *(v.name for v in graph.input)}
    missing = [name for name in (*results, *inputs) if name not in known]
    if missing:
        raise InputError(f"the file has no value {missing[0]!r}")
    needed, used, queue = set(results), set[int](), list(results)
    while queue:
        index = made.get(queue.pop())
        if index is not None and index not in used:
            used.add(index)
            own = set(reads(graph.node[index]))
            needed |= own
            queue += own - inputs.keys()
    kept = [graph.node[index] for index in sorted(used)]
    computed = {name for node in kept for name in node.output}
    declared = [value for value in graph.input if value.name in needed and value.name not in inputs]
    stored = [tensor for tensor in graph.initializer if tensor.name in needed and tensor.name not in inputs]
    for field, records in (("node", kept), ("input", declared), ("initializer", stored), ("value_info", [])):
        copies = [copied(record) for record in records]
        graph.ClearField(field)
        getattr(graph, field).extend(copies)
    for name, type_ in inputs.items():
        if name in needed - computed:
            declare(graph.input.add(), name, type_)
    graph.ClearField("output")
    for name in results:
        graph.output.add().name = name


def copied(record: Any) -> Any:
    """A copy that outlives the field that the record is of."""
    copy = type(record)()
    copy.CopyFrom(record)
    return copy


def declare(value: Any, name: str, type_: TensorType) -> None:
    """Fills the record of an input."""
    value.name = name
    value.type.tensor_type.elem_type = CODE_OF[type_.dtype]
    value.type.tensor_type.shape.SetInParent()
    for size in type_.shape:
        dim = value.type.tensor_type.shape.dim.add()
        if isinstance(size, Dim):
            dim.dim_param = str(size)
        else:
            dim.dim_value = size


def reads(node: Any) -> Iterator[str]:
    """Names that a node reads, those that its bodies read of the graphs around them included."""
    yield from filter(None, node.input)
    for attribute in node.attribute:
        for body in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
            own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
            own |= {name for inner in body.node for name in inner.output}
            yield from (name for inner in body.node for name in reads(inner) if name not in own)
            yield from (value.name for value in body.output if value.name not in own)
