"""GraphBuilder: makes graphs by hand, in the importer, and in gradient rules."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral
from types import MappingProxyType
from typing import Any

import numpy as np

from ..errors import DataflowError, InputError, ModelError, calls_itself, failure
from ..host import checks
from ..host.keywords import answering
from ..host.limits import poll
from ..host.numbers import integer
from ..host.source_lines import is_own, position
from .dims import Dim, Shape, Size
from .graph import Graph, Initializer, Node, Role, State
from .op import AnyOp, Attribute
from .sized_data import sized_scalar, sized_vector
from .tracing import Traced
from .types import MOST_AXES, MOST_BYTES, Array, DType, TensorType, bool_, element_count, float32, int64
from .types import dtype as as_dtype
from .value import Value, refuse_bool


@answering("add", "again", "value", "scalar", "scalar_of", "unique", "rename", "producer", "initializer_of", "nodes")
class GraphBuilder:
    """Collects values and nodes; ``build`` freezes them.

    Ops called on its values (``df.ops.relu(x)``, ``x @ w``) add their nodes here. Numbers among the operands become
    constants of the other operand's dtype; arrays too beside an operator, as in ``x + array``, and constants of
    their own dtype among those of an op, ``df.ops.add(x, array)``.
    """

    def __init__(self, name: str = "") -> None:
        self.name = checks.text("the name of a graph", name)
        self.origin = ""  # given to new nodes; set by importers
        self._scope: list[str] = []
        self._names: dict[str, int] = {}  # of values; nodes have names of their own
        self._reserved: set[str] = set()  # names that only who asks for them gets
        self._node_names: dict[str, int] = {}
        self._inputs: list[Value] = []
        self._outputs: dict[str, Value] = {}
        self._nodes: list[Node] = []
        self._producers: dict[Value, Node] = {}
        self._indexed = 0  # nodes that are among the producers
        self._initializers: dict[Value, Initializer] = {}
        self._states: list[State] = []
        self._scalars: dict[tuple[DType, float, str], Value] = {}
        self._built = False

    # ---- what a graph begins with -------------------------------------------------------------------

    def input(self, name: str, dtype: DType | str | type, shape: Sequence[int | str | Size]) -> Value:
        """A value fed at each run; a string in ``shape`` is a named dim."""
        if not isinstance(shape, (tuple, list)):
            raise InputError(f"input {name!r}: the shape is {checks.shown(shape)}; expected sizes and names")
        dims: Shape = tuple(Dim(d) if isinstance(d, str) else d for d in shape)
        for dim in dims:
            if isinstance(dim, (Dim, Traced)):
                continue
            if not hasattr(dim, "__index__") or isinstance(dim, bool):
                raise InputError(
                    f"input {name!r}: a size is {checks.shown(dim)}; expected a whole number, or a name for one that "
                    "differs from run to run, e.g. 'batch'"
                )
            if integer(f"input {name!r}: a size", dim, -MOST_BYTES, MOST_BYTES) < 0:
                raise InputError(f"input {name!r}: dim {dim} of shape {shape} is negative; name it, e.g. 'batch'")
        _check_axes(f"input {name!r}", dims)
        value = self.value(name, TensorType(as_dtype(dtype), dims), exact=True)
        self._inputs.append(value)
        return value

    def parameter(self, name: str, array: Any, *, trainable: bool = True) -> Value:
        """A stored tensor that training may change, named within the scopes around it; see ``initializer``."""
        return self.initializer(self.scoped(name), array, role="parameter", trainable=trainable)

    def constant(self, array: Any, name: str | None = None) -> Value:
        """A stored tensor that isn't trained; one without a name is a literal, see ``Initializer``."""
        wanted = "constant" if name is None else name
        value = self.value(wanted, _type_of(array, wanted))
        return self._initialize(value, array, "constant", False, literal=name is None)

    def initializer(
        self,
        name: str,
        array: Any,
        *,
        role: Role = "constant",
        trainable: bool = False,
        origin: str = "",
    ) -> Value:
        """A stored tensor; ``origin`` as in ``Initializer``.

        The array is kept without a copy, through a view that can't be written. Whoever changes it afterwards, or a
        tensor of another library that shares its memory, changes the model until training has given it new weights:
        hand over ``array.copy()`` where that may happen.
        """
        return self._initialize(self.value(name, _type_of(array, name), exact=True), array, role, trainable, origin)

    def _initialize(
        self, value: Value, array: Any, role: Role, trainable: bool, origin: str = "", literal: bool = False
    ) -> Value:
        plain = type(array) is np.ndarray
        data = array.view() if plain else checks.array(f"the data of {value.name!r}", array).view()
        data.flags.writeable = False
        self._initializers[value] = Initializer(data, role, trainable, origin=origin, literal=literal)
        return value

    def keep(self, name: str, data: Initializer) -> Value:
        """A stored tensor of another graph."""
        value = self.value(name, _type_of(data.array, name), exact=True)
        self._initializers[value] = data
        return value

    def keep_as(self, stored: Value, data: Initializer) -> Value:
        """The same stored tensor of another graph, under its name."""
        value = self._like(stored)
        self._initializers[value] = data
        return value

    def scalar(self, number: float, dtype: DType) -> Value:
        """A rank-0 constant, one per number and dtype."""
        if dtype.is_int and (not math.isfinite(number) or number != int(number)):
            raise InputError(
                f"{number} is no whole number, and the other operand is {dtype}; cast that to a float first"
            )
        if dtype is bool_ and number not in (0, 1):
            raise InputError(f"{number} is no bool, and the other operand is; cast that to a number first")
        key = (dtype, number, str(number))  # -0.0 and 0.0 differ
        found = self._scalars.get(key)
        if found is None:
            try:
                with np.errstate(over="ignore"):  # beyond the type's range it is infinite
                    array = np.asarray(number, dtype.numpy)
            except (OverflowError, ValueError, TypeError) as error:
                raise InputError(f"{checks.shown(number)} is no {dtype}: {error}") from None
            found = self._scalars[key] = self.constant(array, "scalar")
        return found

    def scalar_of(self, size: int, number: Callable[[int], float], dtype: DType) -> Value:
        """A rank-0 constant that is computed from a size."""
        given: object = size
        if type(given) is not Traced:
            return self.scalar(number(size), dtype)
        value = self.value("scalar", TensorType(dtype, ()))
        self._initializers[value] = sized_scalar(given, number, dtype)
        return value

    def vector_of(self, name: str, values: Sequence[int], shape: Sequence[int], dtype: DType) -> Value:
        """A stored tensor of sizes, under another shape."""
        given: tuple[object, ...] = tuple(values)
        if not any(type(size) is Traced for size in given):
            return self.initializer(name, np.array(values, dtype.numpy).reshape(shape))
        value = self.value(name, TensorType(dtype, tuple(shape)), exact=True)
        self._initializers[value] = sized_vector(values, shape, dtype)
        return value

    # ---- nodes --------------------------------------------------------------------------------------

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
        """The node that computes ``op``.

        Args:
            op: the declaration.
            inputs: values; numbers and arrays become constants, numbers of the dtype of the first value that isn't of
                bools, beside the condition of a choice; where a choice has none, floats become float32 and whole
                numbers int64.
            attributes: by name; defaults are filled in.
            bodies: the graphs that the node carries.
            name: the node's; made from the op's when None.
            output_names: names for the outputs; None leaves one to the builder.

        Raises:
            InputError: the inputs or attributes don't fit the declaration.
        """
        poll(op.name)
        if self._built:
            raise ModelError(f"{op.name}: the graph {self.name!r} is built already; make a new GraphBuilder")
        operands = self._operands(op, inputs)
        origin = self.origin or _user_line()
        node_name = _unique(self._node_names, name or (self.scoped(op.name) if self._scope else op.name))
        try:
            if len(operands) != len(op.inputs) or None in operands:
                op.check_arity(len(operands), [v is None for v in operands], attributes)
            types = [None if v is None else v.type for v in operands]
            complete = op.plain(op.complete(attributes, types))
            inferred = op.infer(*types, bodies=bodies, **complete) if op.bodies else op.infer(*types, **complete)
            results = inferred if isinstance(inferred, tuple) else (inferred,)
            if len(results) > len(op.outputs) and not op.outputs[-1].endswith("*"):
                raise InputError(f"{op.name}: infer gave {len(results)} types for {len(op.outputs)} outputs")
            for type_ in results:
                if not isinstance(type_, TensorType):
                    raise InputError(f"{op.name}: infer gave {checks.shown(type_)}; expected a TensorType per output")
                shape = type_.shape
                if not isinstance(shape, tuple):
                    raise InputError(f"{op.name}: infer gave the shape {shape!r}; expected a tuple of sizes")
                if len(shape) > MOST_AXES:
                    _check_axes(op.name, shape)
                for size in shape:
                    if type(size) is not int and not isinstance(size, (Dim, Integral)):
                        raise InputError(f"{op.name}: infer gave the size {size!r}; expected whole numbers or sizes")
                if type_.dtype.__class__ is not DType:
                    raise InputError(f"{op.name}: infer gave the dtype {type_.dtype!r}; expected a DType")
                if Dim not in map(type, shape):
                    element_count(shape)  # refuses sizes that overflow, here where they are first computed
        except DataflowError as error:
            where = f" ({origin})" if origin else ""
            raise type(error)(f"{error} [node {node_name!r}{where}]") from None
        except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            where = f" ({origin})" if origin else ""
            shown = ", ".join(f"{key}={checks.shown(value)}" for key, value in attributes.items())
            raise InputError(
                f"{op.name}: its operands or attributes ({shown}) don't fit: {error} [node {node_name!r}{where}]"
            ) from error
        except MemoryError:
            raise  # not the op's alone
        except (Exception, SystemExit) as error:
            if isinstance(error, RecursionError) and not calls_itself(error):
                raise  # what adds the node is nested too deeply
            where = f" ({origin})" if origin else ""
            raise failure(f"{op.name} {node_name!r}{where}: infer", error) from error
        names = output_names or ()
        outputs = []
        for index, type_ in enumerate(results):
            given = names[index] if index < len(names) else None
            if given:
                outputs.append(self.value(given, type_, exact=True))
                continue
            made_up = node_name if index == 0 else f"{node_name}:{index}"
            if given is None:
                made_up = self._unreserved(made_up)
            outputs.append(Value(_unique(self._names, made_up, self._reserved), type_, self))
        node = Node(op, node_name, operands, tuple(outputs), complete, bodies, origin)
        self._nodes.append(node)
        return node

    def again(self, node: Node, inputs: Sequence[Value | None]) -> Node:
        """A node of another graph, with inputs of this one that have the types of its own: nothing is inferred anew."""
        name = node.name
        if name in self._node_names:
            name = _unique(self._node_names, name)
        else:
            self._node_names[name] = 0
        outputs = tuple([None if v is None else self._like(v) for v in node.outputs])
        made = Node(node.op, name, tuple(inputs), outputs, node.attributes, node.bodies, self.origin, node.pin)
        self._nodes.append(made)
        return made

    def value(self, name: str, type: TensorType, *, exact: bool = False) -> Value:
        """A new value of this builder; ``exact`` refuses a name that is taken, and else reserved ones are avoided."""
        checks.text("the name of a value", name)
        if exact and name in self._names:
            raise ModelError(f"the graph has a value {name!r} already; names are unique")
        return Value(self.unique(name if exact else self._unreserved(name)), type, self)

    def _unreserved(self, name: str) -> str:
        """``name``, with as many strokes behind it as are needed: passes before may have made up names with one."""
        while name in self._reserved:
            name += "'"
        return name

    def _like(self, value: Value) -> Value:
        """A value with the name and type of one of another graph."""
        name = value.name
        if name in self._names:
            raise ModelError(f"the graph has a value {name!r} already; names are unique")
        self._names[name] = 0
        return Value(name, value.type, self)

    def rename(self, value: Value, name: str) -> None:
        """Gives a value of this builder another name.

        Raises:
            ModelError: it belongs to another builder, or the name is taken.
        """
        if value.builder is not self:
            raise ModelError(f"value {value.name!r} belongs to another graph")
        names = self._names
        if value.name != name:
            if name in names:
                raise ModelError(f"the graph has a value {name!r} already; names are unique")
            del names[value.name]
            names[name] = 0
            value.name = name

    def output(self, name: str, value: Value) -> None:
        """Names ``value`` as a result of the graph."""
        checks.instance(f"output {checks.text('the name of an output', name)!r}", value, Value)
        if name in self._outputs:
            raise ModelError(f"the graph has an output {name!r} already")
        self._outputs[name] = value

    def state(self, name: str, before: Value, after: Value) -> None:
        """Declares that ``after`` is kept in the memory of ``before``, as a Trainer's programs do; models have none."""
        if before.type != after.type:
            raise ModelError(f"state {name!r}: its type changes from {before.type} to {after.type}")
        self._states.append(State(name, before, after))

    def adopt(self, graph: Graph) -> dict[Value, Value]:
        """Copies a graph's inputs, initializers, nodes and states into this builder.

        Returns:
            The new value of each old one. Outputs are not declared. What nodes give has another name where that is
            taken or reserved.
        """
        new: dict[Value, Value] = {}
        for value in graph.inputs:
            new[value] = self.value(value.name, value.type, exact=True)
            self._inputs.append(new[value])
        for value, data in graph.initializers.items():
            new[value] = self.value(value.name, value.type, exact=True)
            self._initializers[new[value]] = data
        for node in graph.nodes:
            outputs = []
            for value_ in node.outputs:
                if value_ is not None:
                    new[value_] = self.value(self.free_name(value_.name), value_.type)
                outputs.append(None if value_ is None else new[value_])
            inputs = tuple(None if v is None else new[v] for v in node.inputs)
            self._nodes.append(
                Node(
                    node.op,
                    _unique(self._node_names, node.name),
                    inputs,
                    tuple(outputs),
                    node.attributes,
                    node.bodies,
                    node.origin,
                    node.pin,
                )
            )
        self._states += [State(s.name, new[s.before], new[s.after]) for s in graph.states]
        return new

    def scope(self, name: str) -> _Scope:
        """A context in which new nodes and parameters are named ``name/...``, but not what ``initializer`` stores."""
        return _Scope(self._scope, name)

    def scoped(self, name: str) -> str:
        """A name behind the scopes around it: ``encoder/fc1``."""
        return "/".join((*self._scope, name))

    def nodes(self) -> tuple[Node, ...]:
        """The nodes so far."""
        return tuple(self._nodes)

    def inputs(self) -> tuple[Value, ...]:
        """The inputs so far."""
        return tuple(self._inputs)

    def outputs(self) -> dict[str, Value]:
        """The outputs named so far."""
        return dict(self._outputs)

    def initializers(self) -> tuple[Value, ...]:
        """The stored tensors so far."""
        return tuple(self._initializers)

    def initializer_of(self, value: Value) -> Initializer | None:
        """The stored tensor that a value is, if it is one."""
        return self._initializers.get(value)

    def producer(self, value: Value) -> Node | None:
        """The node that computes a value, if one does."""
        for node in self._nodes[self._indexed :]:
            self._producers.update({v: node for v in node.outputs if v is not None})
        self._indexed = len(self._nodes)
        return self._producers.get(value)

    def build(self, stages: Mapping[str, frozenset[str]] = MappingProxyType({})) -> Graph:
        """The finished graph; the builder takes no more nodes afterwards.

        Args:
            stages: see ``Graph``.

        Raises:
            ModelError: the graph has no output, or an output is not its own value.
        """
        if not self._outputs:
            raise ModelError(f"graph {self.name!r} has no output; call output(name, value) first")
        graph = Graph(
            tuple(self._inputs),
            self._outputs,
            tuple(self._nodes),
            self._initializers,
            tuple(self._states),
            self.name,
            stages,
        )
        # Nodes are in order by construction: an operand must belong to this builder. What is named must too.
        named = [*self._outputs.items(), *((s.name, v) for s in self._states for v in (s.before, s.after))]
        for name, value in named:
            if value.builder is not self:
                raise ModelError(f"{name!r} names value {value.name!r}, which belongs to another graph")
        self._built = True
        return graph

    def finish(self, stages: Mapping[str, frozenset[str]] = MappingProxyType({})) -> Graph:
        """The same, once: the graph alone keeps the data then, where its values would keep them with the builder."""
        graph = self.build(stages)
        self._initializers = {}
        return graph

    # ---- names --------------------------------------------------------------------------------------

    def unique(self, name: str) -> str:
        """``name``, with a number behind it when a value has it already; takes it."""
        return _unique(self._names, name, self._reserved)

    def free_name(self, name: str) -> str:
        """``name``, with a number behind it when a value has it already, or it is kept for one."""
        found, count = name, 0
        while found in self._names or found in self._reserved:
            count += 1
            found = f"{name}.{count}"
        return found

    def reserve(self, names: Iterable[str]) -> None:
        """Keeps names for values that will be given them; those that the builder makes up avoid them."""
        self._reserved.update(names)

    # ---- for who puts nodes into a graph that is there ------------------------------------------------

    def take_names(self, values: Iterable[str], nodes: Iterable[str]) -> None:
        """Names that new values and nodes can't have."""
        self._names.update(dict.fromkeys(values, 0))
        self._node_names.update(dict.fromkeys(nodes, 0))

    def take_nodes(self) -> list[Node]:
        """The nodes since they were taken last."""
        taken, self._nodes, self._indexed = self._nodes, [], 0
        return taken

    def take_initializers(self) -> Mapping[Value, Initializer]:
        """The stored tensors; the builder takes no more nodes afterwards."""
        taken, self._initializers, self._built = self._initializers, {}, True
        return taken

    def _operands(self, op: AnyOp, inputs: Iterable[Value | float | Array | None]) -> tuple[Value | None, ...]:
        given = tuple(inputs)
        for item in given:
            if item is not None and (type(item) is not Value or item.builder is not self):
                break
        else:
            return given  # type: ignore[return-value]  # as almost always
        # A condition chooses from what has dtypes of its own.
        chosen = [item for item, name in zip(given, op.inputs, strict=False) if name != "condition"] or given
        values = [v for v in chosen if isinstance(v, Value)]
        like = next((v for v in values if v.type.dtype is not bool_), values[0] if values else None)
        dtype = _dtype_of_numbers(chosen) if like is None else like.type.dtype
        operands: list[Value | None] = []
        for item in given:
            if item is None or isinstance(item, Value):
                if item is not None and item.builder is not self:
                    raise ModelError(f"{op.name}: value {item.name!r} belongs to another graph")
                operands.append(item)
            elif isinstance(item, (bool, int, float)):
                refuse_bool(op.name, like, item)
                operands.append(self.scalar(item, dtype))
            else:
                operands.append(self.constant(checks.array(f"{op.name}: an operand", item)))
        return tuple(operands)


