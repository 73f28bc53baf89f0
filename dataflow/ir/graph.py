"""The graph: nodes and their order. Immutable; a pass returns a new one.

A graph is in SSA form: every value is a graph input, an initializer or an output of exactly one node. Nodes
stand in topological order. Values and nodes compare by identity.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from ..errors import ModelError, PluginError, blamed
from ..host.quick_init import quick_init
from .dims import Dim
from .op import AnyOp, Attribute, View
from .operand import outside
from .types import Array
from .value import Value

T = TypeVar("T")


@quick_init
@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One use of an op.

    Attributes:
        op: the declaration.
        name: for messages; unique in its graph.
        inputs: values; None for an optional input that is absent.
        outputs: values; None for an extra output that nobody reads.
        attributes: constants by name, complete (defaults filled in), in the order of the declaration.
        bodies: graphs that belong to the node (If, Loop, Scan, Fused).
        origin: where it came from, for errors: a line of the user's code or an ONNX node and opset.
        pin: id of the device that the user wants it on, where it replaces pinned nodes of other names; else empty.
    """

    op: AnyOp
    name: str
    inputs: tuple[Value | None, ...]
    outputs: tuple[Value | None, ...]
    attributes: Mapping[str, Attribute]
    bodies: tuple[Graph, ...] = ()
    origin: str = ""
    pin: str = ""

    def __repr__(self) -> str:
        return format_node(self)

    def __reduce__(self) -> tuple[Any, ...]:
        held = dict(self.attributes)  # of which a view can't be pickled
        return Node, (self.op, self.name, self.inputs, self.outputs, held, self.bodies, self.origin, self.pin)

    def operations(self) -> int:
        """Floating-point operations, by the op's declaration or one per element of a result.

        Raises:
            PluginError: the op's ``cost`` fails.
        """
        if self.op.cost is None:
            return sum([value.type.elements for value in self.outputs if value is not None])
        with blamed(f"{self.describe()}: its cost"):
            return self.op.cost(self)

    def view_of(self, strides: tuple[int, ...]) -> View | None:
        """Where the result lies in the first input, whose elements have these strides; None: not in place.

        Raises:
            PluginError: the op's ``view`` fails, gives something else, or elements that the input hasn't.
        """
        if self.op.view is None:
            return None
        with blamed(f"{self.describe()}: its view"):
            found = self.op.view(self, strides)
        result = self.outputs[0]
        if found is None or (isinstance(found, View) and (result is None or len(found.strides) == result.type.rank)):
            if found is not None and result is not None:
                self._check_inside(found, strides)
            return found
        expected = "None, or a View with a stride for each axis of the result"
        raise PluginError(f"{self.describe()}: its view gave {found!r}; expected {expected}")

    def _check_inside(self, view: View, strides: tuple[int, ...]) -> None:
        """Refuses a view with elements outside of its source: they would be of other values, or of nobody."""
        source, result = self.inputs[0], self.outputs[0]
        assert source is not None and result is not None
        one, other = source.type, result.type
        layouts = (one.shape, strides, one.dtype.nbytes(1)), (other.shape, tuple(view.strides), other.dtype.nbytes(1))
        found = outside(*layouts, view.offset)
        if found is not None:
            raise PluginError(
                f"{self.describe()}: its view gave {view}, elements {found[0]} to {found[1]} of its operand, whose "
                f"elements lie from {found[2]} to {found[3]}"
            )

    def describe(self) -> str:
        """Op, name and origin, as errors begin."""
        where = f" ({self.origin})" if self.origin else ""
        return f"{self.op.name} {self.name!r}{where}"


Role = Literal["parameter", "constant", "statistic", "passing"]


