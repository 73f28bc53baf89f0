"""Stored tensors that exporters merged because they begin with equal data, as a tensor for each that reads them.

PyTorch's exporters write tensors of equal data once. In a network that is yet to be trained all gains of norms are
ones, and biases and running means zeros: of each size the file has one, perhaps behind an Identity node with the name
of each other one. Trained as one they would not be what PyTorch trains. Where the same matrix is the weight of several
products, a network has layers that share all they have, or runs twice: of a batch norm no two operands are one then,
and nothing else is taken apart. Names of Identity nodes tell these two from each other: that which runs twice has one
name for its matrix.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np

from dataflow.errors import ModelError

from .functions import inlined
from .records import Copy, GraphRecord, ModelRecord, NodeRecord

_log = logging.getLogger("dataflow")

# Operands that are a vector of the node's own, and what PyTorch calls them.
_VECTORS = {
    "BatchNormalization": {1: "weight", 2: "bias", 3: "running_mean", 4: "running_var"},
    **{f"{of}Normalization": {1: "weight", 2: "bias"} for of in ("Group", "Instance", "Layer")},
    "RMSNormalization": {1: "weight"},
    **{op: {2: "bias"} for op in ("Conv", "ConvTranspose", "Gemm")},
    "Add": {0: "bias", 1: "bias"},
    "Mul": {0: "weight", 1: "weight"},
}
_PRODUCTS = {"MatMul": (1, 0), "Gemm": (1, 0), "Conv": (1,), "ConvTranspose": (1,)}
_SAME_DATA = frozenset({"Identity", "Transpose", "Cast", "Reshape"})
_MOST = 1 << 16  # elements
_Use = tuple[str, int, str, NodeRecord]  # a stored tensor, which operand it is, its name there, and the node


def taken_apart(record: ModelRecord, path: str) -> tuple[ModelRecord, tuple[Copy, ...]]:
    """The file with a tensor for each reader, where several have one of a single value; and what was added."""
    graph = record.graph
    counted: dict[str, list[_Use]] = {}
    for use in _uses(graph):
        counted.setdefault(use[0], []).append(use)
    merged = {name: found for name, found in counted.items() if len(found) > 1 and _is_of_one_value(graph, name)}
    if not merged:
        return record, ()
    shared, shared_by_names = _shared(graph)
    taken = {*graph.inputs, *graph.initializers, *(name for node in graph.nodes for name in node.outputs)}
    copies: list[Copy] = []
    for of, found in merged.items():
        behind = dict.fromkeys(name for _, _, name, _ in found if name != of)  # Identity nodes
        if shared_by_names if behind else shared:
            copies += _by_operand(of, found, taken)
            continue
        copies += [Copy(of, name) for name in behind]
        for _, index, _, node in () if behind else found[1:]:
            wanted = f"{node.scope or node.name or node.outputs[0]}.{_VECTORS[node.op][index]}"
            while wanted in taken:
                wanted += "'"
            taken.add(wanted)
            copies.append(Copy(of, wanted, node.outputs[0], index))
    if not copies:
        return record, ()
    _log.info(
        "%s: the file has %d tensors of one value for %d that begin alike, first %s; each is one by itself",
        path, len(merged), len(copies) + len(merged), next(iter(merged)),
    )  # fmt: skip
    return dataclasses.replace(record, graph=_with_copies(graph, copies)), tuple(copies)


def _by_operand(of: str, found: list[_Use], taken: set[str]) -> list[Copy]:
    """A tensor for each operand of batch norms that have one for several: no bias is a running mean too."""
    if any(node.op != "BatchNormalization" for *_, node in found):
        return []
    behind = dict.fromkeys(name for _, _, name, _ in found if name != of)  # Identity nodes
    names: dict[int, str] = {}
    copies = [Copy(of, name) for name in behind]
    for _, index, name, node in found:
        if name != of or names.setdefault(index, of if not names else "") == of:
            continue
        if not names[index]:
            wanted = f"{node.scope or node.name or node.outputs[0]}.{_VECTORS[node.op][index]}"
            while wanted in taken:
                wanted += "'"
            taken.add(wanted)
            names[index] = wanted
        copies.append(Copy(of, names[index], node.outputs[0], index))
    return copies


def _uses(graph: GraphRecord) -> Iterator[_Use]:
    """Where a node reads a stored tensor as a vector of its own: its name, the operand, what it is called there."""
    stored = {name for name, array in graph.initializers.items() if 1 < array.size <= _MOST and array.ndim}
    stored -= graph.inputs.keys()
    shown = {
        node.outputs[0]: node.inputs[0]
        for node in graph.nodes
        if node.op == "Identity" and stored.issuperset(node.inputs[:1]) and node.outputs[0] not in graph.outputs
    }
    for node in graph.nodes:
        for index in () if node.domain else _VECTORS.get(node.op, ()):
            name = node.inputs[index] if index < len(node.inputs) else ""
            of = shown.get(name, name)
            if of in stored:
                yield of, index, name, node


def _is_of_one_value(graph: GraphRecord, name: str) -> bool:
    flat = graph.initializers[name].reshape(-1)
    return flat.dtype.kind in "fV" and bool((flat == flat[0]).all())


def _shared(graph: GraphRecord) -> tuple[bool, bool]:
    """Whether several products have one matrix as their weight, which isn't of one value; and by several names."""
    shown: dict[str, tuple[str, str]] = {}  # what values have the data of, and its name: of an Identity node its own
    names: dict[str, list[str]] = {}
    for node in graph.nodes:
        if node.op in _SAME_DATA:
            of, name = shown.get(node.inputs[0], (node.inputs[0], node.inputs[0]))
            again = node.op == "Identity" and of in graph.initializers
            shown[node.outputs[0]] = of, node.outputs[0] if again else name
        for operand in [node.inputs[index] for index in _PRODUCTS.get(node.op, ()) if index < len(node.inputs)]:
            of, name = shown.get(operand, (operand, operand))
            array = graph.initializers.get(of)
            if array is not None and array.ndim >= 2 and array.size >= 2:
                names.setdefault(of, []).append(name)
                break  # a product of two has its weight on the right: the left one is data, as a table of positions
    read = [found for of, found in names.items() if len(found) > 1 and not _is_of_one_value(graph, of)]
    return bool(read), any(len({*found}) > 1 for found in read)


