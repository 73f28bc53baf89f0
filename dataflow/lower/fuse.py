"""Graph -> Graph: where the pattern of a fused op stands, the op takes its place if a device has a kernel for it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ..errors import InputError
from ..graph import Attribute, Graph, Node, Value
from ..op import Op
from ..registry import Registry
from ..types import TensorType
from .groups import Groups
from .patterns import Free, Shape, attributes_of, shapes
from .pins import Pins

_COMMUTE = frozenset({"add", "mul", "maximum", "minimum"})


def fuse(
    graph: Graph, pins: Pins, registry: Registry, changed: Collection[str] = (), *, differentiable: bool = False
) -> Graph:
    """The graph with every pattern replaced that the device of its first node computes as one; most nodes first.

    Inner values must have no other reader, and a pattern must not span the boundary of a joint graph.

    Args:
        graph: bound.
        pins: what runs where.
        registry: has the ops with patterns, and the devices' kernels.
        changed: names of initializers whose data may change: no constants of a pattern.
        differentiable: only ops with a gradient of their own, and where the device has a kernel for that too: for a
            graph that is yet to be differentiated. The gradient of the op ``name`` is the op ``name_grad``.
    """
    patterns: dict[str, list[tuple[Op, Shape]]] = {}
    for op in registry.ops.values():
        offered = any(op.name in registry.kernels[device] for device in pins.devices)
        if op.pattern and offered and not (differentiable and op.gradient is None):
            for shape in shapes(op):
                patterns.setdefault(shape.last.op.name, []).append((op, shape))
    if not patterns:
        return graph
    for found in patterns.values():
        found.sort(key=lambda entry: -entry[1].size)
    search = _Search(graph, pins, registry, changed, differentiable)
    for node in reversed(graph.nodes):
        if node.op.name in patterns and node not in search.taken:
            search.replace(node, patterns[node.op.name])
    return search.result()


class _Match:
    """One pattern at one place: what its nodes, values and free constants stand for there, so far."""

    def __init__(self, search: _Search, shape: Shape) -> None:
        self.search, self.shape = search, shape
        self.nodes: dict[Node, Node] = {}
        self.values: dict[Value, Value] = {}
        self.free: dict[str, Attribute] = {}

    def node(self, wanted: Node, node: Node) -> Iterator[None]:
        """Stops once for every way in which ``node``, with what feeds it, is ``wanted``."""
        if node.op.name != wanted.op.name or node in self.search.taken or node.bodies:
            return
        known = self.free
        if wanted.attributes:
            self.free = dict(known)
        if all(_agrees(key, value, node, self.free) for key, value in wanted.attributes.items()):
            self.nodes[wanted] = node
            inputs = node.inputs
            if len(inputs) != len(wanted.inputs):
                inputs += (None,) * (len(wanted.inputs) - len(inputs))
            yield from self.operands(wanted.inputs, inputs, 0)
            if node.op.name in _COMMUTE and inputs[0] is not inputs[1]:
                yield from self.operands(wanted.inputs, inputs[::-1], 0)
            del self.nodes[wanted]
        self.free = known

    def operands(self, wanted: Sequence[Value | None], values: Sequence[Value | None], at: int) -> Iterator[None]:
        """The same for operands from ``at`` on."""
        bound = []
        while at < len(values):
            inner, value = wanted[at] if at < len(wanted) else None, values[at]
            at += 1
            if inner is None or value is None:
                if inner is not value:
                    break
            elif inner in self.values:
                if self.values[inner] is not value:
                    break
            else:
                self.values[inner] = value
                bound.append(inner)
                if inner in self.shape.makers or inner in self.shape.scalars:
                    for _ in self.computed(inner, value):
                        yield from self.operands(wanted, values, at)
                    break
        else:
            yield
        for inner in bound:
            del self.values[inner]

    def computed(self, wanted: Value, value: Value) -> Iterator[None]:
        """The same for an operand that is a node's result or a number."""
        maker = self.shape.makers.get(wanted)
        if maker is None:
            yield from self.scalar(self.shape.scalars[wanted], self.search.constant(value))
            return
        node = self.search.makers.get(value)
        if node is not None and node.outputs.index(value) == maker.outputs.index(wanted):
            yield from self.node(maker, node)

    def scalar(self, wanted: float | Free, number: float | None) -> Iterator[None]:
        """The same for a constant."""
        if number is None:
            return
        if not isinstance(wanted, Free):
            if wanted == number:
                yield
        elif wanted.name in self.free:
            if self.free[wanted.name] == number:
                yield
        else:
            self.free[wanted.name] = number
            yield
            del self.free[wanted.name]


