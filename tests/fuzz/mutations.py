"""Mutations of ONNX models that know their structure, and of bytes that don't."""

from __future__ import annotations

import random as standard
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import onnx
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto

from .minimizing import message_fields

INTS = (0, 1, -1, 2, 3, 4, 5, 7, 8, 16, 64, 100, 127, 128, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**32, 2**62,
        2**63 - 1, -2, -3, -128, -(2**31), -(2**63))  # fmt: skip
SMALL = (0, 1, -1, 2, 3, 4, -2)
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-30, 1e30, 3.4e38, float("inf"), float("-inf"), float("nan"))
Random = standard.Random


def mutate(random: Random, model: onnx.ModelProto, others: Sequence[onnx.ModelProto]) -> None:
    """Changes a model in place, once."""
    graph = random.choice(list(_graphs(model.graph)))
    change = random.choice(_CHANGES)
    if change is _splice:
        _splice(random, model.graph, random.choice(others))
    elif change is _any_field:
        _any_field(random, model)
    else:
        change(random, graph)


def damage(random: Random, data: bytes) -> bytes:
    """Bytes with a few of them changed, left out, repeated or exchanged."""
    found = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(found) + 1)
        kind, size = random.randrange(5), random.choice((1, 1, 2, 4, 16))
        if kind == 0 and found:
            found[at % len(found)] = random.choice((0, 1, 0x7F, 0x80, 0xFF, random.randrange(256)))
        elif kind == 1 and found:
            found[at % len(found)] ^= 1 << random.randrange(8)
        elif kind == 2:
            del found[at : at + size]
        elif kind == 3:
            found[at:at] = found[at : at + size] * random.randint(1, 3)
        else:
            found[at:at] = bytes(random.randrange(256) for _ in range(size))
    return bytes(found)


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and those in its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                yield from _graphs(attribute.g)


def _number(random: Random) -> int:
    return random.choice(SMALL if random.random() < 0.6 else INTS)


def _names(graph: GraphProto) -> list[str]:
    found = [v.name for v in (*graph.input, *graph.output)] + [t.name for t in graph.initializer]
    return [*found, *(name for node in graph.node for name in (*node.input, *node.output)), "", "nobody"]


# ---- changes -------------------------------------------------------------------------------------------


def _operator(random: Random, graph: GraphProto) -> None:
    from dataflow_onnx.operators import STANDARD

    if graph.node:
        node = random.choice(graph.node)
        node.domain, node.op_type = random.choice(sorted(STANDARD.versions))


def _order(random: Random, graph: GraphProto) -> None:
    nodes = list(graph.node)
    kind = random.randrange(3)
    if not nodes:
        return
    at = random.randrange(len(nodes))
    if kind == 0:
        del nodes[at]
    elif kind == 1:
        other = random.randrange(len(nodes))
        nodes[at], nodes[other] = nodes[other], nodes[at]
    else:
        again = NodeProto()
        again.CopyFrom(nodes[at])
        for index, name in enumerate(again.output):
            again.output[index] = name + "_again"
        nodes.insert(at, again)
        if random.random() < 0.7 and again.input:
            again.input[random.randrange(len(again.input))] = random.choice(_names(graph))
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def _wiring(random: Random, graph: GraphProto) -> None:
    if not graph.node:
        return
    node = random.choice(graph.node)
    names = random.choice((node.input, node.input, node.output))
    kind = random.randrange(4)
    if kind == 0 and names:
        del names[random.randrange(len(names))]
    elif kind == 1 or not names:
        names.append(random.choice(_names(graph)))
    else:
        names[random.randrange(len(names))] = random.choice(_names(graph))


def _attribute(random: Random, graph: GraphProto) -> None:
    nodes = [n for n in graph.node if n.attribute]
    if not nodes:
        return
    node = random.choice(nodes)
    attribute = random.choice(node.attribute)
    kind = random.randrange(8)
    if kind == 0:
        node.attribute.remove(attribute)
    elif kind == 1:
        attribute.type = random.choice(list(AttributeProto.AttributeType.values()))
    elif kind == 2:
        attribute.name = random.choice([a.name for n in nodes for a in n.attribute] + ["axis", "axes", ""])
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        at = random.randrange(len(attribute.ints))
        if kind == 3:
            del attribute.ints[at]
        elif kind == 4:
            attribute.ints.append(_number(random))
        else:
            attribute.ints[at] = _number(random)
    elif attribute.type == AttributeProto.INT:
        attribute.i = _number(random)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = random.choice(FLOATS)
    elif attribute.type == AttributeProto.STRING:
        attribute.s = random.choice((b"", b"\xff", b"NOTSET", b"VALID", b"SAME_UPPER", b"linear", b"cubic", b"reflect"))
    elif attribute.type == AttributeProto.TENSOR:
        _change_tensor(random, attribute.t)


