"""State of a session: outputs of a run that are inputs of the next, like the cache of a decoder."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .errors import InputError
from .execute.arguments import DeclaredInputs, checked_array, sizes_of_shapes
from .execute.run_state import KeptState
from .host import checks
from .ir.dims import Dim, bind_size
from .ir.graph import Graph
from .ir.types import Array, TensorType
from .ops.dynamic_shape import deferred, forms_of
from .passes.dynamic_regions import depends_on_data

_PAST = re.compile(r"past_key_values?|past")
_PRESENT = re.compile(r"present_key_values?|present")
_CROSS = re.compile(r"(?<![a-z])(encoder|cross)(?![a-z])")  # keys and values of what an encoder gave


def cache_state(model: Any) -> dict[str, str]:
    """The outputs of a decoder that are its cache, each with the input that takes it at the next token.

    An input ``past_key_values.0.key``, ``past.0.key`` or ``past_0`` is paired with the output ``present.0.key``, or
    ``present_0``: the names differ in their begin alone. The result is meant for ``Session(model, state=...)``. An
    input of cross attention (``past_key_values.0.encoder.key``) that has no output, since it stays as it is from token
    to token, is left out: it is given to each run.

    Args:
        model: has ``inputs`` and ``outputs`` by name.

    Raises:
        InputError: no input has such a name, or another one has no output.
    """
    inputs: Mapping[str, TensorType] = model.inputs
    outputs: Mapping[str, TensorType] = model.outputs
    present = {_PRESENT.sub("", name, count=1): name for name in outputs if _PRESENT.match(name)}
    past = {name: present.get(_PAST.sub("", name, count=1)) for name in inputs if _PAST.match(name)}
    # Sizes and flags have such names too: an input that is no tensor of floats needs no output.
    past = {name: output for name, output in past.items() if output is not None or inputs[name].rank > 2}
    alone = [name for name, output in past.items() if output is None]
    if len(alone) < len(past):
        alone = [name for name in alone if not _CROSS.search(name)]
    if not past or alone:
        what = f"no output goes with the inputs {', '.join(alone)}" if past else "no input is named past..."
        raise InputError(
            f"the cache is not found by names: {what}; expected inputs like 'past_key_values.0.key' and outputs like "
            f"'present.0.key'. The inputs: {', '.join(inputs)}; the outputs: {', '.join(outputs)}. Pair them yourself: "
            "state={output: input}"
        )
    return {output: name for name, output in past.items() if output is not None}


class SessionState:
    """What runs of a session leave for the next, by the name of the input.

    One run at a time may use it.

    Args:
        graph: the model's.
        pairs: outputs, and the inputs that they become; see ``checked_pairs``.
        kept: where programs find it and leave it; None: it is given to them, and they return it.
    """

    def __init__(self, graph: Graph, pairs: Mapping[str, str], kept: KeptState | None) -> None:
        self._inputs = {value.name: value for value in graph.inputs}
        self._pairs, self._kept = pairs, kept
        self._names = frozenset(pairs.values())
        self._types = {name: graph.outputs[output].type for output, name in pairs.items()}
        sizes = [size for type_ in self._types.values() for size in type_.shape]
        self._may_be_empty = graph.has(deferred) or any(not isinstance(size, int) or size == 0 for size in sizes)
        self._fed = DeclaredInputs(tuple(value for value in graph.inputs if value.name not in self._names))
        self._arrays: dict[str, Array] = {}

    @property
    def outputs(self) -> Collection[str]:
        """Names of the outputs that become inputs."""
        return self._pairs.keys()

    def checked(self, given: Any, out: Mapping[str, Array] | None) -> dict[str, Array]:
        """The inputs that aren't state, see ``checked_inputs``.

        Raises:
            InputError: also where an input is given that is state, or an array for an output that is.
        """
        written = [name for name in out or () if name in self._pairs]
        if written:
            raise InputError(f"out: the session keeps {written[0]!r} as state; read it by session.state")
        listed = [name for name in given if name in self._names] if isinstance(given, Mapping) else []
        if listed:
            raise InputError(
                f"{', '.join(map(repr, listed))}: the session keeps this as state; leave it out, or set it by "
                "session.reset({name: array})"
            )
        return self._fed.checked(given)

    def arguments(self, given: Mapping[str, Array]) -> dict[str, Array]:
        """All inputs in the model's order: those that are given, and the state; its data, or its shapes alone.

        What else is given comes behind them.

        State that no run has left yet is zero. A size of it that an input which is given has too is as large as there,
        one that is a number in the output is that; others are 0: no token is in the cache.
        """
        found = self._found()
        missing = self._names - found.keys()
        if missing:
            fed = self._fed.values
            sizes = sizes_of_shapes(fed, [given[value.name].shape for value in fed])
            self._set({name: _zeros(self._inputs[name].type, self._types[name], sizes) for name in missing})
            found = self._found()
        found.update(given)
        return {**{name: found[name] for name in self._inputs}, **given}

    def _found(self) -> dict[str, Array]:
        """What runs left, or arrays of its shapes."""
        if self._kept is None:
            return {**self._arrays}
        return {name: _shaped(type_) for name, type_ in self._kept.types.items()}

    def _set(self, arrays: Mapping[str, Array], *, others: bool = True) -> None:
        """Begins with these; ``others``: and with what else there is."""
        if self._kept is None:
            self._arrays = {**(self._arrays if others else {}), **arrays}
        else:
            types = {name: TensorType(self._inputs[name].type.dtype, array.shape) for name, array in arrays.items()}
            self._kept.write({name: (types[name], array) for name, array in arrays.items()}, others=others)

    def leave(self, results: dict[str, Array], given: Mapping[str, Array]) -> None:
        """Takes its outputs out of the results of a run that ``arguments`` were for; see ``complete``.

        An output may be empty where the input can't be, an empty batch: the branch of a merged decoder that reads what
        its cross attention keeps gives that. What the run read stays then.

        Args:
            results: of the run.
            given: the inputs that aren't state.
        """
        before = self._arrays
        if self._kept is None:
            self._arrays = {name: results.pop(output) for output, name in self._pairs.items()}
        if not self._may_be_empty:
            return
        if self._kept is None:
            left: dict[str, Any] = {name: array.shape for name, array in self._arrays.items()}
        else:
            left = {name: type_.shape for name, type_ in self._kept.types.items()}
        if all(0 not in shape for shape in left.values()):
            return
        fed = self._fed.values
        sizes = sizes_of_shapes(fed, [given[value.name].shape for value in fed])
        none = [name for name, shape in left.items() if _lacks(shape, self._inputs[name].type, sizes)]
        if self._kept is None:
            self._arrays |= {name: before[name] for name in none}
        elif none:
            self._kept.take_back(none)

    def complete(self, results: dict[str, Array], names: Iterable[str]) -> None:
        """Adds copies of those of its outputs that are named to the results of a run."""
        results |= self._results(names)

    def read(self) -> dict[str, Array]:
        """Copies by the name of the input; empty before the first run."""
        if self._kept is None:
            return {name: array.copy() for name, array in self._arrays.items()}
        return {name: self._kept.read(name) for name in self._kept.types}

    def _results(self, names: Iterable[str]) -> dict[str, Array]:
        """Copies of some outputs, which the last run left."""
        wanted = {output: self._pairs[output] for output in names if output in self._pairs}
        if not wanted:
            return {}
        there = self.read()
        return {output: there[name] for output, name in wanted.items()}

    def reset(self, values: Mapping[str, Any]) -> None:
        """Forgets what runs left, and begins with ``values``; where that fails, what runs left is still there.

        Raises:
            InputError: an input that is no state, or another dtype, rank or size than it declares.
        """
        unknown = [name for name in values if name not in self._names]
        if unknown:
            raise InputError(f"reset: {unknown[0]!r} is no state; the state: {', '.join(sorted(self._names))}")
        given = [self._inputs[name] for name in values]
        arrays = {value.name: checked_array(value.name, value.type, values[value.name]).copy() for value in given}
        sizes_of_shapes(given, [array.shape for array in arrays.values()])
        self._set(arrays, others=False)


def _lacks(shape: Sequence[int], declared: TensorType, sizes: Mapping[str, int]) -> bool:
    """Whether an axis is empty that has a size in what is declared."""
    wanted = [bind_size(dim, sizes) for dim in declared.shape]
    return any(size == 0 and isinstance(want, int) and want > 0 for size, want in zip(shape, wanted, strict=True))


_NOTHING = bytes(16)  # an element of any type


def _shaped(type_: TensorType) -> Array:
    """An array without data of its own that stands for a shape."""
    return np.ndarray(type_.sizes, type_.dtype.numpy, _NOTHING, 0, (0,) * type_.rank)


def stays(graph: Graph, pairs: Mapping[str, str]) -> bool:
    """Whether programs of a graph can leave state where the next find it: one program computes all of it."""
    strings = any(graph.outputs[output].type.dtype.kind == "s" for output in pairs)
    return not strings and not forms_of(graph) and not depends_on_data(graph)


def checked_pairs(graph: Graph, state: Mapping[str, str]) -> dict[str, str]:
    """``state``, of which all names are known and all types agree.

    Raises:
        InputError: there is no such output or input, an input is named twice, or the types of a pair can't agree.
    """
    pairs = {output: _checked(graph, output, name) for output, name in checks.mapping("state", state).items()}
    names = list(pairs.values())
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise InputError(f"state: several outputs become the input {twice[0]!r}; it takes one")
    return pairs


def _zeros(type_: TensorType, after: TensorType, sizes: Mapping[str, int]) -> Array:
    """State before the first run, which becomes an output of type ``after``."""
    shape = []
    for dim, left in zip(type_.shape, after.shape, strict=True):
        size = bind_size(dim, sizes)
        if isinstance(size, Dim):
            size = bind_size(size, dict.fromkeys(size.names, 0)) if isinstance(left, Dim) else left
        shape.append(size)
    return np.zeros([int(size) if not isinstance(size, Dim) else 0 for size in shape], type_.dtype.numpy)


def _checked(graph: Graph, output: str, name: str) -> str:
    """The name of the input that an output becomes, both of which there are, and whose types can agree."""
    inputs = {value.name: value.type for value in graph.inputs}
    for what, wanted, known in (("output", output, graph.outputs), ("input", name, inputs)):
        if wanted not in known:
            raise InputError(f"state: the model has no {what} {checks.shown(wanted)}{_nearest(wanted, known)}")
    before, after = inputs[name], graph.outputs[output].type
    fixed = [(a, b) for a, b in zip(before.shape, after.shape, strict=False) if type(a) is type(b) is int and b > 0]
    if before.dtype != after.dtype or before.rank != after.rank or any(a != b for a, b in fixed):
        raise InputError(f"state: the output {output!r} is {after}; the input {name!r}, which it becomes, is {before}")
    return name


def _nearest(wanted: object, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(str(wanted), names, 1)
    return f"; do you mean {near[0]!r}?" if near else f"; it has: {', '.join(names)}"
