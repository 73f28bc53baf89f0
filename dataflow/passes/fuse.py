"""Graph -> Graph: nodes that match the pattern of a fused op are replaced by it if a device has a kernel for it."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ..errors import InputError, blamed
from ..host.limits import poll
from ..ir.graph import Graph, Node
from ..ir.kernel import Targets
from ..ir.op import AnyOp, Attribute
from ..ir.tracing import key_of
from ..ir.types import TensorType
from ..ir.value import Value
from .grouping import Groups
from .match import Candidates, Free, Shape, Step, attributes_of, candidates

_Fit = tuple[Mapping[str, Attribute], tuple[TensorType, ...]]  # attributes and results of a fused op


def fuse(
    graph: Graph,
    targets: Targets,
    ops: Iterable[AnyOp],
    mutable: Collection[str] = (),
    *,
    differentiable: bool = False,
) -> Graph:
    """The graph with every pattern replaced that the device of its first node computes as one; most nodes first.

    Inner values must have no other reader, unless the pattern shares them, and the nodes of a pattern must be of one
    stage. A shared node stays, perhaps without a reader.

    Args:
        graph: bound.
        targets: the devices and their kernels.
        ops: those with patterns are sought.
        mutable: names of initializers whose data may change: no constants of a pattern.
        differentiable: only ops with a gradient of their own, and where the device has a kernel for that too: for a
            graph that is yet to be differentiated. The gradient of the op ``name`` is the op ``name_grad``.
    """
    offered = {
        op.name: op
        for op in ops
        if op.pattern and not (differentiable and op.gradient is None) and targets.offer(op.name)
    }
    if not offered:
        return graph
    ends = candidates(offered.values())
    search = _Search(graph, targets, offered, mutable, differentiable)
    for node in reversed(graph.nodes):
        poll(node)
        if node.op.name in ends and node not in search.taken:
            search.replace(node, ends[node.op.name])
    return search.result()


class _Match(NamedTuple):
    """What a pattern stands for where it was found.

    Attributes:
        nodes: in the order of the pattern's steps, the last node of the graph first.
        values: by number.
        free: the free constants.
    """

    op: AnyOp
    shape: Shape
    nodes: tuple[Node, ...]
    values: tuple[Value | None, ...]
    free: Mapping[str, Attribute]


class _Matcher:
    """One pattern at one position: what its nodes, values and free constants stand for there, so far."""

    def __init__(self, search: _Search, op: AnyOp, shape: Shape) -> None:
        self.search, self.op, self.shape = search, op, shape
        self.nodes: list[Node] = []
        self.values: list[Value | None] = [None] * shape.count
        self.free: dict[str, Attribute] = {}

    def matches(self, last: Node) -> Iterator[_Match]:
        """Match the remaining pattern nodes, trying both operand orders of commutative ops."""
        makers, taken, nodes = self.search.makers, self.search.taken, self.nodes
        for step in self.shape.steps[len(nodes) :]:
            value = self.values[step.number] if nodes else None
            node = last if value is None else makers[value]
            if node in taken or node in nodes or node.bodies:
                return
            if nodes and not self.alone(step, node):
                return
            nodes.append(node)
            inputs = node.inputs
            if node.op.commutative and inputs[0] is not inputs[1] and self.has(step, node):
                count, values, free = len(nodes), self.values.copy(), self.free.copy()
                if self.reads(step, inputs):
                    yield from self.matches(last)
                del nodes[count:]
                self.values, self.free = values, free
                inputs = inputs[::-1]
            if not self.reads(step, inputs) or not self.has(step, node):
                return
        yield _Match(self.op, self.shape, tuple(nodes), tuple(self.values), dict(self.free))

    def has(self, step: Step, node: Node) -> bool:
        """Whether attributes are as in the pattern; those that are free there become known."""
        given, free = node.attributes, self.free
        for key, wanted in step.attributes:
            value = given.get(key)
            if isinstance(wanted, Free):
                if free.setdefault(wanted.name, value) != value:
                    return False
            elif value != wanted and not (key == "axis" and _same_axis(value, wanted, node)):
                return False
        return True

    def alone(self, step: Step, node: Node) -> bool:
        """Whether only the pattern reads the results of an inner node, and it is the same through each of them."""
        readers, kept = self.search.readers, self.search.kept
        for index, value in enumerate(node.outputs):
            if value is not None and node.op.name not in self.shape.pattern.shared:
                expected = step.readers[index] if index < len(step.readers) else 0
                if value in kept or len(readers.get(value, ())) != expected:
                    return False
        for index, number, known in step.results:
            result = node.outputs[index] if index < len(node.outputs) else None
            if known and self.values[number] is not result:
                return False
            self.values[number] = result
        return True

    def reads(self, step: Step, inputs: Sequence[Value | None]) -> bool:
        """Whether these can be the operands of a step; makes values and constants known."""
        operands, values = step.operands, self.values
        if len(inputs) != len(operands):
            inputs = (*inputs, *[None] * (len(operands) - len(inputs)))
            operands = (*operands, *[None] * (len(inputs) - len(operands)))
        for operand, value in zip(operands, inputs, strict=True):
            if operand is None or value is None:
                if operand is not None or value is not None:
                    return False
            elif operand.known:
                if values[operand.number] is not value:
                    return False
            else:
                values[operand.number] = value
                if operand.maker is not None:
                    maker = self.search.makers.get(value)
                    if maker is None or maker.op.name != operand.maker:
                        return False
                elif operand.constant is not None and not self.is_number(operand.constant, value):
                    return False
        return True

    def is_number(self, wanted: float | Free, value: Value) -> bool:
        """Whether a value is a constant, and the one that is wanted."""
        number = self.search.constant(value)
        if number is None:
            return False
        return bool((self.free.setdefault(wanted.name, number) if isinstance(wanted, Free) else wanted) == number)


class _Search(Groups):
    def __init__(
        self,
        graph: Graph,
        targets: Targets,
        ops: Mapping[str, AnyOp],
        mutable: Collection[str],
        differentiable: bool,
    ) -> None:
        super().__init__(graph, targets)
        self.ops = ops
        self.mutable, self.differentiable = mutable, differentiable
        self.known: dict[Hashable, _Fit] = {}  # by patterns and types

    def replace(self, last: Node, patterns: Candidates) -> None:
        """Replaces the first pattern that ends with ``last`` by its op."""
        if last.outputs[0] is None or any(v is not None for v in last.outputs[1:]):
            return
        level: Iterable[Node] = (last,)
        while patterns.wanted:
            level = {self.makers[v]: None for node in level for v in node.inputs if v in self.makers}
            patterns = patterns.among(node.op.name for node in level)
        for name, shape in patterns.entries:
            for match in _Matcher(self, self.ops[name], shape).matches(last):
                if self.replaced(match):
                    return

    def replaced(self, match: _Match) -> bool:
        """Replaces the nodes of a match by the op, where that is one there and a device has a kernel for it."""
        nodes, values = match.nodes, match.values
        last, first = nodes[0], min(nodes, key=self.position.__getitem__)
        inner = {v for node in nodes if node is not last for v in node.outputs}
        inputs = [None if number is None else values[number] for number in match.shape.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        if not inner.isdisjoint(v for v in inputs if v is not None) or not self.together(nodes):
            return False
        free = match.free.values()
        types = tuple(None if v is None else (v.type.dtype.code, v.type.shape) for v in (*inputs, last.outputs[0]))
        where = nodes.index(first), self.targets.order(first)
        key = key_of(match.shape, where, types, tuple(match.free), tuple(free), tuple(map(type, free)))
        fit = self.known.get(key)
        if fit is None:
            fit = self.fit(match, inputs, last, first)
            if fit is None:
                return False
            self.known[key] = fit
        shared = match.shape.pattern.shared
        self.take((n for n in nodes if n.op.name not in shared), last, self.made(match.op, fit, inputs, last), first)
        return True

    def fit(self, match: _Match, inputs: Sequence[Value | None], last: Node, first: Node) -> _Fit | None:
        """What the op is there, when its types fit and a device has kernels for it; the same for the same types."""
        op, result = match.op, last.outputs[0]
        attributes = attributes_of(op, match.shape, match.free)
        try:
            with blamed(f"{op.name}: infer"):
                inferred = op.infer(*[None if v is None else v.type for v in inputs], **attributes)
        except InputError:
            return None
        types = inferred if isinstance(inferred, tuple) else (inferred,)
        if result is None or types[0] != result.type:
            return None
        fit = attributes, types
        device = self.targets.taker(self.made(op, fit, inputs, last), first)
        if device is None or (self.differentiable and f"{op.name}_grad" not in self.targets.kernels[device]):
            return None
        return fit

    def made(self, op: AnyOp, fit: _Fit, inputs: Sequence[Value | None], last: Node) -> Node:
        """The fused node, with further results where a gradient may read them."""
        attributes, types = fit
        extra = [
            Value(f"{last.name}:{index}", type_) if self.differentiable else None
            for index, type_ in enumerate(types[1:], 1)
        ]
        return Node(op, last.name, tuple(inputs), (last.outputs[0], *extra), attributes, (), last.origin)

    def constant(self, value: Value) -> float | None:
        """The one number of an initializer that stays as it is."""
        data = self.graph.initializers.get(value)
        if data is None or data.factor is not None or value.type.elements != 1 or value.name in self.mutable:
            return None
        return float(data.array.reshape(-1)[0]) if data.array.dtype.kind in "fiu" else None


def _same_axis(axis: Attribute, wanted: Attribute, node: Node) -> bool:
    """Whether two axes of the first operand are one, counted from the front or from the back."""
    value = node.inputs[0]
    rank = value.type.rank if value is not None else 0
    return bool(rank and isinstance(axis, int) and isinstance(wanted, int) and axis % rank == wanted % rank)
