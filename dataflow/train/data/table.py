"""Tables as samples: which columns are which input, and which are labels."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...host import checks
from ...ir.types import Array, DType, TensorType
from .arrays import NONE, ArraySource
from .batch import Draw, Request
from .columns import EXACT, Columns, listed
from .source import Source, plain_order

_log = logging.getLogger("dataflow")
LABELS = ("labels", "label")  # columns that are the labels unless another one is named
_WEIGHT = "sample_weight"


@dataclass(frozen=True)
class TableOptions:
    """How a table is read.

    Attributes:
        columns: names of the columns that are the features of a model's one input, in their order; or a mapping from
            inputs to such names. By default inputs are columns of their name, or all columns of numbers that are no
            labels are the features.
        label: the column of the labels; by default the one called ``labels`` or ``label``. Of several, in a list, the
            numbers side by side are the labels, (N, K) float32.
        classes: names of the classes in the order of their numbers; by default those that occur, sorted.
        missing: ``error``, ``drop`` for rows where a value is missing or not finite, or a number in place of each.
        delimiter: of the cells of a CSV file; by default a comma, a tab in .tsv files.
    """

    columns: Sequence[str] | Mapping[str, Sequence[str] | str] | None = None
    label: str | Sequence[str] | None = None
    classes: Sequence[str] | None = None
    missing: str | float = "error"
    delimiter: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.columns, Mapping):
            for names in checks.mapping("columns", self.columns).values():
                checks.texts("columns", names)
        elif self.columns is not None:
            checks.texts("columns", self.columns)
        if self.label is not None and not checks.texts("label", self.label):
            raise InputError("label: no column is named")
        if self.classes is not None:
            checks.texts("classes", self.classes)
        if isinstance(self.missing, str):
            checks.text("missing", self.missing, ("error", "drop"))
        else:
            checks.number("missing", self.missing, -math.inf)
        if self.delimiter is not None and len(checks.text("delimiter", self.delimiter)) != 1:
            raise InputError(f"delimiter is {self.delimiter!r}; expected one character")

    def texts(self) -> tuple[str, ...]:
        """Names of columns that may have texts."""
        return LABELS if self.label is None else checks.texts("label", self.label)

    def separator(self, path: Path) -> str:
        """Of the cells of a CSV file."""
        return self.delimiter or ("\t" if path.suffix.lower() == ".tsv" else ",")


@dataclass(frozen=True)
class TableSource:
    """Columns, until a request says which inputs they are; then arrays.

    Attributes:
        columns: of the table.
        options: how it is read.
    """

    columns: Columns
    options: TableOptions
    workers: int = field(default=0, init=False)
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict, init=False)
    unusable: Array = field(default_factory=lambda: NONE, init=False, compare=False)

    def __len__(self) -> int:
        return len(self.columns)

    def bound(self, request: Request) -> Source:
        """The arrays that a request wants.

        Raises:
            InputError: columns are missing, or don't fit the inputs.
        """
        labels = self._labels(request)
        chosen = {} if request.raw else self._features(request, labels)
        if request.raw or request.open:
            used = {name for names in (*chosen.values(), *labels.values()) for name in names}
            chosen |= {name: (name,) for name in self._readable() if name not in used}
        weights = [_WEIGHT] if _WEIGHT in self.columns.columns else []
        columns, rows = self._complete(
            [name for names in chosen.values() for name in names],
            [*(name for names in labels.values() for name in names), *weights],
        )
        arrays: dict[str, Array] = {}
        for key, names in chosen.items():
            type_ = request.inputs.get(key)
            raw = request.raw or type_ is None
            arrays[key] = _plain(columns.column(key).values[rows]) if raw else _input(columns, key, names, type_, rows)
        classes: dict[str, Sequence[str]] = {}
        for key, (name, *others) in labels.items():
            if others:
                sides = [columns.numbers(each, rows) for each in (name, *others)]
                arrays[key] = np.concatenate([side.reshape(len(rows), -1) for side in sides], 1).astype(np.float32)
                continue
            known = request.classes.get(key, self.options.classes)
            numbers = key in request.numbers
            if numbers and not columns.column(name).is_text:  # known classes of another loss don't change numbers
                known = self.options.classes
            arrays[key], named = columns.labels(name, rows, known, numbered=request.numbered, numbers=numbers)
            if named is not None:
                classes[key] = named
        for name in weights:
            arrays[name] = columns.numbers(name, rows)
        unusable = np.setdiff1d(np.arange(len(columns)), rows)
        if len(unusable):  # samples keep their numbers
            arrays = {key: _scattered(array, rows, len(columns)) for key, array in arrays.items()}
        return ArraySource(arrays, classes, unusable)

    def keys(self) -> tuple[str, ...]:
        """The columns' names, and ``labels``."""
        return self._raw.keys()

    def read(self, rows: Array, draw: Draw | None) -> dict[str, Array]:
        """The rows as they are, with their labels."""
        return self._raw.read(rows, draw)

    def column(self, key: str, rows: Array) -> Array | None:
        """Rows of a column."""
        return self._raw.column(key, rows)

    def order(self, rows: Array, batch_size: int, generator: Any) -> Array:
        """Any order."""
        return plain_order(rows, generator)

    def signature(self) -> dict[str, Any]:
        """That of the columns as they are."""
        return self._raw.signature()

    def likewise(self, request: Request) -> dict[str, Any]:
        """The columns of inputs and labels: another file may have others, or these in another order."""
        features = self._features(request, self._labels(request))
        return {"columns": {key: list(names) for key, names in features.items()}, "label": self.options.label}

    @cached_property
    def _raw(self) -> Source:
        return self.bound(Request({}, LABELS[:1], raw=True))

    def _features(self, request: Request, labels: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        """The columns of each input."""
        given, there = self.options.columns, self.columns.columns
        if isinstance(given, Mapping):
            return {key: checks.texts("columns", names) for key, names in given.items()}
        if given is None and all(name in there for name in request.inputs):
            return {name: (name,) for name in request.inputs}
        if len(request.inputs) == 1:
            names = self._numeric(labels) if given is None else checks.texts("columns", given)
            return {next(iter(request.inputs)): names}
        raise InputError(
            f"{self.columns.name}: the model has the inputs {', '.join(map(repr, request.inputs))}; "
            f"name the columns of each in columns=; there are the columns {listed(tuple(there))}"
        )

    def _labels(self, request: Request) -> dict[str, tuple[str, ...]]:
        """The columns of the labels that are wanted."""
        found = {}
        for number, key in enumerate(request.labels):
            if self.options.label is not None and number == 0:
                names = self.options.texts()
            else:
                known = (key, *LABELS[number:])
                names = (next((name for name in known if name in self.columns.columns), key),)
            if all(name in self.columns.columns for name in names) or not (request.raw or request.open):
                for name in names:
                    self.columns.column(name)
                found[key] = names
        return found

    def _readable(self) -> list[str]:
        return [name for name, column in self.columns.columns.items() if column.problem is None and name != _WEIGHT]

    def _numeric(self, labels: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
        """The columns of numbers that are no labels."""
        labelling = {
            *(name for names in labels.values() for name in names),
            *self.options.texts(),
            _WEIGHT,
        }  # no features either where no labels are wanted
        others = [name for name in self._readable() if name not in labelling]
        found = tuple(name for name in others if not self.columns.column(name).is_text)
        left = [name for name in self.columns.columns if name not in {*found, *labelling}]
        also = f"; no numbers: {listed(left)}" if left else ""
        _log.info("%s: the features are %s%s", self.columns.name, listed(found) or "none", also)
        if not found:
            raise InputError(f"{self.columns.name}: no column has numbers{also}; choose with columns=")
        return found

    def _complete(self, features: Sequence[str], others: Sequence[str]) -> tuple[Columns, Array]:
        """The columns with missing numbers of features filled, and the rows that are used."""
        columns, missing = self.columns, self.options.missing
        if not isinstance(missing, str):
            return columns.filled(features, float(missing)), np.arange(len(columns))
        if missing == "error":
            return columns, np.arange(len(columns))
        rows = columns.complete([*features, *others])
        if len(rows) < len(columns):
            _log.info("%s: %d of %d rows left out", columns.name, len(columns) - len(rows), len(columns))
        return columns, rows


def _input(columns: Columns, key: str, names: Sequence[str], type_: TensorType | None, rows: Array) -> Array:
    """The columns side by side in the shape and dtype of an input."""
    assert type_ is not None
    wanted, dtype = type_.shape[1:], type_.dtype.numpy
    blocks = [columns.numbers(name, rows) for name in names]
    for name, block in zip(names, blocks, strict=True):
        if dtype.kind in "iu" and block.dtype.kind == "f" and not (block == np.floor(block)).all():
            bad = int(np.argwhere(block != np.floor(block))[0][0])
            raise columns.refused(name, rows[bad], f"{block[bad]} is no whole number, and the input {key!r} is {dtype}")
        if (outside := _outside(block, type_.dtype)) is not None:
            raise columns.refused(
                name, rows[outside], f"a number is beyond what {dtype} holds, as which {key!r} is read"
            )
        if dtype.kind in "iu" and block.dtype.kind == "f" and (np.abs(block) >= EXACT).any():
            bad = int(np.argwhere(np.abs(block) >= EXACT)[0][0])
            why = "beside fractions or missing numbers whole ones beyond 2^53 aren't exact"
            raise columns.refused(name, rows[bad], f"{block[bad]}: {why}, and the input {key!r} is {dtype}")
    if dtype.kind in "iu":  # side by side, floats among them would round the others
        blocks = [block.astype(dtype, copy=False) for block in blocks]
    found = (
        blocks[0]
        if len(blocks) == 1
        else np.concatenate([b.reshape(len(b), math.prod(b.shape[1:])) for b in blocks], 1)
    )
    sizes = [size for size in wanted if isinstance(size, int)]
    if len(sizes) == len(wanted) and list(found.shape[1:]) != sizes:
        there = math.prod(found.shape[1:])
        if there != math.prod(sizes):
            others = {name: column for name, column in columns.columns.items() if name not in names}
            left = [name for name, column in others.items() if column.problem is not None or column.is_text]
            also = f"; no numbers, and so left out: {listed(left)}" if left else ""
            raise InputError(
                f"{columns.name}: the input {key!r} is {type_} and wants {math.prod(sizes)} numbers per sample, and "
                f"{listed(names)} have {there}{also}; choose with columns="
            )
        found = found.reshape(len(found), *sizes)
    return found.astype(dtype)


def _outside(block: Array, dtype: DType) -> int | None:
    """The first row with a finite number that is none as ``dtype``, which would become infinite or another one."""
    if not block.size or block.dtype == bool or dtype.kind not in "fiu":
        return None
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.numpy)
        above = block > limits.max if block.dtype.kind in "iu" else block >= float(limits.max) + 1  # of int64 inexact
        wrong = (block < limits.min) | above
    else:
        with np.errstate(over="ignore"):
            wrong = np.isfinite(block) & ~np.isfinite(block.astype(dtype.numpy).astype(np.float64))
    return int(np.argwhere(wrong)[0][0]) if wrong.any() else None


def _scattered(array: Array, rows: Array, count: int) -> Array:
    """The array with its rows at their numbers, and zeros between."""
    found = np.zeros((count, *array.shape[1:]), array.dtype)
    found[rows] = array
    return found


def _plain(values: Array) -> Array:
    """Texts as an array of strings."""
    if values.dtype.kind == "O":
        return np.array(["" if text is None else text for text in values], str)
    return values
