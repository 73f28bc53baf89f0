"""The graphs that fused ops stand for, without types: what ``fuse`` looks for."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from ..errors import PluginError, blamed
from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.op import AnyOp, Attribute, Pattern
from ..ir.types import Array, TensorType
from ..ir.value import Value


@dataclass(frozen=True, slots=True, eq=False)
class Free:
    """A constant that may have any value: an attribute of a node, or a scalar operand."""

    name: str


class Operand(NamedTuple):
    """What a node of a pattern reads.

    Attributes:
        number: of the value, in the pattern.
        known: an earlier step has met it.
        maker: the op that computes it, or None for an operand of the pattern.
        constant: the number that it is, or free.
    """

    number: int
    known: bool
    maker: str | None
    constant: float | Free | None


class Step(NamedTuple):
    """One node of a pattern, in the order in which they are looked at: from the last one, breadth first.

    Attributes:
        number: of the value through which it is reached; -1 for the last node.
        op: its name.
        results: of those that the pattern reads, the index, the number, and whether an earlier step has met it.
        readers: how many nodes of the pattern read each result.
        attributes: what they must be.
        operands: None where one is absent.
    """

    number: int
    op: str
    results: tuple[tuple[int, int, bool], ...]
    readers: tuple[int, ...]
    attributes: tuple[tuple[str, Attribute], ...]
    operands: tuple[Operand | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A pattern as steps. Its values have numbers, and no types.

    Attributes:
        pattern: what it was made from.
        inputs: the op's, each a number, or None where an optional one is absent or not read.
        count: of numbers.
        steps: the last node's first.
        levels: ops of the nodes that the last one reads, of those that these read, and so on: to tell in a moment where
            it can't be.
    """

    pattern: Pattern
    inputs: tuple[int | None, ...]
    count: int
    steps: tuple[Step, ...]
    levels: tuple[frozenset[str], ...]


def _shapes(pattern: Pattern, name: str, inputs: tuple[str, ...], attributes: tuple[str, ...]) -> Iterator[Shape]:
    """The pattern with and without each optional operand."""
    free = [Free(key) for key in attributes]
    if pattern.attributes is not None:
        free = [Free(key) for key in inspect.signature(pattern.attributes).parameters]
    optional = [index for index, declared in enumerate(inputs) if declared.endswith("?")]
    absences = itertools.chain.from_iterable(itertools.combinations(optional, n) for n in range(len(optional) + 1))
    return (_traced(pattern, name, inputs, absent, free) for absent in absences)


def _traced(pattern: Pattern, name: str, inputs: Sequence[str], absent: Sequence[int], free: Sequence[Free]) -> Shape:
    tracer = _Tracer(name)
    given = [None if i in absent else tracer.untyped(declared) for i, declared in enumerate(inputs)]
    try:
        result = pattern.build(*given, **{f.name: f for f in free})
    except (Exception, SystemExit) as error:  # anybody's code; the process is the user's
        raise PluginError(f"{name}: its pattern can't be traced: {type(error).__name__}: {error}") from error
    makers = {v: node for node in tracer.nodes() for v in node.outputs if v is not None}
    if not isinstance(result, Value) or result not in makers:
        raise PluginError(f"{name}: its pattern gave {result!r}; expected the one result of a node")
    nodes = [makers[result]]
    for node in nodes:  # grows while it is iterated
        nodes += [m for v in dict.fromkeys(node.inputs) if v in makers and (m := makers[v]) not in nodes]
    numbers: dict[Value, int] = {}
    readers = Counter(v for node in nodes for v in set(node.inputs))
    steps = tuple(_step(node, numbers, readers, makers, tracer.scalars) for node in nodes)
    levels, level = [], nodes[:1]
    while level := list({makers[v]: None for node in level for v in node.inputs if v in makers}):
        levels.append(frozenset([node.op.name for node in level]))
    unread = [declared for declared, v in zip(inputs, given, strict=True) if v is not None and v not in numbers]
    if unread:
        raise PluginError(f"{name}: its pattern does not read {unread[0]!r}; read every operand that isn't None")
    operands = tuple(None if v is None else numbers[v] for v in given)
    return Shape(pattern, operands, len(numbers), steps, tuple(levels))


