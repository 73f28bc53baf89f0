"""Joins constant scales and shifts per channel: into the convolution before them, or else into one op.

A batch norm with fixed statistics, a product and a sum with a constant per channel are each y = a x + b. A chain of
them behind a convolution whose weight is constant costs nothing once the weight is scaled; elsewhere it is one batch
norm with mean 0 and variance 1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..ir.graph import Graph, Initializer, Node
from ..ir.kernel import Kernel
from ..ir.types import Array, TensorType
from ..ir.types import dtype as as_dtype
from ..ir.value import Value
from ..ops.arithmetic import add, mul, sub
from ..ops.conv import conv
from ..ops.infer import operand
from ..ops.norm import batch_norm
from .dead_code import eliminate_dead_code

_Readers = Mapping[Value, Sequence[Node]]


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """Neighbouring scales and shifts: the nodes, from the value that they read on, and what they are together.

    The scale and the shift are per channel or one for all: no number of channels is read where nothing is joined.
    """

    source: Value
    nodes: tuple[Node, ...]
    scale: Array
    shift: Array


def fold_affine(graph: Graph, kernels: Mapping[str, tuple[Kernel, ...]], mutable: Collection[str] = ()) -> Graph:
    """The graph with scales and shifts per channel joined; one with states is left as it is.

    Args:
        graph: bound.
        kernels: the reference's, by op; they compute views of constants.
        mutable: names of initializers whose data may change.
    """
    if graph.states:
        return graph
    known = _Known(graph, kernels, mutable)
    makers, readers = graph.producers(), graph.readers()
    chains = _chains(graph, readers, known)
    into: dict[Node, tuple[_Chain, Node | None]] = {}  # the last node of a chain -> what it becomes
    for chain in chains:
        head = makers.get(chain.source)
        if head is not None and _takes(head, readers, known) and chain.source not in graph.outputs.values():
            into[chain.nodes[-1]] = chain, head
        elif len(chain.nodes) > 1:
            into[chain.nodes[-1]] = chain, None
    if not into:
        return graph
    constants = _Constants(graph)
    nodes = tuple(_joined(node, *into[node], constants, known) if node in into else node for node in graph.nodes)
    return eliminate_dead_code(dataclasses.replace(graph, nodes=nodes, initializers=constants.all))


class _Constants:
    """The initializers of a graph and those that are added.

    Attributes:
        all: by value.
    """

    def __init__(self, graph: Graph) -> None:
        self.all = dict(graph.initializers)
        self._names = {value.name for value in graph.values()}

    def add(self, name: str, array: Array, factor: Array | None = None) -> Value:
        """A value for an array that doesn't change any more, or for its product with a factor."""
        free = next(n for n in (f"{name}.{i}" for i in range(len(self._names) + 1)) if n not in self._names)
        self._names.add(free)
        value = Value(free, TensorType(as_dtype(array), array.shape))
        data = array.view()
        data.flags.writeable = False
        self.all[value] = Initializer(data, factor=factor)
        return value


class _Known:
    """The data of initializers that stay as they are, and of views of them, computed when somebody reads it."""

    def __init__(self, graph: Graph, kernels: Mapping[str, tuple[Kernel, ...]], mutable: Collection[str]) -> None:
        self._kernels = kernels
        self._stored = {value: data for value, data in graph.initializers.items() if value.name not in mutable}
        self._views: dict[Value, Node] = {}
        for node in graph.nodes:
            value, result = (node.inputs[0] if node.inputs else None), node.outputs[0]
            if node.op.view is not None and value in self and result is not None and len(node.inputs) == 1:
                self._views[result] = node

    def __contains__(self, value: object) -> bool:
        return value in self._stored or value in self._views

    def __getitem__(self, value: Value) -> Array:
        if value in self._stored:
            return self._stored[value].array
        node = self._views[value]
        found: Array = self._kernels[node.op.name][0].code(node.attributes, self[operand(node)])
        return found


