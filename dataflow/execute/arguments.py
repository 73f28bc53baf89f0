"""Checks arguments, and allocates results."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ..errors import InputError, OutOfMemoryError
from ..host import checks
from ..host.limits import hold
from ..host.system_memory import require_memory
from ..ir.dims import Dim, Size
from ..ir.graph import Graph
from ..ir.operand import Operand
from ..ir.types import MOST_AXES, MOST_BYTES, Array, TensorType
from ..ir.value import Value


def checked_inputs(declared: Sequence[Value], inputs: Any, stored: Collection[Value] = ()) -> dict[str, Array]:
    """Contiguous, aligned arrays of the declared dtypes, one per input, in order; shapes are not looked at.

    Args:
        declared: the inputs.
        inputs: a mapping, a tuple or list of arrays in order, or one array where there is one input.
        stored: tensors that the model has by itself, for errors.

    Raises:
        InputError: unknown and missing names (all at once), or a wrong dtype.
    """
    named = named_inputs(declared, inputs, stored)
    return {v.name: checked_array(v.name, v.type, named[v.name]) for v in declared}


class DeclaredInputs:
    """The inputs of a model, whose names and dtypes are looked up once.

    Args:
        values: in order.
        stored: tensors that the model has by itself, for errors.
    """

    __slots__ = ("_forms", "_stored", "values")

    def __init__(self, values: Sequence[Value], stored: Collection[Value] = ()) -> None:
        self.values, self._stored = values, stored
        self._forms = [(value.name, value.type.dtype.numpy) for value in values]

    def checked(self, inputs: Any) -> dict[str, Array]:
        """See ``checked_inputs``; arrays that fit as they are, as most do, are looked at once."""
        if type(inputs) is np.ndarray and len(self._forms) == 1:
            inputs = {self._forms[0][0]: inputs}
        if type(inputs) is dict and len(inputs) == len(self._forms):
            found: dict[str, Array] = {}
            for name, dtype in self._forms:
                array = inputs.get(name)
                if type(array) is not np.ndarray or array.dtype is not dtype:
                    break
                flags = array.flags
                if not (flags.c_contiguous and flags.aligned):
                    break
                found[name] = array
            else:
                return found
        return checked_inputs(self.values, inputs, self._stored)


def named_inputs(declared: Sequence[Value], inputs: Any, stored: Collection[Value] = ()) -> Mapping[str, Any]:
    """What is given for each input, by name; ``stored`` tensors are for errors.

    Raises:
        InputError: unknown and missing names, all at once.
    """
    if inputs is None:
        inputs = {}
    if not isinstance(inputs, Mapping):
        several = isinstance(inputs, tuple) and all(hasattr(item, "shape") for item in inputs)
        given = list(inputs) if several or (isinstance(inputs, (tuple, list)) and len(declared) != 1) else [inputs]
        if len(given) != len(declared):
            names = ", ".join(v.name for v in declared)
            raise InputError(f"got {len(given)} inputs, the model has {len(declared)}: {names}")
        inputs = {v.name: array for v, array in zip(declared, given, strict=True)}
    named: Mapping[str, Any] = inputs
    missing = [v.name for v in declared if v.name not in inputs]
    if missing or len(inputs) != len(declared):
        known = {v.name for v in declared}
        unknown = [str(n) for n in inputs if n not in known]
        near = [m for n in unknown for m in difflib.get_close_matches(n, known, 1)]
        reasons = [f"unknown inputs: {', '.join(unknown)}"] if unknown else []
        reasons += [f"missing inputs: {', '.join(missing)}"] if missing else []
        reasons += [f"nearest: {', '.join(near)}"] if near else []
        if missing and not unknown and len(missing) < len(declared):
            reasons += ["model.with_outputs(names) has no more inputs than these outputs need"]
        reasons += [
            f"{v.name!r} is stored in the model, and no input; where it is among model.parameters, "
            f"model.parameters[{v.name!r}].set(array) and session.reload() give the runs from then on other data"
            for v in stored
            if v.name in unknown
        ]
        raise InputError(
            "; ".join(reasons) + f". The model's inputs: {', '.join(f'{v.name}: {v.type}' for v in declared)}"
        )
    return named


def checked_array(name: str, type_: TensorType, given: Any) -> Array:
    """``given`` as a contiguous, aligned array of the declared dtype; the shape is not looked at.

    Raises:
        InputError: another dtype, or numbers that don't fit it.
    """
    wanted = type_.dtype
    if isinstance(given, (bool, int, float, list, tuple)):  # Python numbers take the input's dtype
        try:
            array = np.asarray(given, wanted.numpy)
        except (ValueError, TypeError, OverflowError) as error:
            raise InputError(f"input {name!r}: expected {type_}, got numbers that don't fit: {error}") from None
    elif isinstance(given, np.ndarray):
        array = given
    else:
        array = checks.borrowed(f"input {name!r}", given)
    if wanted.kind == "s" and array.dtype.kind in "UT":
        array = array.astype(object)
    if array.dtype != wanted.numpy:
        raise InputError(
            f"input {name!r}: expected {type_}, got dtype {array.dtype}; convert it with .astype(np.{wanted})"
        )
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype.isnative:
        return array
    return np.array(array, wanted.numpy, order="C")


def sizes_of(graph: Graph, arguments: Mapping[str, Array]) -> dict[str, int]:
    """The size of each named dim, from the inputs; see ``sizes_of_shapes``."""
    return sizes_of_shapes(graph.inputs, [arguments[value.name].shape for value in graph.inputs])


def sizes_of_shapes(values: Sequence[Value], shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """The size of each named dim, from the shapes that are given for values.

    Raises:
        InputError: a shape doesn't fit its declaration or another input.
    """
    sizes: dict[str, int] = {}
    origin: dict[str, str] = {}
    for value, shape in zip(values, shapes, strict=True):
        if len(shape) != value.type.rank:
            raise _unfit(value, shape, f"rank {value.type.rank} is expected")
        for axis, (dim, size) in enumerate(zip(value.type.shape, shape, strict=True)):
            if isinstance(dim, Dim):
                name = str(dim)
                if dim.names == {name}:
                    if sizes.setdefault(name, size) != size:
                        raise _unfit(value, shape, f"{name} is {sizes[name]} in {origin[name]}")
                    origin.setdefault(name, repr(value.name))
            elif dim != size:
                raise _unfit(value, shape, f"axis {axis} must be {dim}")
    for value, shape in zip(values, shapes, strict=True):  # what is computed from other sizes
        bound = value.type.bind(sizes)
        if bound.is_bound and bound.sizes != shape:
            raise _unfit(value, shape, f"with {sizes} it must be {bound}")
    return sizes


def _unfit(value: Value, shape: Sequence[Size], why: str) -> InputError:
    got = TensorType(value.type.dtype, tuple(shape))
    return InputError(f"input {value.name!r}: expected {value.type}, got {got}: {why}")


def checked_shapes(graph: Graph, inputs: Any) -> dict[str, Array]:
    """Arrays without data that stand for shapes given by a user."""
    if inputs is None:
        inputs = {}
    if isinstance(inputs, Mapping):
        checks.mapping("inputs", inputs)
    else:
        if not hasattr(inputs, "shape") and not isinstance(inputs, (tuple, list)):
            raise InputError(f"expected shapes or arrays by name or in order, got {inputs!r}")
        single = len(graph.inputs) == 1 and (hasattr(inputs, "shape") or all(isinstance(d, int) for d in inputs))
        given = [inputs] if single else list(inputs)
        if len(given) > len(graph.inputs):
            raise InputError(f"got {len(given)} shapes, the model has {len(graph.inputs)} inputs")
        inputs = {value.name: shape for value, shape in zip(graph.inputs, given, strict=False)}
    unknown = [name for name in inputs if name not in {v.name for v in graph.inputs}]
    if unknown:
        raise InputError(f"the model has no input {unknown[0]!r}; it has: {', '.join(v.name for v in graph.inputs)}")
    found: dict[str, Array] = {}
    for value in graph.inputs:
        shape = inputs.get(value.name, value.type.shape)
        shape = getattr(shape, "shape", shape)
        if not isinstance(shape, (tuple, list)) or not all(isinstance(d, (int, np.integer)) for d in shape):
            raise InputError(f"input {value.name!r} is {value.type}: give its shape as whole numbers")
        dtype, shape = value.type.dtype, tuple(map(int, shape))
        if TensorType(dtype, shape).nbytes > MOST_BYTES or len(shape) > MOST_AXES:
            raise InputError(f"input {value.name!r}: shape {shape} is larger than any memory, or has too many axes")
        found[value.name] = np.broadcast_to(np.empty((), dtype.numpy), shape)
    return found


def check_result(name: str, array: object) -> None:
    """Refuses what results can't be written into."""
    if not isinstance(array, np.ndarray):
        raise InputError(f"out[{name!r}]: expected a numpy array, got {type(array).__name__}")
    if not (array.flags.c_contiguous and array.flags.writeable and array.flags.aligned):
        raise InputError(f"out[{name!r}]: expected a contiguous, aligned array that can be written")


