"""What can be changed in the graph of a model: values replaced or frozen, outputs added or left out, names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from .errors import InputError, ModelError
from .host import checks
from .ir.builder import GraphBuilder
from .ir.edits import Edit
from .ir.graph import Graph
from .ir.types import Array, TensorType
from .ir.types import dtype as as_dtype
from .ir.value import Value
from .ops.arithmetic import copy
from .passes.dead_code import eliminate_dead_code

Build = Callable[[Value], Value]


class Editable:
    """Methods of a model that give another model; the model itself stays as it is.

    A model that was loaded keeps the bytes of its file but for what an edit changes.
    """

    graph: Graph

    def graph_with_data(self) -> Graph:
        """The graph with today's data."""
        raise NotImplementedError

    def edited(self, graph: Graph, edits: Sequence[Edit], added: Collection[str], *, reduced: bool = False) -> Any:
        """The model with a graph that was changed in these names."""
        raise NotImplementedError

    def replace(self, name: str, value: Build | str | Any) -> Any:
        """A model in which something else stands for a value.

        Args:
            name: of an inner value, a stored tensor or an input.
            value: a function from the value to what its readers get in its stead; the name of another value that is
                computed before its readers; or an array, which makes it a constant.

        Raises:
            InputError: there is no such value, or an array of another type is given for it.
            ModelError: the nodes behind it don't fit the new value.
        """
        old = self._value(name)
        if callable(value):
            return self._rewired(old, value)
        if isinstance(value, str):
            other = self._value(value)
            return self._rewired(old, lambda _: copy(_in_builder(_, other)))
        return self.freeze({name: value})

    def freeze(self, values: Mapping[str, Any]) -> Any:
        """A model in which inputs, or inner values, are constants.

        Args:
            values: arrays by name.

        Raises:
            InputError: there is no such value, or it has another type or sizes that are named.
        """
        stored = {}
        for name, given in checks.mapping("values", values).items():
            array, type_ = checks.array(f"value {name!r}", given), self._value(name).type
            if not type_.is_bound:
                raise InputError(f"value {name!r} is {type_}, whose sizes are named; only fixed sizes can be frozen")
            if TensorType(as_dtype(array), array.shape) != type_:
                raise InputError(f"value {name!r} is {type_}; got {array.dtype}{list(array.shape)}")
            stored[name] = array
        graph = self.graph_with_data()
        taken = {value.name for value in graph.values()}
        edits = [Edit(name, self._dropped(name, taken)) for name in stored]
        return self.edited(eliminate_dead_code(_rebuilt(graph, stored=stored), extras=False), edits, stored.keys())

    def with_outputs(self, outputs: Sequence[str] | str) -> Any:
        """A model that gives these values, inner ones too, in this order, and computes no more than they need.

        Raises:
            InputError: there is no such value.
        """
        names = checks.texts("outputs", outputs)
        if not names or len(set(names)) < len(names):
            raise InputError(f"outputs are {list(names)}; expected names of values, each once")
        graph = self.graph_with_data()
        own = {value.name: value for value in graph.values()} | dict(graph.outputs)
        for name in names:
            self._value(name)  # or it isn't there
        found = {name: own[name] for name in names}
        reduced = eliminate_dead_code(dataclasses.replace(graph, outputs=found), extras=False)
        read = {v for node in reduced.nodes for v in _reads(node)} | set(reduced.outputs.values())
        inputs = tuple(value for value in reduced.inputs if value in read)
        return self.edited(dataclasses.replace(reduced, inputs=inputs), (), (), reduced=True)

    def append(self, name: str, build: Build, of: str | None = None) -> Any:
        """A model with one more output.

        Args:
            name: of the output.
            build: a function from a value to the output.
            of: the output or inner value that it begins with; the only output by default.

        Raises:
            InputError: there is no such value, or the name is taken.
        """
        graph = self.graph_with_data()
        if of is None and len(graph.outputs) != 1:
            raise InputError(f"the model has {len(graph.outputs)} outputs; name one with of=: {list(graph.outputs)}")
        own = {value.name: value for value in graph.values()} | dict(graph.outputs)
        if of is not None:
            self._value(of)  # or it isn't there
        source = next(iter(graph.outputs.values())) if of is None else own[of]
        if checks.text("name", name) in {*graph.outputs, *(value.name for value in graph.values())}:
            raise InputError(f"the model has a value {name!r} already")
        builder = GraphBuilder(graph.name)
        new = builder.adopt(graph)
        made = _built(build, new[source])
        if made in new.values():
            made = copy(made)
        builder.rename(made, name)
        for output, value in graph.outputs.items():
            builder.output(output, new[value])
        builder.output(name, made)
        changed = builder.finish()
        before = {value.name for value in graph.values()}
        added = {value.name for value in changed.values()} - before
        return self.edited(changed, (), added, reduced=True)

    def rename(self, names: Mapping[str, str]) -> Any:
        """A model in which values have other names: inputs, outputs, stored tensors and inner values.

        Args:
            names: new names by the old ones.

        Raises:
            InputError: there is no such value, or a new name is taken.
        """
        graph = self.graph_with_data()
        known = {value.name for value in graph.values()} | set(graph.outputs)
        for old, new in checks.mapping("names", names).items():
            if old not in known:
                self._value(old)
            if checks.text(f"names: the name of {old!r}", new) in known or not new:
                raise InputError(f"names: {old!r} can't be called {new!r}, as another value is; choose another name")
        if len(set(names.values())) < len(names):
            raise InputError(f"names: {dict(names)} give two values one name")
        edits = [Edit(old, new, readers=True) for old, new in names.items()]
        return self.edited(_rebuilt(graph, names=names), edits, ())

    # ---- how ------------------------------------------------------------------------------------------

    def _value(self, name: str) -> Value:
        output = self.graph.outputs.get(checks.text("the name of a value", name))
        if output is not None:
            return output
        try:
            return self.graph.find(name)
        except ModelError as error:
            raise InputError(str(error)) from None

    def _dropped(self, name: str, taken: Collection[str]) -> str:
        """What a value is called in the file once another has its name."""
        raise NotImplementedError

    def _rewired(self, old: Value, build: Build) -> Any:
        graph = self.graph_with_data()
        if old in self.graph.inputs:
            raise InputError(f"{old.name!r} is an input, whose readers can't be changed; replace what reads it")
        taken = {value.name for value in graph.values()}
        base = self._dropped(old.name, taken)
        changed = _rebuilt(graph, names={old.name: base}, after={old.name: build})
        added = {value.name for value in changed.values()} - taken - {base}
        return self.edited(eliminate_dead_code(changed, extras=False), [Edit(old.name, base)], {*added, old.name})