class _Search(Groups):
    def __init__(
        self, graph: Graph, pins: Pins, registry: Registry, changed: Collection[str], differentiable: bool
    ) -> None:
        super().__init__(graph, pins, registry)
        self.changed, self.differentiable = changed, differentiable

    def replace(self, last: Node, patterns: Sequence[tuple[Op, Shape]]) -> None:
        """Puts the first op in the place of its pattern that ends with ``last``."""
        around = {self.makers[v].op.name for v in last.inputs if v in self.makers}
        for op, shape in patterns:
            if shape.around <= around and self.found(op, shape, last):
                return

    def found(self, op: Op, shape: Shape, last: Node) -> bool:
        """Whether the op took the place of its pattern."""
        match = _Match(self, shape)
        for _ in match.node(shape.last, last):
            members = set(match.nodes.values())
            made = self.made(op, match, last) if self.alone(members, last, match) else None
            first = min(members, key=self.place.__getitem__)
            device = self.taker(made, first) if made is not None else None
            if made is None or device is None:
                continue
            if not self.differentiable or f"{op.name}_grad" in self.registry.kernels[device]:
                self.take(members, last, made, first)
                return True
        return False

    def constant(self, value: Value) -> float | None:
        """The one number of an initializer that stays as it is."""
        data = self.graph.initializers.get(value)
        if data is None or data.factor is not None or data.array.size != 1 or value.name in self.changed:
            return None
        return float(data.array.reshape(-1)[0]) if data.array.dtype.kind in "fiu" else None

    def alone(self, members: set[Node], last: Node, match: _Match) -> bool:
        """Whether nobody else needs what the members compute on the way."""
        if len(members) < len(match.nodes) or not self.together(members):
            return False
        inner = {v for node in members if node is not last for v in node.outputs if v is not None}
        outer = (match.values.get(v) for v in match.shape.inputs if v is not None)
        if not inner.isdisjoint(self.kept) or not inner.isdisjoint(outer):
            return False
        return all(members.issuperset(self.readers.get(value, ())) for value in inner)

    def made(self, op: Op, match: _Match, last: Node) -> Node | None:
        """The fused node, when its types fit."""
        inputs = [None if v is None else match.values[v] for v in match.shape.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        attributes = attributes_of(op, match.shape, match.free)
        try:
            op.check_arity(len(inputs), [v is None for v in inputs])
            inferred = op.infer(*[None if v is None else v.type for v in inputs], **attributes)
        except InputError:
            return None
        types = inferred if isinstance(inferred, tuple) else (inferred,)
        result = last.outputs[0]
        if result is None or types[0] != result.type or any(v is not None for v in last.outputs[1:]):
            return None
        outputs = (result, *(self.extra(last, index, type_) for index, type_ in enumerate(types[1:], 1)))
        return Node(op, last.name, tuple(inputs), outputs, attributes, (), last.origin)

    def extra(self, last: Node, index: int, type_: TensorType) -> Value | None:
        """A further result of the op, where a gradient may read it."""
        return Value(f"{last.name}:{index}", type_) if self.differentiable else None


def _agrees(key: str, wanted: Attribute, node: Node, free: dict[str, Attribute]) -> bool:
    """Whether an attribute of ``node`` is as in the pattern; what was free there is bound in ``free``."""
    value = node.attributes.get(key)
    if isinstance(wanted, Free):
        return bool(free.setdefault(wanted.name, value) == value)
    if key == "axis" and node.inputs[0] is not None and isinstance(value, int):
        rank = node.inputs[0].type.rank  # counted from the front or from the back
        return bool(value % rank == wanted % rank) if rank else value == wanted
    return bool(value == wanted)