def _step(
    node: Node,
    numbers: dict[Value, int],
    readers: Mapping[Value | None, int],
    makers: Mapping[Value, Node],
    scalars: Mapping[Value, float | Free],
) -> Step:
    """The step of a node; gives numbers to values that no step has met before."""
    results = []
    for index, value in enumerate(node.outputs):
        if value is not None and readers[value]:
            known = value in numbers
            results.append((index, numbers.setdefault(value, len(numbers)), known))
    reached = next((number for _, number, known in results if known), -1)
    operands: list[Operand | None] = []
    for value in node.inputs:
        if value is None:
            operands.append(None)
        else:
            known, maker = value in numbers, makers.get(value)
            number = numbers.setdefault(value, len(numbers))
            operands.append(Operand(number, known, None if maker is None else maker.op.name, scalars.get(value)))
    counts = tuple([readers[v] for v in node.outputs])
    return Step(reached, node.op.name, tuple(results), counts, tuple(node.attributes.items()), tuple(operands))


class Candidates:
    """Patterns that may end at a node, by what is known of the ops around it.

    Attributes:
        entries: names of ops with their patterns, most nodes first.
        wanted: ops that patterns have at the next level; empty where no pattern has one.
    """

    def __init__(self, entries: Sequence[tuple[str, Shape]], depth: int) -> None:
        self.entries, self.depth = entries, depth
        self.wanted = frozenset[str]().union(*(levels[depth] for _, s in entries if len(levels := s.levels) > depth))
        self._among: dict[frozenset[str], Candidates] = {}

    def among(self, names: Iterable[str]) -> Candidates:
        """Those that are left where the next level has these ops."""
        names = self.wanted.intersection(names)
        found = self._among.get(names)
        if found is None:
            left = [e for e in self.entries if len(e[1].levels) <= self.depth or e[1].levels[self.depth] <= names]
            found = self._among[names] = Candidates(left, self.depth + 1)
        return found


def candidates(ops: Iterable[AnyOp]) -> Mapping[str, Candidates]:
    """The patterns of ops by the name of their last node.

    Raises:
        PluginError: a pattern looks at what it can't know, does not read an operand, or has no node or several results.
    """
    return _candidates(tuple((op.name, op.pattern, op.inputs, tuple(op.attributes)) for op in ops))


@functools.lru_cache(maxsize=32)
def _candidates(
    ops: Sequence[tuple[str, tuple[Pattern, ...], tuple[str, ...], tuple[str, ...]]],
) -> Mapping[str, Candidates]:
    found: dict[str, list[tuple[str, Shape]]] = {}
    for name, patterns, inputs, attributes in ops:
        for pattern in patterns:
            for shape in _shapes(pattern, name, inputs, attributes):
                found.setdefault(shape.steps[0].op, []).append((name, shape))
    return {name: Candidates(sorted(e, key=lambda entry: -len(entry[1].steps)), 0) for name, e in found.items()}


class _Untyped:
    """Stands for a type; whoever asks it for something hears why there is none."""

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        raise TypeError(f"a pattern stands for all types: {key!r} of an operand isn't known; give one without it")


class _Tracer(GraphBuilder):
    """Takes nodes without inferring types.

    Attributes:
        scalars: numbers and free constants among operands.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.scalars: dict[Value, float | Free] = {}

    def untyped(self, name: str) -> Value:
        """A new value."""
        return self.value(name, cast("TensorType", _Untyped()))

    def add(
        self,
        op: AnyOp,
        inputs: Sequence[Value | float | Array | None],
        attributes: Mapping[str, Attribute],
        *,
        bodies: tuple[Graph, ...] = (),
        name: str | None = None,
        output_names: Sequence[str | None] | None = None,
    ) -> Node:
        """The node, whose results have no types."""
        operands = tuple(v if v is None or isinstance(v, Value) else self._scalar(v) for v in inputs)
        op.check_arity(len(operands), [v is None for v in operands])
        outputs = tuple(self.untyped(declared) for declared in op.outputs)
        node = Node(op, op.name, operands, outputs, op.complete(attributes), bodies)
        self._nodes.append(node)
        return node

    def _scalar(self, number: Any) -> Value:
        if not isinstance(number, (Free, bool, int, float)):
            raise TypeError(f"{type(number).__name__} is no operand of a pattern: expected a value or a number")
        value = self.untyped("scalar")
        self.scalars[value] = number
        return value


def attributes_of(op: AnyOp, shape: Shape, free: Mapping[str, Attribute]) -> dict[str, Attribute]:
    """The attributes of the op where its pattern was found with these constants."""
    if shape.pattern.attributes is None:
        return op.complete(free)
    with blamed(f"{op.name}: attributes of its pattern"):
        given = shape.pattern.attributes(**free)
    return op.complete(given)
