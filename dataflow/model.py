"""A model: a graph, the newest data of its parameters, and the file that it came from."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .editable import Editable
from .errors import InputError, ModelError
from .host import checks
from .host.class_names import class_names
from .host.fork import renew_in_child
from .host.keywords import answering
from .host.named import Named
from .ir.builder import built
from .ir.edits import Edit, dropped, edited, is_by_hand
from .ir.graph import Graph, with_data_of
from .ir.specialize import Form, Given, Interpreter, Listed, Specialize, Wanted
from .ir.types import Array, TensorType
from .ir.value import Value
from .ops.dynamic_shape import forms_of, maps_of
from .session import Session


class Parameter:
    """A stored tensor of a model.

    Attributes:
        name: as in the graph, and in the file.
        aliases: other names that patterns match: the path of what reads it, the exporter's scope.
        role: ``parameter``, ``constant`` or ``statistic``.
        trainable: whether a Trainer changes it by default.
    """

    def __init__(self, model: Model, value: Value, aliases: tuple[str, ...]) -> None:
        data = model.graph.initializers[value]
        self._model, self._value = model, value
        self.name = value.name
        self.aliases = aliases
        self.role = data.role
        self.trainable = data.trainable

    @property
    def type(self) -> TensorType:
        """The dtype and shape."""
        return self._value.type

    @property
    def array(self) -> Array:
        """The newest value, read-only."""
        return self._model._newest(self.name)

    def set(self, array: Any) -> None:
        """Replaces the value by a copy of ``array``.

        While a Trainer owns the weights, what it trains is set, and running statistics that it updates: its next step
        goes on from there, with moments as they are.

        Raises:
            InputError: another dtype or shape; or a Trainer owns the weights and can't take the value, as where it
                doesn't train the parameter, or several processes do.
        """
        found = checks.array(f"parameter {self.name!r}: the value", array)
        wanted = self.type
        if found.dtype != wanted.dtype.numpy or found.shape != wanted.sizes:
            raise InputError(
                f"parameter {self.name!r}: expected {wanted}, got {found.dtype}[{', '.join(map(str, found.shape))}]; "
                f"convert it with .astype(np.{wanted.dtype}) and .reshape{wanted.sizes}"
            )
        with self._model.lock:
            if self._model._assign is None:
                self._model._replace(self.name, found.copy())
            else:
                self._model._assign(self.name, found.copy())

    def __repr__(self) -> str:
        return f"<Parameter {self.name!r} {self.type} {'trainable' if self.trainable else self.role}>"


@answering()
class Model(Editable):
    """A graph with parameters that can change.

    Attributes:
        graph: immutable; ``arrays`` has the newest data of its initializers.
        source: what the format that loaded it keeps for saving; None for a model built by hand. Its ``absent``, where
            there is one, names parameters that the network had and the file lacks, which a Trainer says.
        specialize: makes the graph anew where ``graph`` can't be bound to the sizes of inputs, or None.
        interpreter: runs the model where data decide in loops which nodes there are, or None.
        metadata: texts by key that files of the model have beside the graph; can be changed, and is saved.
        lock: held while a Trainer changes the weights, and while they are read together.
    """

    def __init__(
        self,
        graph: Graph,
        *,
        aliases: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
        source: object = None,
        specialize: Specialize | None = None,
        interpreter: Interpreter | None = None,
        metadata: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.graph = built("Model: the graph", graph)
        self.metadata = dict(metadata)
        self.source = source
        self.specialize, self.interpreter = specialize, interpreter
        self.aliases = MappingProxyType(dict(aliases))
        self.version = 0  # goes up with every change of data
        self.lock = threading.RLock()
        self._torn = False
        self._changed: dict[str, Array] = {}
        self._owner: Callable[[str], Array | None] | None = None
        self._assign: Callable[[str, Array], None] | None = None
        self._by_name = {value.name: value for value in graph.initializers}
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock; weights that another thread was just changing can't be used."""
        self._torn = self._torn or (not self.lock.acquire(blocking=False) and self._owner is not None)
        self.lock = threading.RLock()

    def check_complete(self) -> None:
        """Refuses weights that a thread of the parent was changing when this process was forked."""
        if self._torn:
            raise ModelError(
                "this process was forked while another thread trained the model: its weights here are half of one "
                "step and half of another; fork between two steps, or load the model again"
            )

    @property
    def inputs(self) -> Mapping[str, TensorType]:
        """Name to type of what is fed at each run."""
        return MappingProxyType({value.name: value.type for value in self.graph.inputs})

    @property
    def outputs(self) -> Mapping[str, TensorType]:
        """Name to type of the results."""
        return MappingProxyType({name: value.type for name, value in self.graph.outputs.items()})

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of classes that ``metadata`` has, in the order of their numbers."""
        return class_names(self.metadata)

    @property
    def forms(self) -> Mapping[str, Form]:
        """Inputs and outputs that are no tensors but sequences or optionals; what types they have there stands for it.

        A session takes a list or tuple of arrays for a sequence, None for what is absent, and gives them so.
        """
        return MappingProxyType(forms_of(self.graph))

    @property
    def maps(self) -> Mapping[str, tuple[int, ...] | tuple[str, ...]]:
        """Outputs that a session gives as lists of maps, and their keys: one per row of the matrix that training reads.

        Such are the probabilities by class of models from scikit-learn. Inputs that are maps, as behind its
        DictVectorizer, are among them: a session takes a map, a list of them, or the matrix.
        """
        return MappingProxyType(maps_of(self.graph))

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Stored tensors that could be trained or updated: not constants that are no floats or have one element.

        Nor those of a file's model that nobody named, which a converter made: the file doesn't have them as tensors.
        """
        found = {}
        for value, data in self.graph.initializers.items():
            stored = not data.literal or is_by_hand(self.source)
            floats = value.type.dtype.is_float and value.type.elements > 1
            if data.role != "constant" or (stored and floats):
                found[value.name] = Parameter(self, value, self.aliases.get(value.name, ()))
        return MappingProxyType(Named("parameter", found))

    def arrays(self) -> dict[str, Array]:
        """The newest data of every initializer, by name, all of one step; read-only arrays."""
        with self.lock:
            return {name: self._newest(name) for name in self._by_name}

    def newest_names(self) -> frozenset[str]:
        """Names of the initializers whose newest data is not what the graph holds."""
        return frozenset(self._names_of_changes())

    def copy(self) -> Model:
        """An independent model with today's data."""
        twin = Model(self.graph, aliases=self.aliases, source=self.source, specialize=self.specialize)
        twin.interpreter = self.interpreter
        self.copy_data(twin)
        return twin

    def __deepcopy__(self, memo: Any) -> Model:
        """As ``copy``: what a graph is made of can't change, and is shared."""
        return self.copy()

    def __getstate__(self) -> dict[str, Any]:
        """With today's data, all of one step; a Trainer of them stays here."""
        with self.lock:
            self.check_complete()
            changed = {name: self._newest(name) for name in self._names_of_changes()}
            state = {key: value for key, value in vars(self).items() if key not in ("lock", "_owner", "_assign")}
        return state | {"_changed": changed, "aliases": dict(self.aliases)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self.aliases = MappingProxyType(state["aliases"])
        self.lock, self._owner, self._assign = threading.RLock(), None, None
        renew_in_child(self)

    def copy_data(self, twin: Model) -> None:
        """Gives today's data and metadata to another model of the same graph."""
        with self.lock:
            twin._changed = {name: self._newest(name) for name in self._names_of_changes()}
            twin.metadata = dict(self.metadata)

    def edited(self, graph: Graph, edits: Sequence[Edit], added: Collection[str], *, reduced: bool = False) -> Model:
        """The model with a graph that was changed in these names; see ``Editable``."""
        if any(node.op.name == "deferred" for node in self.graph.nodes):
            raise ModelError("the model is converted anew for each form of its inputs; its graph can't be edited")
        names = {edit.old: edit.new for edit in edits if edit.readers}
        aliases = {names.get(name, name): found for name, found in self.aliases.items()}
        source = edited(self.source, edits, added, reduced=reduced)
        return Model(graph, aliases=aliases, source=source, metadata=self.metadata)

    def _dropped(self, name: str, taken: Collection[str]) -> str:
        return dropped(self.source, name, taken)

    def with_graph(self, graph: Graph, specialize: Specialize | None = None) -> Model:
        """A model of another graph with the same source; data of initializers that both have, alike in type, stays."""
        twin = Model(graph, aliases=self.aliases, source=self.source, specialize=specialize, metadata=self.metadata)
        with self.lock:
            for name in self._names_of_changes():
                value = twin._by_name.get(name)
                if value is not None and value.type == self._by_name[name].type:
                    twin._changed[name] = self._newest(name)
        return twin

    def __call__(self, inputs: Any, **options: Any) -> dict[str, Array]:
        """The outputs of one run, by name; a Session is faster for several."""
        return Session(self, **options).run(inputs)

    def __repr__(self) -> str:
        count = sum(v.type.elements for v in self.graph.initializers)
        return f"<Model {self.graph.name!r}: {len(self.graph.nodes)} nodes, {count} stored elements>"

    def _repr_html_(self) -> str:
        return self.graph._repr_html_()

    # ---- data -----------------------------------------------------------------------------------------

    def own(self, newest: Callable[[str], Array | None], assign: Callable[[str, Array], None]) -> None:
        """Makes a Trainer the owner of the weights.

        Args:
            newest: gives those that it holds, by name, None for others.
            assign: takes another value of one, of the same dtype and shape.

        Raises:
            InputError: another Trainer owns them.
        """
        with self.lock:
            if self._owner is not None:
                raise InputError("another Trainer owns this model's weights; close it, or train model.copy()")
            self._owner, self._assign = newest, assign

    def release(self, data: Mapping[str, Array]) -> None:
        """Ends a Trainer's ownership and keeps its last data."""
        with self.lock:
            self._owner = self._assign = None
            for name, array in data.items():
                self._replace(name, array)

    def _names_of_changes(self) -> set[str]:
        owned = set() if self._owner is None else {n for n in self._by_name if self._owner(n) is not None}
        return owned | set(self._changed)

    def _newest(self, name: str) -> Array:
        if name not in self._by_name:
            raise ModelError(f"the model has no stored tensor {name!r}")
        self.check_complete()
        array = None
        if self._owner is not None:
            with self.lock:
                array = self._owner(name) if self._owner is not None else None
        if array is None:
            array = self._changed.get(name)
        if array is None:
            array = self.graph.initializers[self._by_name[name]].array
        view = array.view()
        view.flags.writeable = False
        return view

    def _replace(self, name: str, array: Array) -> None:
        array.flags.writeable = False
        self._changed[name] = array
        self.version += 1

    def graph_with_data(self) -> Graph:
        """The graph with today's data in its initializers, all of one step."""
        with self.lock:
            if not self._names_of_changes():
                return self.graph
            stored = {
                value: dataclasses.replace(data, array=self._newest(value.name))
                for value, data in self.graph.initializers.items()
            }
        return dataclasses.replace(self.graph, initializers=stored)

    def specialized(self, types: Mapping[str, Given], values: Mapping[str, Array]) -> Graph | Wanted | Listed | None:
        """The graph for inputs of these types, with today's data; see ``Specialize``. None where ``graph`` is all."""
        if self.specialize is None:
            return None
        made = self.specialize(types, values)
        if isinstance(made, Wanted):
            return made
        graph = made if isinstance(made, Graph) else made.graph
        newest = None if graph is None else with_data_of(graph, self.graph_with_data())
        return newest if isinstance(made, Graph) else Listed(newest, made.lengths)