def _dtype_of_numbers(given: Sequence[Any]) -> DType:
    """That of the first array among numbers of Python; else floats become float32 and whole numbers int64."""
    arrays = [item for item in given if isinstance(item, (np.ndarray, np.generic)) and not isinstance(item, float)]
    if arrays:
        return as_dtype(np.asarray(arrays[0]))
    kinds = {bool if isinstance(n, bool) else float if isinstance(n, float) else int for n in given if n is not None}
    return float32 if float in kinds else int64 if int in kinds else bool_


def built(name: str, value: Any) -> Graph:
    """The value, which is a graph that keeps nothing from run to run by itself.

    Raises:
        InputError: it is something else, as the builder of one.
        ModelError: it has states.
    """
    if isinstance(value, Graph) and value.states:
        state = value.states[0]
        raise ModelError(
            f"{name} has the state {state.name!r}, which {state.after.name!r} replaces; only the programs of a Trainer "
            "have such. Make what was there before an input and what comes after an output: Session(model, "
            "state={output: input}) keeps it from run to run, and in training trainer.forward(batch, [output]) returns "
            "it for the next batch"
        )
    if isinstance(value, Graph):
        return value
    advice = "; give what its build() returns" if isinstance(value, GraphBuilder) else ""
    raise InputError(f"{name} is {checks.shown(value)}; expected a Graph{advice}")


