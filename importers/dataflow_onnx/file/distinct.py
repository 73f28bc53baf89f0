"""Stored tensors of bodies by names of their own: to ONNX a name in one body is nothing to another body.

A model has its stored tensors by name. Where several bodies each have one called ``W``, the first that is met keeps the
name, unless a value that some body computes has it, and the others get one that nothing in the file has. Those of
bodies within a body are given to the outermost one, whose tensors belong to the main graph when it is imported, and
train. Floats that nodes of ``Constant`` hold in a body are stored tensors of it, as initializers are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .noted import are_floats, has_floats
from .records import Array, GraphRecord, ModelRecord, NodeRecord, plain_domain, stored_by
from .value_types import DTYPE_OF

_Body = tuple[Any, Iterable[str], Iterable[tuple[str, list[str], Iterable[str]]]]
# a body of a node; its inputs; of its nodes each op with the names of attributes and outputs


class Names:
    """The names that stored tensors have in a model; the file's records and its protobuf are walked alike.

    Args:
        outside: names of the main graph, and of what bodies compute.
        everywhere: all names of the file.

    Attributes:
        held: those of tensors that nodes of ``Constant`` hold.
    """

    def __init__(self, outside: Iterable[str], everywhere: Iterable[str]) -> None:
        self._met: dict[str, Array | None] = dict.fromkeys(outside)
        self._taken = {*everywhere, *self._met}
        self.held: set[str] = set()

    def of(self, name: str, array: Array | None = None) -> str:
        """That of the next stored tensor of a body, which the file calls ``name``."""
        if name not in self._met:
            self._met[name] = array
        elif array is None or self._met[name] is not array:  # else it is met again, as where a function is called twice
            number, given = 2, name
            while (name := f"{given}.{number}") in self._taken:
                number += 1
            self._taken.add(name)
        return name


def distinct(record: ModelRecord) -> ModelRecord:
    """The model, whose bodies' stored tensors have names that nothing else has; what is noted has them too."""
    graph, noted = record.graph, record.noted
    if not any(node.bodies for node in graph.nodes):
        return record
    names = Names(_own(graph) | _computed(graph, _bodies_of_record), _everywhere(graph))
    nodes = tuple([_with_bodies(_renamed(node, {}, names), _raised) for node in graph.nodes])
    if names.held and has_floats(graph):
        noted = dataclasses.replace(noted, buffers=noted.buffers | names.held)
    return dataclasses.replace(record, graph=dataclasses.replace(graph, nodes=nodes), noted=noted)


def stored_in_bodies(graph: Any) -> Iterator[tuple[Any, str]]:
    """Each stored tensor of bodies in a GraphProto, with the name that ``distinct`` gives it."""
    outside = {value.name for value in (*graph.input, *graph.initializer)}
    outside |= {name for node in graph.node for name in node.output} | _computed(graph, _bodies_of_proto)
    yield from _stored(graph, Names(outside, _names_in(graph)))


def _stored(graph: Any, names: Names) -> Iterator[tuple[Any, str]]:
    for node in graph.node:
        bodies = [(attribute.name, attribute.g) for attribute in node.attribute if attribute.HasField("g")]
        for _, body in sorted(bodies, key=_first_branch):
            for tensor in body.initializer:
                yield tensor, names.of(tensor.name)
            for node_of_body in body.node:
                held = _held(node_of_body)
                if held is not None:
                    yield held, names.of(node_of_body.output[0])
            yield from _stored(body, names)


def _held(node: Any) -> Any:
    """The floats that a node of a body holds, as a TensorProto; else None. See ``_with_constants``."""
    if node.op_type != "Constant" or plain_domain(node.domain) or len(node.attribute) != 1:
        return None
    attribute = node.attribute[0]
    tensor = attribute.t if attribute.name == "value" and attribute.HasField("t") else None
    return tensor if tensor is not None and are_floats(DTYPE_OF[tensor.data_type].numpy, tensor.dims) else None


def _names_in(graph: Any) -> set[str]:
    found = {value.name for value in (*graph.input, *graph.initializer, *graph.output)}
    for node in graph.node:
        found |= {*node.input, *node.output}
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= _names_in(attribute.g)
    return found


def _bodies_of_proto(graph: Any) -> Iterator[_Body]:
    for body in [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]:
        nodes = [(node.op_type, [attribute.name for attribute in node.attribute], node.output) for node in body.node]
        yield body, [value.name for value in body.input], nodes


