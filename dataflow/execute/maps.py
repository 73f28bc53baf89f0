"""Maps as arguments and results: dicts outside, rows of matrices with keys in a graph."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypeAlias

import numpy as np

from ..errors import InputError
from ..host import checks
from ..ir.types import Array
from ..ir.value import Value
from .arguments import named_inputs

Keys: TypeAlias = "tuple[int, ...] | tuple[str, ...]"
Columns: TypeAlias = "Mapping[int | str, int]"


@dataclass(frozen=True, slots=True)
class _Kind:
    """What keys or elements are.

    Attributes:
        type_: of all of them.
        plain: classes that are of it, which most are; to look for others takes longer.
        text: for messages.
    """

    type_: type
    plain: frozenset[type]
    text: str


_TEXT = _Kind(str, frozenset({str}), "a text")
_INTEGER = _Kind(Integral, frozenset({int, bool}), "a whole number")
_KINDS = {"s": _TEXT, "i": _INTEGER, "f": _Kind(Real, frozenset({float, int, bool}), "a number")}


def columns_of(declared: Sequence[Value], maps: Mapping[str, Keys]) -> dict[str, Columns]:
    """The column of each key, of the inputs that are maps."""
    fed = [value.name for value in declared if value.name in maps]
    return {name: dict(zip(maps[name], itertools.count())) for name in fed}


def from_maps(declared: Sequence[Value], columns: Mapping[str, Columns], inputs: Any) -> dict[str, Any]:
    """What is given for each input, by name, with matrices for maps and for lists of them.

    Args:
        declared: the inputs.
        columns: of keys, of the inputs that are maps; none where a map's elements are read in the order of its keys.
        inputs: as for ``checked_inputs``.

    Raises:
        InputError: a map with keys or elements of another type.
    """
    found = dict(inputs if isinstance(inputs, Mapping) else named_inputs(declared, inputs))
    for value in declared:
        if value.name in columns and value.name in found:
            found[value.name] = _matrix(value, columns[value.name], found[value.name])
    return found


def _matrix(value: Value, columns: Columns, given: Any) -> Any:
    """A row for each map; what is no map, as a matrix, stays."""
    rows = [given] if isinstance(given, Mapping) else given
    if not isinstance(rows, (list, tuple)) or (rows and not any(isinstance(row, Mapping) for row in rows)):
        return given
    dtype, name = value.type.dtype, repr(value.name)
    for index, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise InputError(f"input {name}: {checks.shown(row)} stands at {index} among maps")
        _check(name, row, _TEXT if isinstance(next(iter(columns), 0), str) else _INTEGER, _KINDS[dtype.kind])
    lengths = {len(columns)} if columns else {len(row) for row in rows}
    if len(lengths) > 1:
        raise InputError(f"input {name}: its elements are read in the order of the keys; give maps of one length")
    found = np.full((len(rows), max(lengths, default=0)), "" if dtype.kind == "s" else 0, dtype.numpy)
    try:
        for index, row in enumerate(rows):
            for key in columns.keys() & row.keys():
                found[index, columns[key]] = row[key]
            if not columns:
                found[index] = [row[key] for key in sorted(row)]
    except OverflowError as error:
        raise InputError(f"input {name}: a number doesn't fit {dtype}: {error}") from None
    return found


def _check(name: str, row: Mapping[Any, Any], keys: _Kind, elements: _Kind) -> None:
    """Refuses keys and elements of other types; they would be taken for missing ones, or converted."""
    if keys.plain.issuperset(map(type, row)) and elements.plain.issuperset(map(type, row.values())):
        return
    for key, element in row.items():
        if not isinstance(key, keys.type_):
            raise InputError(f"input {name}: the map has the key {checks.shown(key)}; expected {keys.text}")
        if not isinstance(element, elements.type_):
            text = f"input {name}: the map has {checks.shown(element)} under {checks.shown(key)}"
            text += f"; expected {elements.text}"
            if isinstance(element, str) and keys is _TEXT:
                text += f"; a category is a key of its own, {checks.shown(f'{key}={element}')}"
            raise InputError(text)


def as_maps(results: Mapping[str, Any], maps: Mapping[str, Keys], out: Mapping[str, Array] | None) -> dict[str, Any]:
    """Results, with lists of maps for the matrices that have keys; what was written into ``out`` stays."""
    found = dict(results)
    for name in maps.keys() & found.keys() - (out or {}).keys():
        found[name] = [dict(zip(maps[name], row, strict=True)) for row in found[name].tolist()]
    return found
