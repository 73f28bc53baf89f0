"""Sequences and optionals as arguments and results: lists and None outside, named tensors in a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError
from ..host import checks
from ..ir.graph import Graph
from ..ir.specialize import Argument, Form, Given, element_name
from ..ir.types import Array, TensorType
from ..ir.value import Value
from .arguments import checked_array, named_inputs, sizes_of_shapes


def checked_arguments(graph: Graph, forms: Mapping[str, Form], inputs: Any) -> dict[str, Argument]:
    """What is given for each input, in order: a contiguous, aligned array, a tuple of them, or None.

    Args:
        graph: declares the inputs.
        forms: of those that are no tensors.
        inputs: as for ``checked_inputs``.

    Raises:
        InputError: unknown and missing names, another form, a wrong dtype, or a tensor of another shape.
    """
    given = named_inputs(graph.inputs, inputs)
    found = {v.name: _checked(v, forms.get(v.name), given[v.name]) for v in graph.inputs}
    plain = [v for v in graph.inputs if v.name not in forms]
    sizes_of_shapes(plain, [a.shape for a in flattened({v.name: found[v.name] for v in plain}).values()])
    return found


def _checked(value: Value, form: Form | None, given: Any) -> Argument:
    if form is None:
        return checked_array(value.name, value.type, given)
    if given is None and form.optional:
        return None
    if given is None or (form.sequence and not isinstance(given, (list, tuple))):
        wanted = "a list of arrays" if form.sequence else "an array"
        raise InputError(
            f"input {value.name!r} is a {form}; expected {wanted}{' or None' if form.optional else ''}, "
            f"got {checks.shown(given)}"
        )
    if not form.sequence:
        return checked_array(value.name, value.type, given)
    return tuple(checked_array(element_name(value.name, i), value.type, item) for i, item in enumerate(given))


def types_of(graph: Graph, arguments: Mapping[str, Argument]) -> dict[str, Given]:
    """The types of what is given for the inputs of a graph, for ``specialize``."""
    found: dict[str, Given] = {}
    for value in graph.inputs:
        given, dtype = arguments[value.name], value.type.dtype
        if isinstance(given, tuple):
            found[value.name] = tuple(TensorType(dtype, array.shape) for array in given)
        else:
            found[value.name] = None if given is None else TensorType(dtype, given.shape)
    return found


def flattened(arguments: Mapping[str, Argument]) -> dict[str, Array]:
    """The arrays by the names that inputs of a specialized graph have."""
    found: dict[str, Array] = {}
    for name, given in arguments.items():
        if isinstance(given, tuple):
            found.update((element_name(name, i), array) for i, array in enumerate(given))
        elif given is not None:
            found[name] = given
    return found


def flat_names(names: Sequence[str], lengths: Mapping[str, int | None]) -> tuple[str, ...]:
    """Names of results in a specialized graph."""
    return tuple(flat for name in names for flat in _elements(name, lengths))


def grouped(results: Mapping[str, Array], names: Sequence[str], lengths: Mapping[str, int | None]) -> dict[str, Any]:
    """Results by name: arrays, lists of them, or None."""
    found: dict[str, Any] = {}
    for name in names:
        arrays = [results[flat] for flat in _elements(name, lengths)]
        found[name] = arrays[0] if name not in lengths else None if lengths[name] is None else arrays
    return found


def _elements(name: str, lengths: Mapping[str, int | None]) -> list[str]:
    if name not in lengths:
        return [name]
    return [element_name(name, index) for index in range(lengths[name] or 0)]