@quick_init
@dataclass(frozen=True, slots=True, eq=False)
class Initializer:
    """Data attached to a value: a parameter or a constant.

    Attributes:
        array: read-only; its dtype and shape are the value's.
        role: ``parameter`` may be trained; ``constant`` never is; ``statistic`` is updated by its own op; ``passing``
            is a state that is not kept from run to run: it lies in scratch memory and is written before it is read.
        factor: where there is one, the data are ``array`` times it; the product is made when it is needed, see
            ``hostmemory.data_of``, so that of a weight that is only prepacked there is no second copy.
        origin: the parameter of an exporter's module that it is, or was computed of, where the file says so: tensors of
            two are no copies of one, though they begin alike.
        literal: a constant that nobody named: no parameter of a file's model, see ``Model.parameters``.
    """

    array: Array
    role: Role = "constant"
    trainable: bool = False
    factor: Array | None = None
    origin: str = ""
    literal: bool = False

    def at(self, sizes: Any) -> Initializer:
        """The data for some sizes, a ``Substitution``: those that are computed from traced sizes are others."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _stored, (self.array, self.role, self.trainable, self.factor, self.origin, self.literal)


def _stored(array: Array, *others: Any) -> Initializer:
    array.flags.writeable = False  # which a pickle doesn't say
    return Initializer(array, *others)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A pair of values that share memory: ``before`` is read, ``after`` is written over it.

    Attributes:
        name: of the persistent memory that holds it.
    """

    name: str
    before: Value
    after: Value


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """Nodes in topological order, with ordered inputs and outputs.

    Attributes:
        inputs: values fed at each run.
        outputs: values returned, by the name users see.
        nodes: in topological order.
        initializers: data for values that are neither inputs nor computed.
        states: pairs of values kept from run to run.
        stages: of a graph that is several programs in a row: the name of each, with the names of the outputs and states
            that are complete at its end; empty for a single program. Where outputs are in none of them they are joined:
            they run at once, and all outputs are returned at the end.
    """

    inputs: tuple[Value, ...]
    outputs: Mapping[str, Value]
    nodes: tuple[Node, ...]
    initializers: Mapping[Value, Initializer] = field(default_factory=dict)
    states: tuple[State, ...] = ()
    name: str = ""
    stages: Mapping[str, frozenset[str]] = field(default_factory=dict)
    _facts: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        given = (dict(self.outputs), self.nodes, dict(self.initializers), self.states, self.name, dict(self.stages))
        return Graph, (self.inputs, *given)

    def __post_init__(self) -> None:
        for name in ("outputs", "initializers", "stages"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def fact(self, find: Callable[[Graph], T]) -> T:
        """``find(self)``, found once: a graph doesn't change, and many passes ask. Nobody changes what is found."""
        facts = self._facts
        if find not in facts:
            facts[find] = find(self)
        found: T = facts[find]
        return found

    def has(self, *ops: AnyOp) -> bool:
        """Whether it has a node of one of these ops, beside those in bodies."""
        return not self.fact(_ops).isdisjoint(ops)

    def values(self) -> list[Value]:
        """Every value: inputs, initializers, then what nodes compute in order."""
        found = [*self.inputs, *self.initializers]
        for node in self.nodes:
            found += node.outputs  # type: ignore[arg-type]
        return found if None not in found else [value for value in found if value is not None]

    def stage_stops(self) -> tuple[int, ...]:
        """For each stage how many nodes are of it or of those before: up to the last that computes one of its results.

        It follows from the names of the results, so passes that keep those keep the stages. One number, that of all
        nodes, without stages.
        """
        index = {value: at for at, node in enumerate(self.nodes, 1) for value in node.outputs if value is not None}
        results = {**{state.name: state.after for state in self.states}, **self.outputs}
        stops, stop = [], 0
        for names in self.stages.values():
            stop = max([stop, *(index.get(results[name], 0) for name in names)])
            stops.append(stop)
        return (*stops[:-1], len(self.nodes))

    @property
    def has_open_sizes(self) -> bool:
        """Whether the type of a value has a size that isn't known; those in bodies aside."""
        return self.fact(_has_open_sizes)

    @property
    def joined(self) -> bool:
        """Whether its stages run at once."""
        return bool(self.stages) and not frozenset().union(*self.stages.values()).issuperset(self.outputs)

    def producers(self) -> dict[Value, Node]:
        """The node that computes each computed value."""
        return self.fact(_producers)

    def readers(self) -> dict[Value, list[Node]]:
        """The nodes that read each value, in order; a value that nobody reads is absent."""
        return self.fact(_readers)

    def find(self, name: str) -> Value:
        """The value called ``name``.

        Raises:
            ModelError: there is none; the message has the nearest names.
        """
        for value in self.values():
            if value.name == name:
                return value
        import difflib

        known = dict.fromkeys([*self.outputs, *(v.name for v in self.values())])  # an output's name may be another
        near = difflib.get_close_matches(name, known, 3)
        raise ModelError(f"the graph has no value {name!r}; nearest: {', '.join(map(repr, near)) or 'none'}")

    def check(self) -> None:
        """Raises ModelError where the graph is not in SSA form or not in topological order."""
        known: dict[Value, str] = {}
        names: set[str] = set()

        def define(value: Value, by: str) -> None:
            if value in known:
                raise ModelError(f"value {value.name!r} is defined twice: by {known[value]} and by {by}")
            if value.name in names:
                raise ModelError(f"two values are called {value.name!r}; the second comes from {by}")
            known[value] = by
            names.add(value.name)

        for value in self.inputs:
            define(value, "the inputs")
        for value in self.initializers:
            define(value, "the initializers")
        for node in self.nodes:
            for read in node.inputs:
                if read is not None and read not in known:
                    raise ModelError(
                        f"{node.describe()}: input {read.name!r} is not defined before it; "
                        "nodes must stand in topological order"
                    )
            for written in node.outputs:
                if written is not None:
                    define(written, node.describe())
            for body in node.bodies:
                body.check()
        for name, value in self.outputs.items():
            if value not in known:
                raise ModelError(f"output {name!r} reads {value.name!r}, which nothing computes")
        for state in self.states:
            for value in (state.before, state.after):
                if value not in known:
                    raise ModelError(f"state {state.name!r} names {value.name!r}, which nothing computes")

    def __str__(self) -> str:
        lines = [f"graph {self.name}".rstrip()]
        lines += [f"  input {v!r}" for v in self.inputs]
        for value, data in self.initializers.items():
            role = "trainable " + data.role if data.trainable else data.role
            lines.append(f"  {role} {value!r}")
        lines += ["  " + line for node in self.nodes for line in format_node(node).splitlines()]
        lines += [f"  state {s.name}: %{s.before.name} -> %{s.after.name}" for s in self.states]
        lines += [f"  output {name} = %{v.name}" for name, v in self.outputs.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        import html

        return f"<pre>{html.escape(str(self))}</pre>"


def _ops(graph: Graph) -> frozenset[AnyOp]:
    return frozenset([node.op for node in graph.nodes])


def _has_open_sizes(graph: Graph) -> bool:
    return any(Dim in map(type, value.type.shape) for value in graph.values())


def _producers(graph: Graph) -> dict[Value, Node]:
    return {v: node for node in graph.nodes for v in node.outputs if v is not None}


def _readers(graph: Graph) -> dict[Value, list[Node]]:
    found: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                reading = found.get(value)
                if reading is None:
                    found[value] = [node]
                elif reading[-1] is not node:  # it may read a value twice
                    reading.append(node)
    return found


def with_data_of(graph: Graph, other: Graph) -> Graph:
    """``graph`` with the data and roles that initializers of the same name and type have in ``other``."""
    data = {(v.name, v.type): stored for v, stored in other.initializers.items()}
    stored = {v: data.get((v.name, v.type), own) for v, own in graph.initializers.items()}
    return dataclasses.replace(graph, initializers=stored)


def format_node(node: Node) -> str:
    """One line for a node, with types; its bodies are indented below it."""
    results = ", ".join("_" if v is None else repr(v) for v in node.outputs)
    operands = ", ".join("_" if v is None else f"%{v.name}" for v in node.inputs)
    attributes = "".join(f", {key}={value}" for key, value in node.attributes.items())
    text = f"{results} = {node.op.name}({operands}{attributes})"
    for body in node.bodies:
        text += "\n" + "\n".join("    " + line for line in str(body).splitlines())
    return text