def check_out(out: Mapping[str, object], outputs: Collection[str]) -> None:
    """Refuses names that are no outputs, and what results can't be written into."""
    for name, array in out.items():
        if name not in outputs:
            raise InputError(f"out: there is no output {name!r}; there are: {', '.join(outputs)}")
        check_result(name, array)


def write_out(out: Mapping[str, Array], results: dict[str, Any]) -> None:
    """Writes results into arrays of the caller, which take their positions.

    Raises:
        InputError: one has another dtype or shape.
    """
    for name, array in out.items():
        made = results[name]
        if array.dtype != made.dtype or array.shape != made.shape:
            raise InputError(f"out[{name!r}]: expected {made.dtype}{list(made.shape)}")
        array[...] = made
        results[name] = array


class Arguments:
    """The inputs of a plan, whose forms are looked up once.

    Args:
        inputs: where each lies.
    """

    __slots__ = ("_forms",)

    def __init__(self, inputs: Mapping[str, Operand]) -> None:
        self._forms = [(name, operand.type, operand.type.dtype.numpy) for name, operand in inputs.items()]

    def checked(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """Contiguous, aligned arrays by name; see ``checked_array``."""
        return {name: _fitting(name, type_, wanted, given[name]) for name, type_, wanted in self._forms}


def _fitting(name: str, type_: TensorType, wanted: np.dtype[Any], given: Any) -> Array:
    """See ``checked_array``; most arrays fit as they are."""
    if type(given) is np.ndarray and given.dtype == wanted:
        flags = given.flags
        if flags.c_contiguous and flags.aligned:
            return given
    return checked_array(name, type_, given)


class KeptResults(dict[str, Array]):
    """Results that later runs write too: nobody replaces one of them."""


class Results:
    """The results of a plan, whose forms and bytes are looked up once.

    Args:
        outputs: the type of each.
    """

    __slots__ = ("_bytes", "_forms")

    def __init__(self, outputs: Mapping[str, TensorType]) -> None:
        self._forms = [(name, type_.dtype.numpy, type_.sizes, type_) for name, type_ in outputs.items()]
        self._bytes = sum(type_.nbytes for type_ in outputs.values())

    def arrays(
        self, out: Mapping[str, Array] | None = None, arguments: Mapping[str, Array] = MappingProxyType({})
    ) -> dict[str, Array]:
        """An array per output: the caller's where given, else a new one.

        Args:
            out: the caller's arrays.
            arguments: what the run reads, contiguous; results in ``out`` must lie elsewhere.

        Raises:
            InputError: an array in ``out`` has no such output, or another dtype or shape, or can't be written, or
                shares bytes with an argument or another one.
            OutOfMemoryError: there is not so much memory.
        """
        given = {} if out is None else self._checked(out, arguments)
        new = self._bytes - sum([array.nbytes for array in given.values()])
        if new:
            require_memory(new, "the results")
            hold(new, "the results")
        found: dict[str, Array] = {}
        for name, dtype, shape, type_ in self._forms:
            array = given.get(name)
            if array is None:
                try:
                    array = np.empty(shape, dtype)
                except MemoryError:
                    raise OutOfMemoryError(f"result {name!r}: {type_.nbytes} bytes could not be had") from None
            found[name] = array
        return found

    def _checked(self, out: Mapping[str, Array], arguments: Mapping[str, Array]) -> Mapping[str, Array]:
        """The caller's arrays, all of which fit; most do, and are looked at once."""
        fitting = 0
        if type(out) is dict:
            for name, dtype, shape, _ in self._forms:
                array = out.get(name)
                if type(array) is np.ndarray and array.dtype is dtype and array.shape == shape:
                    flags = array.flags
                    fitting += flags.c_contiguous and flags.writeable and flags.aligned
        if type(out) is not dict or fitting != len(out):
            self._refuse_misfits(out)
        _refuse_overlap(out, arguments)
        return out

    def _refuse_misfits(self, out: Mapping[str, Array]) -> None:
        check_out(checks.mapping("out", out), [name for name, *_ in self._forms])
        for name, dtype, shape, type_ in self._forms:
            array = out.get(name)
            if array is not None and (array.dtype != dtype or array.shape != shape):
                raise InputError(f"out[{name!r}]: expected {type_}, got {array.dtype}{list(array.shape)}")


def _refuse_overlap(out: Mapping[str, Array], arguments: Mapping[str, Array]) -> None:
    """A step may read an input, or write another result, after a result that shares its bytes was written."""
    for index, (name, result) in enumerate(out.items()):
        for other, array in arguments.items():
            if np.may_share_memory(result, array):  # exact: all are contiguous
                raise InputError(f"out[{name!r}] shares memory with input {other!r}; give it an array of its own")
        for other, array in list(out.items())[:index] if index else ():
            if np.may_share_memory(result, array):
                raise InputError(f"out[{name!r}] shares memory with out[{other!r}]; give it an array of its own")