def _bodies_of_record(graph: GraphRecord) -> Iterator[_Body]:
    for body in (body for node in graph.nodes for body in node.bodies):
        yield body, body.inputs, [(node.op, [*node.attributes], node.outputs) for node in body.nodes]


def _first_branch(body: tuple[str, Any]) -> bool:
    """Puts the branch that an If converts first to the front."""
    return body[0] != "then_branch"


def _own(graph: GraphRecord) -> set[str]:
    return {*graph.inputs, *graph.initializers, *(name for node in graph.nodes for name in node.outputs)}


def _everywhere(graph: GraphRecord) -> set[str]:
    found = _own(graph) | {*graph.outputs}
    for node in graph.nodes:
        found |= {*node.inputs, *(name for body in node.bodies for name in _everywhere(body))}
    return found


def _computed(graph: Any, bodies: Callable[[Any], Iterator[_Body]]) -> set[str]:
    """Names of inputs of bodies, and of what nodes compute there, but not of what nodes of ``Constant`` hold."""
    found: set[str] = set()
    for body, inputs, nodes in bodies(graph):
        found |= {*inputs} | _computed(body, bodies)
        found.update(*(outputs for op, names, outputs in nodes if op != "Constant" or names != ["value"]))
    return found


def _with_bodies(node: NodeRecord, change: Callable[[GraphRecord], GraphRecord]) -> NodeRecord:
    """The node with changed bodies."""
    made = {key: change(value) for key, value in node.attributes.items() if type(value) is GraphRecord}
    return dataclasses.replace(node, attributes={**node.attributes, **made}) if made else node


def _raised(body: GraphRecord) -> GraphRecord:
    """The body, which has the stored floats of those within it."""
    if not any(node.bodies for node in body.nodes):
        return body
    own, stored = _own(body), dict(body.initializers)

    def without(inner: GraphRecord) -> GraphRecord:
        inner = _raised(inner)
        kept = {name: a for name, a in inner.initializers.items() if not are_floats(a.dtype, a.shape) or name in own}
        stored.update((name, array) for name, array in inner.initializers.items() if name not in kept)
        return dataclasses.replace(inner, initializers=kept)

    nodes = tuple([_with_bodies(node, without) for node in body.nodes])
    return dataclasses.replace(body, nodes=nodes, initializers=stored)


def _with_constants(body: GraphRecord) -> GraphRecord:
    """The body, in which floats that nodes of ``Constant`` hold are initializers."""
    held = {node.outputs[0]: array for node in body.nodes if (array := stored_by(node)) is not None}
    floats = {name: array for name, array in held.items() if are_floats(array.dtype, array.shape)}
    if not floats:
        return body
    nodes = tuple([node for node in body.nodes if node.op != "Constant" or node.outputs[0] not in floats])
    return dataclasses.replace(body, nodes=nodes, initializers={**body.initializers, **floats})


def _renamed(node: NodeRecord, new: Mapping[str, str], names: Names) -> NodeRecord:
    """The node, reading stored tensors of bodies around it by their new names."""
    inputs = tuple([new.get(name, name) for name in node.inputs])
    bodies = [(key, value) for key, value in node.attributes.items() if type(value) is GraphRecord]
    made = {key: _body(body, new, names) for key, body in sorted(bodies, key=_first_branch)}
    same = inputs == node.inputs and all(made[key] is body for key, body in bodies)
    return node if same else dataclasses.replace(node, inputs=inputs, attributes={**node.attributes, **made})


def _body(body: GraphRecord, new: Mapping[str, str], names: Names) -> GraphRecord:
    listed, body = body.initializers, _with_constants(body)
    own = _own(body)
    called = {name: names.of(name, array) for name, array in body.initializers.items()}
    names.held.update(to for name, to in called.items() if name not in listed)
    inside = {name: to for name, to in new.items() if name not in own}
    inside |= {name: to for name, to in called.items() if name != to}
    nodes = tuple([_renamed(node, inside, names) for node in body.nodes])
    if not inside and all(a is b for a, b in zip(nodes, body.nodes, strict=True)):
        return body
    return dataclasses.replace(
        body,
        nodes=nodes,
        outputs=tuple([inside.get(name, name) for name in body.outputs]),
        initializers={called[name]: array for name, array in body.initializers.items()},
        declared={inside.get(name, name): type_ for name, type_ in body.declared.items()},
        forms={inside.get(name, name): form for name, form in body.forms.items()},
    )
