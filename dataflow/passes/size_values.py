"""Values that depend on sizes alone: computed by the reference once the sizes are known, when a graph is bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ..errors import InputError, LimitExceeded
from ..ir.builder import GraphBuilder
from ..ir.dims import Dim, bind_size
from ..ir.graph import Graph, Initializer, Node
from ..ir.kernel import Kernel
from ..ir.op import Attribute
from ..ir.types import Array
from ..ir.value import Value
from ..ops.control_flow import if_, loop, scan
from ..ops.dynamic_shape import read_shape
from ..ops.infer import operand

Kernels = Mapping[str, tuple[Kernel, ...]]
_INTEGERS = frozenset({int})
MOST_BYTES = 1 << 24  # of a value that sizes are read off, or that leads to one
MOST_KEPT = 64  # sizes for which those computed from them are kept; then all go


class SizeValues:
    """What depends on sizes and constants alone in a graph, and its value for given sizes.

    Args:
        producer: the node that computes a value, or None.
        stored: the stored tensor that a value is, or None.
        outer: of a body, the values of the graph around it that it captures, by its own inputs.
        graph: where it is complete.
    """

    def __init__(
        self,
        producer: Callable[[Value], Node | None],
        stored: Callable[[Value], Initializer | None],
        outer: Mapping[Value, tuple[SizeValues, Value]],
        graph: Graph | None = None,
    ) -> None:
        self._producer, self._initializer, self._outer, self._graph = producer, stored, outer, graph
        self._static: dict[Value, bool] = {}
        self._bodies: dict[Node, tuple[SizeValues, ...]] = {}

    @classmethod
    def of(cls, graph: Graph, outer: Mapping[Value, tuple[SizeValues, Value]] = MappingProxyType({})) -> SizeValues:
        """Those of a graph."""
        return cls(graph.producers().get, graph.initializers.get, outer, graph)

    @classmethod
    def building(cls, builder: GraphBuilder, outer: Mapping[Value, tuple[SizeValues, Value]]) -> SizeValues:
        """Those of a graph that is being built."""
        return cls(builder.producer, builder.initializer_of, outer)

    @property
    def graph(self) -> Graph:
        """The graph."""
        assert self._graph is not None
        return self._graph

    def is_static(self, value: Value) -> bool:
        """Whether a value depends on sizes and constants alone, and can be computed here."""
        pending = [value]
        while pending:
            found = pending[-1]
            if found in self._static:
                pending.pop()
                continue
            node = self._producer(found)
            if node is None:
                self._static[found] = self._stored(found)
                continue
            read = [v for v in node.inputs if v is not None]
            open_ = [v for v in read if v not in self._static]
            if open_:
                pending += open_
                continue
            plain = node.op.effects == "none" or node.op is read_shape
            known = plain and all(self._static[v] for v in read)
            if known and node.bodies:
                known = node.op is if_ and all(
                    body.is_static(v) for body in self.bodies(node) for v in body.graph.outputs.values()
                )
            self._static.update({v: known for v in node.outputs if v is not None})
        return self._static[value]

    def _stored(self, value: Value) -> bool:
        if value in self._outer:
            around, captured = self._outer[value]
            return around.is_static(captured)
        data = self._initializer(value)
        return data is not None and data.role == "constant" and not data.trainable

    def bodies(self, node: Node) -> tuple[SizeValues, ...]:
        """The same of the bodies of a node."""
        found = self._bodies.get(node)
        if found is None:
            found = tuple(SizeValues.of(body, dict(self._captured(node, body))) for body in node.bodies)
            self._bodies[node] = found
        return found

    def _captured(self, node: Node, body: Graph) -> Iterator[tuple[Value, tuple[SizeValues, Value]]]:
        """The inputs of a body that are the same in each iteration, and what they are."""
        given, first = node.inputs, len(node.inputs)
        if node.op is if_:
            given, first = node.inputs[1:], 0
        elif node.op is loop:
            first = 2 + node.attributes["n_carries"]
        elif node.op is scan:
            first = node.attributes["n_carries"] + node.attributes["n_xs"]
        for inner, value in list(zip(body.inputs, given, strict=False))[first:]:
            if value is not None:
                yield inner, (self, value)

    def reads(self) -> Iterator[tuple[SizeValues, Node]]:
        """The nodes that read sizes off values that depend on sizes alone, in order, bodies too."""
        for node in self.graph.nodes:
            if node.op is read_shape and self.is_static(operand(node)):
                yield self, node
            for body in self.bodies(node) if node.bodies else ():
                yield from body.reads()

    def compute(self, value: Value, sizes: Mapping[str, int], kernels: Kernels) -> Array | None:
        """The value for these sizes, or None where some that it needs are not known.

        Args:
            value: static.
            sizes: by name.
            kernels: the reference's, by op.

        Raises:
            InputError: with these sizes a node can't be computed.
        """
        return _Computing(self, sizes, kernels).value(value)


class _Computing:
    """One computation; each value is computed once."""

    def __init__(self, known: SizeValues, sizes: Mapping[str, int], kernels: Kernels) -> None:
        self._known, self._sizes, self._kernels = known, sizes, kernels
        self._arrays: dict[Value, Array | None] = {}

    def value(self, value: Value) -> Array | None:
        pending = [value]
        while pending:
            found = pending[-1]
            if found in self._arrays:
                pending.pop()
                continue
            node = self._known._producer(found)
            if node is None:
                self._arrays[found] = self._stored(found)
                continue
            open_ = [v for v in node.inputs if v is not None and v not in self._arrays]
            if open_:
                pending += open_
                continue
            self._arrays.update(zip((v for v in node.outputs if v is not None), self._run(node), strict=False))
        return self._arrays[value]

    def _stored(self, value: Value) -> Array | None:
        if value in self._known._outer:
            around, captured = self._known._outer[value]
            return around.compute(captured, self._sizes, self._kernels)
        data = self._known._initializer(value)
        return None if data is None else data.array

    def _run(self, node: Node) -> list[Array | None]:
        outputs = [v for v in node.outputs if v is not None]
        arrays = [None if v is None else self._arrays[v] for v in node.inputs]
        if any(a is None and v is not None for a, v in zip(arrays, node.inputs, strict=True)):
            return [None] * len(outputs)
        attributes = bound_attributes(node, self._sizes)
        if any(isinstance(n, Dim) for a in attributes.values() for n in (a if isinstance(a, tuple) else (a,))):
            return [None] * len(outputs)
        if node.op is if_:
            assert arrays[0] is not None
            body = self._known.bodies(node)[0 if arrays[0] else 1]
            return [body.compute(v, self._sizes, self._kernels) for v in body.graph.outputs.values()]
        if node.op is read_shape:
            return [arrays[0]]
        for value in outputs:
            bound = value.type.bind(self._sizes)
            if bound.is_bound and bound.nbytes > MOST_BYTES:
                raise LimitExceeded(
                    f"{node.describe()}: sizes are computed from its result, {bound}, of {bound.nbytes} bytes; the "
                    f"most is {MOST_BYTES}"
                )
        try:
            with np.errstate(all="ignore"):  # infinities and NaN are results, as on a device
                results: Any = self._kernels[node.op.name][0].code(attributes, *arrays)
        except (TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise InputError(f"{node.describe()}: it can't be computed for {_listed(self._sizes)}: {error}") from None
        found = results if isinstance(results, tuple) else (results,)
        return [np.asarray(r, v.type.dtype.numpy) for r, v in zip(found, node.outputs, strict=False) if v is not None]


def static_reads(graph: Graph) -> tuple[tuple[SizeValues, Node], ...]:
    """The nodes of a graph that read sizes off values that depend on sizes alone; see ``SizeValues.reads``."""
    return tuple(SizeValues.of(graph).reads()) if has_reads(graph.nodes) else ()


def completed(reads: Iterable[tuple[SizeValues, Node]], sizes: Mapping[str, int], kernels: Kernels) -> dict[str, int]:
    """``sizes`` with those that nodes compute from them.

    Args:
        reads: of a graph, see ``static_reads``.
        sizes: by name; perhaps not all that the graph has.
        kernels: the reference's, by op.

    Raises:
        InputError: a size is negative, or can't be computed.
    """
    found = dict(sizes)
    for values, node in reads:
        if any(isinstance(dim, Dim) and str(dim) not in found for dim in node.attributes["sizes"]):
            array = values.compute(operand(node), found, kernels)
            if array is not None:
                take_sizes(node, array, found)
    return found


class CompletedSizes:
    """Adds the sizes that nodes of a graph compute from others; see ``completed``. Safe to use from several threads.

    Args:
        graph: it doesn't change, so the same sizes give the same.
    """

    def __init__(self, graph: Graph) -> None:
        self._reads = [
            (read, {str(dim) for dim in read[1].attributes["sizes"] if isinstance(dim, Dim)})
            for read in static_reads(graph)
        ]
        self._kept: dict[tuple[tuple[str, int], ...], dict[str, int]] = {}

    def of(self, sizes: Mapping[str, int], kernels: Kernels) -> dict[str, int]:
        """``sizes`` with those that are computed from them, the caller's own.

        Args:
            sizes: by name; perhaps not all that the graph has.
            kernels: the reference's, by op; always the same.

        Raises:
            InputError: a size is negative, or can't be computed.
        """
        waiting = [read for read, names in self._reads if not sizes.keys() >= names]
        if not waiting:
            return dict(sizes)
        key = tuple(sizes.items())
        found = self._kept.get(key)
        if found is None:
            found = completed(waiting, sizes, kernels)
            if len(self._kept) >= MOST_KEPT:
                self._kept = {}
            self._kept[key] = found
        return dict(found)


def has_reads(nodes: Iterable[Node]) -> bool:
    """Whether a node, or one in its bodies, reads sizes off a value."""
    for node in nodes:  # a loop, since every model is asked
        if node.op is read_shape or (node.bodies and any(has_reads(body.nodes) for body in node.bodies)):
            return True
    return False


def take_sizes(node: Node, array: Array, sizes: dict[str, int]) -> None:
    """Enters the sizes that a ``read_shape`` node names, of what it reads.

    Raises:
        InputError: one is negative.
    """
    for dim, number in zip(node.attributes["sizes"], array.reshape(-1), strict=True):
        if number < 0:
            raise InputError(f"{node.origin or node.describe()}: its size is computed, and is {int(number)}")
        if isinstance(dim, Dim):
            sizes[str(dim)] = int(number)


def bound_attributes(node: Node, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The attributes of a node, named sizes among them replaced by those given.

    Raises:
        InputError: a size divides by zero.
    """
    attributes = node.attributes
    if not any(type(value) is tuple or type(value) is Dim for value in attributes.values()):
        return dict(attributes)
    try:
        return {key: _bound(value, sizes) for key, value in attributes.items()}
    except InputError as error:
        raise InputError(f"{node.describe()}: {error}") from None


def _bound(attribute: Attribute, sizes: Mapping[str, int]) -> Attribute:
    if isinstance(attribute, tuple):
        if _INTEGERS.issuperset(map(type, attribute)):
            return attribute
        return tuple([_bound(item, sizes) for item in attribute])
    return bind_size(attribute, sizes) if isinstance(attribute, Dim) else attribute


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {size}" for name, size in sizes.items()) or "these sizes"
