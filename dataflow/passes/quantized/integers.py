"""Graph -> Graph: products of dequantized operands become products of the integers, where a device computes these.

A model in QDQ form, as quantizers write it, has floats between ``dequantize`` and ``quantize`` everywhere. This runs
before constants are folded, which would turn stored weights into floats.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ...ir.builder import GraphBuilder
from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ir.rewrite import rewrite
from ...ir.value import Value
from ...ops import quantized
from ...ops.activation import relu
from ...ops.arithmetic import clip
from ...ops.pool import max_pool
from ...ops.quantized import dequantize, matmul_blocks, quantize
from ...ops.rules.quantized import limits
from ...ops.rules.quantized_blocks import matmul_blocks_decompose
from ...ops.shape import reshape, transpose
from ..dead_code import eliminate_dead_code
from ..fuse import fuse

OPS = frozenset(op.name for op in quantized.OPS)


def use_integers(graph: Graph, targets: Targets, mutable: Collection[str] = ()) -> Graph:
    """The graph with patterns of quantized ops replaced; one with states, whose floats are trained, is left as it is.

    Args:
        graph: bound.
        targets: the devices and their kernels.
        mutable: names of initializers whose data may change.
    """
    if graph.states or not any(node.op.name in OPS for node in graph.nodes):
        return graph
    moved = rewrite(graph, _Mover(graph, targets, mutable).replace)
    return eliminate_dead_code(fuse(eliminate_dead_code(moved), targets, quantized.OPS, mutable))


def expand_blocks(graph: Graph, targets: Targets) -> Graph:
    """The graph with weights in blocks dequantized where the device of their product has no kernel for it.

    This runs before constants are folded: such a device then has a matrix of floats, made once.
    """

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if node.op is not matmul_blocks:
            return None
        first = next(iter(targets.order(node)), "")
        if any(kernel.refuses(node) is None for kernel in targets.kernels.get(first, {}).get(node.op.name, ())):
            return None
        return (matmul_blocks_decompose(*inputs, **node.attributes),)  # type: ignore[arg-type]

    if not any(node.op is matmul_blocks for node in graph.nodes):
        return graph
    return rewrite(graph, replace)


class _Mover:
    """Moves ``dequantize`` behind nodes that only move or select elements, and removes it where ``quantize`` undoes it.

    Attributes:
        targets: the devices and their kernels.
        made: nodes of the new graph that dequantize, by their results.
    """

    def __init__(self, graph: Graph, targets: Targets, mutable: Collection[str]) -> None:
        self.targets = targets
        self.made: dict[Value, tuple[Value, Value, Value, int]] = {}
        self._stored = {v.name: d for v, d in graph.initializers.items() if v.name not in mutable}

    def replace(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        """See ``Replace``."""
        x = inputs[0] if inputs else None
        if node.op is dequantize:
            y = builder.again(node, inputs).outputs[0]
            assert y is not None and all(v is not None for v in inputs)
            self.made[y] = (*inputs, node.attributes["axis"])
            return (y,)
        if node.op is quantize:
            return self._quantized(builder, node, inputs)
        found = self.made.get(x) if x is not None else None
        if found is None:
            return None
        integers, scale, zero, axis = found
        if node.op is transpose:
            perm = node.attributes["perm"]
            return (self._dequantized(transpose(integers, perm=perm), scale, zero, perm.index(axis % len(perm))),)
        if node.op is reshape and scale.type.rank == 0:
            return (self._dequantized(reshape(integers, **node.attributes), scale, zero, 0),)
        if node.op is max_pool:
            pooled = self._pooled(builder, node, integers)
            if pooled is not None and scale.type.rank == 0 and self._is_positive(scale):
                return (self._dequantized(pooled, scale, zero, 0),)
        return None

    def _quantized(
        self, builder: GraphBuilder, node: Node, inputs: Sequence[Value | None]
    ) -> Sequence[Value | None] | None:
        """The integers that it gives back, or those of what came before a needless clip; None: it stays as it is."""
        x, scale, zero = inputs
        assert x is not None and scale is not None and zero is not None
        before = self._before_clips(builder, x, scale, zero)
        if before in self.made:
            integers, other, origin, axis = self.made[before]
            alike = other.type.rank == 0 or node.attributes["axis"] == axis
            if alike and self._same(other, scale) and self._same(origin, zero) and self._is_positive(other):
                return (integers,)
        return None if before is x else (quantize(before, scale, zero, axis=node.attributes["axis"]),)

    def _before_clips(self, builder: GraphBuilder, x: Value, scale: Value, zero: Value) -> Value:
        """What was kept in a range to give ``x``, where quantizing keeps it in one that isn't larger."""
        step, origin = self._number(scale), self._number(zero)
        if step is None or origin is None or not step > 0:
            return x
        least, most = limits(zero.type.dtype)
        while (maker := builder.producer(x)) is not None and maker.op in (clip, relu):
            source, low, high = (*maker.inputs, None, None)[:3]
            bottom = np.float32(0) if maker.op is relu else -np.inf if low is None else self._number(low)
            top = np.inf if high is None else self._number(high)
            if source is None or bottom is None or top is None or not bottom <= top:
                return x
            if np.rint(bottom / step) + origin > least or np.rint(top / step) + origin < most:
                return x
            x = source
        return x

    def _number(self, value: Value) -> Any:
        """The one element of a constant; None of others."""
        data = self._stored.get(value.name)
        return data.array.reshape(-1)[0] if data is not None and data.array.size == 1 else None

    def _pooled(self, builder: GraphBuilder, node: Node, integers: Value) -> Value | None:
        """The largest integers, where they stand for the largest floats and the device of ``node`` finds them.

        A dilated window may lie in padding alone: it has a float, minus infinity, that no integer stands for.
        """
        if any(node.outputs[1:]) or any(step != 1 for step in node.attributes["dilations"]):
            return None
        made = builder.add(max_pool, (integers,), node.attributes)
        alone = dataclasses.replace(made, outputs=(made.outputs[0], None))
        return None if self.targets.taker(alone, node) is None else made.outputs[0]

    def _dequantized(self, x: Value, scale: Value, zero: Value, axis: int) -> Value:
        along = axis if scale.type.rank else 0
        y = dequantize(x, scale, zero, axis=along)
        self.made[y] = x, scale, zero, along
        return y

    def _same(self, a: Value, b: Value | None) -> bool:
        """Whether two values are one, or constants of one type with equal elements."""
        if b is None or a.type != b.type:
            return False
        stored, other = self._stored.get(a.name), self._stored.get(b.name)
        return a is b or (stored is not None and other is not None and np.array_equal(stored.array, other.array))

    def _is_positive(self, scale: Value) -> bool:
        """Whether a scale is a constant by which quantizing undoes dequantizing: not zero, and no subnormal number."""
        data = self._stored.get(scale.name)
        stored = None if data is None else data.array
        return stored is not None and bool(
            (stored > np.finfo(np.float32).tiny * 1024).all() and np.isfinite(stored).all()
        )