def _with_copies(graph: GraphRecord, copies: list[Copy]) -> GraphRecord:
    stored = dict(graph.initializers)
    names: dict[tuple[str, int], str] = {}
    for copy in copies:
        if copy.name not in stored:
            stored[copy.name] = np.array(stored[copy.of])
        if copy.reader:
            names[copy.reader, copy.index] = copy.name
    nodes = []
    for node in graph.nodes:
        if node.op == "Identity" and node.outputs[0] in stored:
            continue
        inputs = tuple(names.get((node.outputs[0], index), name) for index, name in enumerate(node.inputs))
        nodes.append(node if inputs == node.inputs else dataclasses.replace(node, inputs=inputs))
    return dataclasses.replace(graph, nodes=tuple(nodes), initializers=stored)


def take_apart(proto: Any, copies: tuple[Copy, ...]) -> Any:
    """The file's model with these tensors, whose data are those of the others.

    Args:
        proto: the file's model; is changed.
        copies: what was added when it was read.

    Raises:
        ModelError: a node isn't there any more.
    """
    if proto.functions and not {c.reader or c.name for c in copies} <= {n for m in proto.graph.node for n in m.output}:
        proto = inlined(proto, "the model")
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    inputs = {value.name: value for value in proto.graph.input}
    makers = {name: node for node in proto.graph.node for name in node.output}
    for copy in copies:
        node = makers.get(copy.reader or copy.name)
        if node is None or copy.of not in tensors or copy.of not in node.input:
            raise ModelError(f"the file has no {copy.reader or copy.name!r} any more; load it again")
        if copy.reader:
            node.input[copy.index] = copy.name
        else:
            proto.graph.node.remove(node)
        if copy.name in tensors:  # several nodes read it
            continue
        tensors[copy.name] = made = proto.graph.initializer.add()
        made.CopyFrom(tensors[copy.of])
        made.name = copy.name
        if copy.of in inputs:  # before IR 4 stored tensors are inputs too
            value = proto.graph.input.add()
            value.CopyFrom(inputs[copy.of])
            value.name = copy.name
    return proto