def _in_builder(value: Value, other: Value) -> Value:
    """The value of the graph that is being built which has the other's name."""
    builder = value.builder
    assert isinstance(builder, GraphBuilder)
    made = [v for node in builder.nodes() for v in node.outputs if v is not None]
    for found in (*builder.inputs(), *builder.initializers(), *made):
        if found.name == other.name:
            return found
    raise InputError(f"value {other.name!r} is computed later than what would read it")


def _built(build: Build, value: Value) -> Value:
    made = build(value)
    if not isinstance(made, Value) or made.builder is not value.builder:
        raise InputError(f"the function gave {checks.shown(made)}; expected a value computed from the one it got")
    return made


def _reads(node: Any) -> list[Value]:
    return [value for value in node.inputs if value is not None]


def _rebuilt(
    graph: Graph,
    *,
    names: Mapping[str, str] | None = None,
    after: Mapping[str, Build] | None = None,
    stored: Mapping[str, Array] | None = None,
) -> Graph:
    """The graph node by node, its types inferred anew.

    Args:
        graph: any.
        names: new names of values and outputs.
        after: what stands for a value, under its old name; ``names`` has another for it.
        stored: arrays in place of inputs and of what nodes compute.
    """
    renamed, builds, arrays = names or {}, after or {}, stored or {}
    builder = GraphBuilder(graph.name)
    builder.reserve(value.name for value in graph.values())
    new: dict[Value, Value] = {}

    def defined(value: Value, made: Value) -> None:
        if value.name in builds:
            made = _built(builds[value.name], made)
            builder.rename(made, value.name)
        new[value] = made

    for value in graph.inputs:
        if value.name in arrays:
            new[value] = builder.initializer(value.name, arrays[value.name])
        else:
            new[value] = builder.input(renamed.get(value.name, value.name), value.type.dtype, value.type.shape)
    for value, data in graph.initializers.items():
        if value.name in arrays:
            new[value] = builder.initializer(value.name, arrays[value.name])
        else:
            defined(value, builder.keep(renamed.get(value.name, value.name), data))
    for node in graph.nodes:
        builder.origin = node.origin or node.name
        outputs = [v for v in node.outputs if v is not None]
        if outputs and all(v.name in arrays for v in outputs):
            new.update({v: builder.initializer(v.name, arrays[v.name]) for v in outputs})
            continue
        if any(v.name in arrays for v in outputs):
            raise InputError(f"{node.describe()} computes several values; freeze all of them, or none")
        inputs = [None if v is None else new[v] for v in node.inputs]
        called = [None if v is None else renamed.get(v.name, v.name) for v in node.outputs]
        made = builder.add(node.op, inputs, node.attributes, bodies=node.bodies, name=node.name, output_names=called)
        for old, found in zip(node.outputs, made.outputs, strict=False):
            if old is not None and found is not None:
                defined(old, found)
    for name, value in graph.outputs.items():
        builder.output(renamed.get(name, name), new[value])
    for state in graph.states:
        builder.state(state.name, new[state.before], new[state.after])
    return builder.finish(graph.stages)