def _check_axes(what: str, shape: Shape) -> None:
    if len(shape) > MOST_AXES:
        raise InputError(f"{what} has {len(shape)} axes; at most {MOST_AXES} are supported")


def _type_of(array: Any, name: str) -> TensorType:
    data = checks.array(f"the data of {name!r}", array)
    return TensorType(as_dtype(data), tuple(data.shape))


def _unique(names: dict[str, int], name: str, reserved: Collection[str] = ()) -> str:
    """``name`` or the first free ``name.1``, ``name.2``, ... that isn't reserved; enters it into ``names``."""
    if name not in names:
        names[name] = 0
        return name
    count = names[name]
    while True:
        count += 1
        candidate = f"{name}.{count}"
        if candidate not in names and candidate not in reserved:
            names[name] = count
            names[candidate] = 0
            return candidate


class _Scope:
    def __init__(self, stack: list[str], name: str) -> None:
        self._stack, self._name = stack, name

    def __enter__(self) -> None:
        self._stack.append(self._name)

    def __exit__(self, *_: object) -> None:
        self._stack.pop()


def _user_line() -> str:
    """File and line of the caller outside this package."""
    frame = sys._getframe(1)
    while frame is not None and is_own(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return position(frame.f_code.co_filename, frame.f_lineno) if frame is not None else ""
