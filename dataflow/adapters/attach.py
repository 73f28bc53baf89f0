"""Graph -> Graph: adapters beside the layers whose weights they change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops
from ..errors import ModelError
from ..ir.builder import GraphBuilder
from ..ir.edits import Edit
from ..ir.graph import Graph, Initializer, Node
from ..ir.rewrite import rewrite
from ..ir.types import Array, float32
from ..ir.value import Value
from ..layers.layers import Layer, Use, constants_of, end_of, layers_of
from .adapter import LEAST_SQUARE, Adapter

BASE = ".base"  # behind the name of a value that an adapter changes: what it is without


@dataclass(frozen=True, slots=True)
class Attached:
    """A graph with adapters.

    Attributes:
        graph: the results of layers keep their names, with the adapters added.
        edits: new names of what they were.
        added: names that the graph did not have, and those of the results.
    """

    graph: Graph
    edits: tuple[Edit, ...]
    added: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Site:
    """Where an adapter is added: to the result of ``last``, the layer's node or the addition of its bias."""

    adapter: Adapter
    layer: Layer
    use: Use
    last: Node
    bias: Value | None


def attach(
    graph: Graph,
    adapters: Sequence[Adapter],
    data: Mapping[str, Array],
    stored: Mapping[Value, Initializer] | None = None,
) -> Attached:
    """The graph with adapters.

    Args:
        graph: without them.
        adapters: of its layers.
        data: of their tensors, by name.
        stored: initializers of the graph that get other data or roles.

    Raises:
        ModelError: the graph has no such layer.
    """
    layers = {layer.weight.name: layer for layer in layers_of(graph, {})}
    sites: dict[Node, _Site] = {}
    readers, constants = graph.readers(), constants_of(graph)
    for adapter in adapters:
        layer = layers.get(adapter.weight)
        if layer is None:
            raise ModelError(f"adapter {adapter.path!r}: no layer of this form of the model reads {adapter.weight!r}")
        for use in layer.uses:
            last, bias = end_of(graph, layer, use, readers, constants)
            sites[last] = _Site(adapter, layer, use, last, bias)
    inputs_of: dict[Node, tuple[Value | None, ...]] = {}
    products = {site.use.node for site in sites.values()}
    made: dict[str, Value] = {}
    edits: list[Edit] = []

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> tuple[Value | None, ...] | None:
        if node in products:
            inputs_of[node] = tuple(inputs)
        site = sites.get(node)
        if site is None:
            return None
        result = node.outputs[0]
        assert result is not None
        name = builder.free_name(result.name + BASE)
        edits.append(Edit(result.name, name))
        before = builder.add(node.op, inputs, node.attributes, name=node.name, output_names=[name]).outputs[0]
        assert before is not None
        for tensor in (*site.adapter.tensors, *filter(None, [site.adapter.squares])):
            if tensor not in made:
                trained = tensor != site.adapter.squares
                role = "parameter" if trained else "constant"
                made[tensor] = builder.initializer(tensor, data[tensor], role=role, trainable=trained)  # type: ignore[arg-type]
        with builder.scope(f"{site.adapter.path}.lora"):
            bias = None if site.bias is None else _bias(node, site, inputs)
            change = _Change(builder, site.adapter, site.layer, site.use, inputs_of[site.use.node], made)
            after = change.applied(before, bias)
        builder.rename(after, result.name)
        return (after, *node.outputs[1:])

    changed = rewrite(graph, replace, initializers=stored)
    names = {value.name for value in changed.values()} - {value.name for value in graph.values()}
    bases = {edit.new for edit in edits}
    return Attached(changed, tuple(edits), frozenset((names - bases) | {edit.old for edit in edits}))


def _bias(node: Node, site: _Site, inputs: Sequence[Value | None]) -> Value | None:
    """The layer's bias among the operands of the node that adds it."""
    return inputs[node.inputs.index(site.bias)]


