"""Graph -> Graph: functions of one 8-bit element become tables of their 256 results.

A model in QDQ form computes activations in floats between ``dequantize`` and ``quantize``; where what is quantized is a
function of one 8-bit element, as of ``x * sigmoid(x)``, an element of the table takes the place of all of these nodes.
The table is computed by the same nodes, of all elements there are, when constants are folded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from ...ir.builder import GraphBuilder
from ...ir.graph import Graph, Node
from ...ir.kernel import Targets
from ...ir.op import AnyOp
from ...ir.rewrite import rewrite
from ...ir.types import TensorType, int8, uint8
from ...ir.value import Value
from ...ops.arithmetic import clip
from ...ops.cast import cast
from ...ops.logic import equal, greater, greater_equal, less, less_equal, logical_and, logical_not, logical_or, where
from ...ops.quantized import dequantize, lookup, quantize
from ...ops.shape import reshape
from ..dead_code import eliminate_dead_code

_BYTES = (int8, uint8)
_BY_ELEMENT = {
    *(quantize, dequantize, lookup, cast, clip, where),
    *(equal, less, less_equal, greater, greater_equal, logical_and, logical_or, logical_not),
}
_MOST = 64  # nodes of a function


def use_lookups(graph: Graph, targets: Targets, mutable: Collection[str] = ()) -> Graph:
    """The graph with functions of 8-bit elements as tables; one with states is left as it is.

    Args:
        graph: bound.
        targets: the devices and their kernels.
        mutable: names of initializers whose data may change.
    """
    if graph.states or not any(node.op is quantize for node in graph.nodes):
        return graph
    lookups = _Lookups(graph, targets, mutable)
    made = rewrite(graph, lookups.replace)
    return eliminate_dead_code(made) if lookups.any else graph


class _Lookups:
    """Follows which values of the new graph are functions of one 8-bit element.

    Attributes:
        any: whether some became tables.
    """

    def __init__(self, graph: Graph, targets: Targets, mutable: Collection[str]) -> None:
        self._targets, self.any = targets, False
        self._constants = {v.name for v in graph.initializers if v.type.elements == 1 and v.name not in mutable}
        self._sources: dict[Value, tuple[Value, int] | None] = {}  # of a function: its argument, and its nodes

    def replace(self, builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        """See ``Replace``."""
        for value in inputs:
            if value is not None and value not in self._sources:
                maker = builder.producer(value)
                self._sources[value] = None if maker is None else self._function(maker.op, maker.inputs, value)
        y = node.outputs[0]
        if node.op is not quantize or y is None or y.type.dtype not in _BYTES or self._targets.pin(node):
            return None
        found = self._function(quantize, inputs, y)
        if found is None:
            return None
        source, _ = found
        table = Value("table", TensorType(y.type.dtype, (256,)))
        made = dataclasses.replace(node, op=lookup, inputs=(source, table), attributes={})
        if self._targets.taker(made, node) is None:
            return None
        self.any = True
        return (lookup(source, self._table(builder, source, node, inputs)),)

    def _function(self, op: AnyOp, inputs: Sequence[Value | None], result: Value) -> tuple[Value, int] | None:
        """What a result is a function of, element by element, and how many nodes compute it; None where it isn't."""
        if not _by_element(op):
            return None
        sources: set[Value] = set()
        count = 1
        for value in inputs[:1] if op is lookup else inputs:
            if value is None or value.name in self._constants:
                continue
            found = self._sources.get(value) or ((value, 0) if value.type.dtype in _BYTES else None)
            if found is None:
                return None
            sources.add(found[0])
            count += found[1]
        if len(sources) != 1 or count > _MOST:
            return None
        (source,) = sources
        return (source, count) if source.type.shape == result.type.shape else None

    def _table(self, builder: GraphBuilder, source: Value, node: Node, inputs: Sequence[Value | None]) -> Value:
        """The results of a node for all elements that ``source`` may have, in ascending order."""
        least = 0 if source.type.dtype == uint8 else -128
        values = {source: builder.constant(np.arange(least, least + 256).astype(source.type.dtype.numpy))}

        def of(value: Value | None) -> Value | None:
            if value is None or value in values:
                return None if value is None else values[value]
            if value.name in self._constants:
                values[value] = value if value.type.rank == 0 else reshape(value, shape=())
            else:
                maker = builder.producer(value)
                assert maker is not None
                values[value] = made(maker, maker.inputs)
            return values[value]

        def made(one: Node, operands: Sequence[Value | None]) -> Value:
            given = [of(operands[0]), operands[1]] if one.op is lookup else [of(value) for value in operands]
            attributes = {**one.attributes, "axis": 0} if one.op in (quantize, dequantize) else one.attributes
            (result,) = builder.add(one.op, given, attributes).outputs
            assert result is not None
            return result

        return made(node, inputs)


def _by_element(op: AnyOp) -> bool:
    """Whether each element of a node's only result depends on the elements at its place alone."""
    return op in _BY_ELEMENT or (op.elementwise and op.effects == "none" and len(op.outputs) == 1)