def _chains(graph: Graph, readers: _Readers, known: _Known) -> list[_Chain]:
    """The longest chains, in the order of their first nodes."""
    kept = {*graph.outputs.values()}
    taken: set[Node] = set()
    found = []
    for node in graph.nodes:
        first = _affine(node, known) if node not in taken else None
        if first is None:
            continue
        source, factor, summand = first
        scale, shift = np.asarray(factor), np.asarray(summand)
        nodes = [node]
        while True:
            result = nodes[-1].outputs[0]
            next_ = readers[result][0] if result is not None and len(readers.get(result, ())) == 1 else None
            more = _affine(next_, known) if next_ is not None and result not in kept else None
            if next_ is None or more is None or more[0] is not result:
                break
            _, factor, summand = more
            scale, shift = scale * factor, shift * factor + summand
            nodes.append(next_)
        taken.update(nodes)
        found.append(_Chain(source, tuple(nodes), scale, shift))
    return found


def _affine(node: Node, known: _Known) -> tuple[Value, Array | float, Array | float] | None:
    """The value that a scale or shift reads, with its factor and summand in float64, per channel or one for all."""
    y = node.outputs[0]
    if y is None or y.type.rank < 3 or y.type.dtype.kind != "f":
        return None
    if node.op is batch_norm and all(v in known for v in node.inputs[1:]):
        scale, bias, mean, variance = (known[v].astype(np.float64) for v in node.inputs[1:] if v is not None)
        scale = scale / np.sqrt(variance + node.attributes["epsilon"])
        assert node.inputs[0] is not None
        return node.inputs[0], scale, bias - mean * scale
    if node.op not in (mul, add, sub):
        return None
    a, b = node.inputs
    assert a is not None and b is not None
    if a in known and node.op is not sub:
        a, b = b, a
    if b not in known or a in known or a.type != y.type or not _is_per_channel(b.type, y.type.rank):
        return None
    vector = known[b].reshape(-1).astype(np.float64)
    if node.op is mul:
        return a, vector, 0.0
    return a, 1.0, vector if node.op is add else -vector


def _is_per_channel(constant: TensorType, rank: int) -> bool:
    """Whether a constant broadcasts to ``rank`` axes as one number per channel, axis 1, or for all."""
    return all(d == 1 for axis, d in enumerate(constant.sizes, rank - constant.rank) if axis != 1)


def _takes(head: Node, readers: _Readers, known: _Known) -> bool:
    """Whether ``head`` is a convolution of constant weight and bias, with one reader, that alone reads its weight."""
    if head.op is not conv or head.outputs[0] is None or head.inputs[1] is None:
        return False
    alone = len(readers[head.outputs[0]]) == 1 and len(readers[head.inputs[1]]) == 1
    return alone and all(v is None or v in known for v in head.inputs[1:])


def _joined(last: Node, chain: _Chain, head: Node | None, constants: _Constants, known: _Known) -> Node:
    """What computes the result of a chain that ends with ``last``: the convolution before it, or a norm."""
    result = last.outputs[0]
    assert result is not None
    channels = result.type.sizes[1]
    scale, shift = np.full(channels, chain.scale), np.full(channels, chain.shift)
    chain = dataclasses.replace(chain, scale=scale, shift=shift)
    if head is None:
        return _as_norm(last, chain, result, constants)
    return _as_conv(last, chain, head, result, constants, known)


def _as_conv(last: Node, chain: _Chain, head: Node, result: Value, constants: _Constants, known: _Known) -> Node:
    weight, bias = head.inputs[1], (*head.inputs, None)[2]
    assert weight is not None
    dtype = result.type.dtype.numpy
    shift = chain.shift + (0 if bias is None else known[bias] * chain.scale)
    if (chain.scale != 1).any():
        upcast = np.float64 if dtype == np.float64 else np.float32  # float64 would take twice the time for half an ulp
        factor = chain.scale.astype(upcast).reshape(-1, *[1] * (weight.type.rank - 1))
        weight = constants.add(f"{weight.name}.scaled", known[weight], factor)
    inputs = (head.inputs[0], weight, constants.add(f"{result.name}.shift", shift.astype(dtype)))
    return Node(conv, head.name, inputs, (result,), head.attributes, (), last.origin)


def _as_norm(last: Node, chain: _Chain, result: Value, constants: _Constants) -> Node:
    dtype, count = result.type.dtype.numpy, len(chain.scale)
    arrays = {
        "scale": chain.scale,
        "shift": chain.shift,
        "mean": np.zeros(count),
        "variance": np.ones(count),
    }
    vectors = [constants.add(f"{result.name}.{key}", a.astype(dtype)) for key, a in arrays.items()]
    attributes = batch_norm.complete({"epsilon": 0.0})
    return Node(batch_norm, last.name, (chain.source, *vectors), (result,), attributes, (), last.origin)
