"""Named columns of a table as they were read, and what can be made of them: features, classes, labels."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir.types import Array
from .entry_keys import EntryKeys

_log = logging.getLogger("dataflow")
EXACT = 2.0**53  # up to here float64 holds every whole number


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column.

    Attributes:
        values: (N,) numbers or texts (objects of str, None where missing), or (N, ...) numbers; float NaN is missing.
        problem: why it is neither, or None.
    """

    values: Array
    problem: str | None = None

    @property
    def is_text(self) -> bool:
        """Whether it has texts."""
        return bool(self.values.dtype.kind == "O")


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Columns of one table.

    Attributes:
        name: of the file or object, for messages.
        columns: by name.
        row_names: how a row is called in messages: ``line 17`` of a file, ``row 16`` of others.
    """

    name: str
    columns: Mapping[str, Column]
    row_names: Callable[[int], str]

    def renamed(self, keys: EntryKeys) -> Columns:
        """With columns under other names."""
        return replace(self, columns=keys.renamed(self.columns))

    def __len__(self) -> int:
        return max((len(column.values) for column in self.columns.values()), default=0)

    def column(self, name: str) -> Column:
        """One of them.

        Raises:
            InputError: there is none of this name, or it can't be read.
        """
        if name not in self.columns:
            raise InputError(f"{self.name}: there is no column {name!r}; there are {listed(tuple(self.columns))}")
        found = self.columns[name]
        if found.problem is not None:
            raise InputError(f"{self.name}: column {name!r}: {found.problem}")
        return found

    def numbers(self, name: str, rows: Array) -> Array:
        """The rows of a column that has numbers.

        Raises:
            InputError: it has texts; or a number is missing, or not finite. Names the row.
        """
        column = self.column(name)
        values = column.values[rows]
        if column.is_text:
            bad = next((i for i, text in enumerate(values) if not _is_number(text)), 0)
            raise self.refused(name, rows[bad], f"{values[bad]!r} is no number")
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            bad = int(np.argwhere(~np.isfinite(values))[0][0])
            missing = np.isnan(values[bad]).any()
            text = "a number is missing" if missing else "a number is infinite"
            raise self.refused(name, rows[bad], f"{text}; missing='drop' leaves such rows out, a number stands for it")
        return values

    def labels(
        self, name: str, rows: Array, classes: Sequence[str] | None, *, numbered: bool = False, numbers: bool = False
    ) -> tuple[Array, Sequence[str] | None]:
        """A column as labels, with the names of the classes where it has texts.

        Args:
            name: of the column.
            rows: those that are wanted.
            classes: the known ones; None: those that occur, sorted.
            numbered: numbers that are no names of known classes are theirs by their order.
            numbers: texts are no names of classes, unless these are known.

        Raises:
            InputError: a label is missing, or is none of the known classes, or no number. Names the row.
        """
        column = self.column(name)
        if column.is_text and numbers and classes is None:
            return self._with_numbers(name, rows).labels(name, rows, None)
        if not column.is_text:
            if column.values.dtype.kind == "f":
                self._need_labels(name, rows, np.isnan(column.values[rows]))
            values = self.numbers(name, rows)
            if classes is None or (numbered and not set(values.astype(str)) <= {*classes}):
                return _integral(values), classes
            texts = values.astype(str).astype(object)
        else:
            texts = column.values[rows]
        self._need_labels(name, rows, np.array([text is None or text == "" for text in texts], bool))
        known = sorted(set(texts)) if classes is None else list(classes)
        numbered_by = {text: number for number, text in enumerate(known)}
        unknown = next((i for i, text in enumerate(texts) if text not in numbered_by), None)
        if unknown is not None:
            raise self.refused(name, rows[unknown], f"{texts[unknown]!r} is none of the classes {listed(known)}")
        if classes is None:
            _log.info("%s: %s has %d classes: %s", self.name, name, len(known), listed(known))
        return np.array([numbered_by[text] for text in texts], np.int64), known

    def _need_labels(self, name: str, rows: Array, missing: Array) -> None:
        if missing.any():
            row = rows[int(np.argwhere(missing)[0][0])]
            raise self.refused(name, row, "the label is missing; missing='drop' leaves such rows out")

    def _with_numbers(self, name: str, rows: Array) -> Columns:
        """With the rows of a column of texts read as numbers; raises InputError where one is none."""
        texts, found = self.columns[name].values, np.zeros(len(self))
        for row in rows:
            text = texts[row]
            if text is not None and text != "" and not _is_number(text):
                why = f"{text!r} is no number, as the loss compares; classes= numbers the texts by their order"
                raise self.refused(name, row, why)
            found[row] = float(text or "nan")
        return replace(self, columns={**self.columns, name: Column(found)})

    def complete(self, names: Sequence[str]) -> Array:
        """The rows in which none of the columns has a missing value or one that is not finite."""
        kept = np.ones(len(self), bool)
        for name in names:
            values = self.column(name).values
            if values.dtype.kind == "O":
                kept &= np.array([text is not None and text != "" for text in values], bool)
            elif values.dtype.kind == "f":
                kept &= np.isfinite(values).reshape(len(values), math.prod(values.shape[1:])).all(1)
        return np.flatnonzero(kept)

    def filled(self, names: Sequence[str], number: float) -> Columns:
        """With a number in place of each that is missing in these columns."""
        changed = {}
        for name in names:
            column = self.columns.get(name)
            if column is not None and column.values.dtype.kind == "f":
                changed[name] = Column(np.where(np.isnan(column.values), number, column.values), column.problem)
        return replace(self, columns={**self.columns, **changed})

    def refused(self, name: str, row: Any, why: str) -> InputError:
        """An error that names file, row and column."""
        return InputError(f"{self.name}: {self.row_names(int(row))}, column {name!r}: {why}")


def _integral(values: Array) -> Array:
    """As int64 where all numbers are whole."""
    if values.dtype.kind == "f" and (values == np.floor(values)).all() and (np.abs(values) < EXACT).all():
        return values.astype(np.int64)
    return values


def _is_number(text: Any) -> bool:
    try:
        float(text)
    except (TypeError, ValueError):
        return False
    return "_" not in str(text)  # which groups digits in Python alone


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    return ", ".join(map(repr, names[:8])) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