@dataclass(frozen=True, slots=True)
class _Change:
    """Builds what an adapter adds to the result of a node."""

    builder: GraphBuilder
    adapter: Adapter
    layer: Layer
    use: Use
    inputs: Sequence[Value | None]
    made: Mapping[str, Value]

    def applied(self, before: Value, bias: Value | None) -> Any:
        """The node's result with the adapter; the bias is what it contains."""
        delta = self._in(self._delta(), before)
        if self.adapter.magnitude is None:
            return ops.add(before, delta)
        # y = g (W x + delta) + bias, of g (W x + bias + delta) + (1 - g) bias
        factor = self._in(self._factor(before.type.rank), before)
        scaled = ops.mul(ops.add(before, delta), factor)
        if bias is None:
            return scaled
        along = ops.reshape(bias, shape=factor.type.shape) if self.adapter.kind == "conv" else bias
        return ops.add(scaled, ops.mul(along, ops.sub(1.0, factor)))

    @staticmethod
    def _in(value: Value, like: Value) -> Any:
        dtype = like.type.dtype
        return value if value.type.dtype == dtype else ops.cast(value, to=dtype)

    def _delta(self) -> Any:
        """``scale * b a x`` in float32."""
        a, b = self.made[self.adapter.a], self.made[self.adapter.b]
        if self.adapter.kind == "embedding" and self.use.node.op.name == "gather":
            rows = ops.gather(a, self._given(1), axis=1)  # (rank, *indices)
            down = ops.transpose(rows, perm=(*range(1, rows.type.rank), 0))
            if down.type.rank > 1:
                return ops.matmul(self._scaled(down), _swapped(b))
            one = ops.matmul(self._scaled(ops.reshape(down, shape=(1, self.adapter.rank))), _swapped(b))
            return ops.reshape(one, shape=(b.type.shape[0],))
        x = self._dropped(self._float(self._given(0)))
        if self.adapter.kind == "conv":
            window = self.use.node.attributes
            down = self._scaled(ops.conv(x, a, None, **window))
            spatial = b.type.rank - 2
            one = (1,) * spatial
            return ops.conv(down, b, None, strides=one, pads=(0,) * 2 * spatial, dilations=one, groups=1)
        first, second = (b, a) if self.use.swapped else (_swapped(a), _swapped(b))
        return ops.matmul(self._scaled(ops.matmul(x, first)), second)

    def _scaled(self, value: Value) -> Any:
        return value if self.adapter.scale == 1.0 else ops.mul(value, self.adapter.scale)

    def _given(self, index: int) -> Any:
        value = self.inputs[index]
        assert value is not None
        return value

    @staticmethod
    def _float(value: Value) -> Any:
        return value if value.type.dtype == float32 else ops.cast(value, to=float32)

    def _dropped(self, value: Value) -> Any:
        if not self.adapter.dropout:
            return value
        stream = sum(node.op.name == "dropout" for node in self.builder.nodes())
        return ops.dropout(value, None, ratio=self.adapter.dropout, stream=stream)

    def _factor(self, rank: int) -> Any:
        """DoRA's magnitudes by the norms of the changed weight, along the outputs of a result of ``rank`` axes.

        The square of a norm is that of the weight, which is constant, and what the change adds: no tensor of the
        weight's size is made. No gradient goes through the norm (arXiv:2402.09353, section 4.3).
        """
        adapter = self.adapter
        assert adapter.magnitude is not None and adapter.squares is not None
        a, b = (self._matrix(self.made[name]) for name in (adapter.a, adapter.b))
        outputs = b.type.shape[0]
        mixed = ops.add(
            ops.mul(ops.matmul(self._weight(), _swapped(a)), 2.0 * adapter.scale),
            ops.mul(ops.matmul(b, ops.matmul(a, _swapped(a))), adapter.scale**2),
        )
        more = ops.reduce_sum(ops.mul(b, mixed), axes=(1,), keepdims=False)
        square = ops.maximum(ops.add(self.made[adapter.squares], more), LEAST_SQUARE)
        norm = ops.stop_gradient(ops.sqrt(square))
        factor = ops.div(ops.reshape(self.made[adapter.magnitude], shape=(outputs,)), norm)
        axes = rank - 2 if adapter.kind == "conv" else 0
        return ops.reshape(factor, shape=(outputs, *(1,) * axes)) if axes else factor

    def _weight(self) -> Any:
        """The weight as (outputs, inputs)."""
        stored = next(value for value in self.builder.initializers() if value.name == self.adapter.weight)
        weight = self._float(stored)
        if self.layer.flat:
            sizes = self.layer.sizes
            weight = ops.reshape(weight, shape=sizes[::-1] if self.layer.transposed else sizes)
        if self.adapter.kind == "conv":
            return self._matrix(weight)
        return weight if self.layer.transposed else _swapped(weight)

    @staticmethod
    def _matrix(value: Value) -> Any:
        """All axes but the first as one."""
        sizes = value.type.sizes
        return value if len(sizes) == 2 else ops.reshape(value, shape=(sizes[0], int(np.prod(sizes[1:]))))


def _swapped(value: Value) -> Any:
    return ops.transpose(value, perm=(1, 0))