def _initializer(random: Random, graph: GraphProto) -> None:
    if graph.initializer:
        _change_tensor(random, random.choice(graph.initializer))


def _change_tensor(random: Random, tensor: TensorProto) -> None:
    kind = random.randrange(7)
    if kind == 0 and tensor.dims:
        tensor.dims[random.randrange(len(tensor.dims))] = _number(random)
    elif kind == 1:
        tensor.data_type = random.choice([*TensorProto.DataType.values(), 99])
    elif kind == 2:
        tensor.raw_data = tensor.raw_data[: random.randrange(len(tensor.raw_data) + 1)]
    elif kind == 3 and tensor.data_type in (TensorProto.INT64, TensorProto.INT32) and tensor.raw_data:
        size = 8 if tensor.data_type == TensorProto.INT64 else 4
        at = size * random.randrange(max(len(tensor.raw_data) // size, 1))
        number = (_number(random) & (2 ** (8 * size) - 1)).to_bytes(size, "little")
        tensor.raw_data = tensor.raw_data[:at] + number + tensor.raw_data[at + size :]
    elif kind == 4:
        values = random.choice((tensor.int64_data, tensor.int32_data))
        values.append(_number(random) % 2**31)
    elif kind == 5 and tensor.external_data:
        entry = random.choice(tensor.external_data)
        entry.value = random.choice(
            ("", "0", "-1", "64", str(2**63), "../weights.bin", "/dev/zero", "x\0y", "weights.bin")
        )
    else:
        tensor.dims.insert(random.randrange(len(tensor.dims) + 1), random.choice((0, 1, 1, 2)))


def _types(random: Random, graph: GraphProto) -> None:
    values = [*graph.input, *graph.output, *graph.value_info]
    if not values:
        return
    tensor = random.choice(values).type.tensor_type
    kind = random.randrange(4)
    if kind == 0:
        tensor.elem_type = random.choice(list(TensorProto.DataType.values()))
    elif kind == 1 or not tensor.shape.dim:
        tensor.shape.dim.add(dim_value=random.choice((0, 1, 2, 3)))
    elif kind == 2:
        random.choice(tensor.shape.dim).dim_param = random.choice(("n", "m", "n", ""))
    else:
        random.choice(tensor.shape.dim).dim_value = _number(random)


def _output(random: Random, graph: GraphProto) -> None:
    """Adds another value as an output, so that an intermediate result can be seen."""
    name = random.choice(_names(graph))
    graph.output.add(name=name)


def _splice(random: Random, graph: GraphProto, other: onnx.ModelProto) -> None:
    """The nodes of another model behind or before this one's, over one of its values."""
    prefix = "z"
    added = GraphProto.FromString(other.graph.SerializeToString())
    names = [n for n in _names(graph) if n not in ("", "nobody")]
    bound = {v.name: random.choice(names) for v in added.input[:1]} if names else {}

    def renamed(name: str) -> str:
        return bound.get(name, prefix + name if name else "")

    for node in added.node:
        for side in (node.input, node.output):
            for index, name in enumerate(side):
                side[index] = renamed(name)
    for value in (*added.input, *added.output, *added.initializer):
        value.name = renamed(value.name)
    graph.input.extend(v for v in added.input if v.name not in names)
    graph.initializer.extend(added.initializer)
    graph.node.extend(added.node)
    graph.output.extend(added.output)


def _any_field(random: Random, model: onnx.ModelProto) -> None:
    """Whatever field of whatever message: left out, repeated, or another value."""
    parent, field = random.choice(list(message_fields(model)))
    value = getattr(parent, field.name)
    if hasattr(value, "append"):
        at = random.randrange(len(value))
        if random.random() < 0.4:
            del value[at]
        elif field.type == field.TYPE_MESSAGE:
            value.add().CopyFrom(value[at])
        else:
            value.append(value[at])
    elif random.random() < 0.3 or field.type == field.TYPE_MESSAGE:
        parent.ClearField(field.name)
    elif isinstance(value, bool):
        setattr(parent, field.name, not value)
    elif isinstance(value, int):
        number = _number(random)
        setattr(parent, field.name, number if field.type == field.TYPE_INT64 else number % 2**31)
    elif isinstance(value, float):
        setattr(parent, field.name, random.choice(FLOATS))
    elif isinstance(value, str):
        setattr(parent, field.name, random.choice(("", "x", "y", "ai.onnx", "\u00e9", value + "'")))
    else:
        setattr(parent, field.name, damage(random, value))


_CHANGES: tuple[Callable[[Random, Any], None] | Any, ...] = (
    _operator, _order, _wiring, _wiring, _attribute, _attribute, _attribute, _initializer, _initializer, _types, _types,
    _output, _splice, _splice, _any_field, _any_field, _any_field,
)  # fmt: skip
