"""Columns of texts as samples: which columns, how long, and what the model learns from them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...errors import InputError
from ...host import checks
from ...host.numbers import integer
from ...ir.types import Array, TensorType
from .arrays import NONE
from .batch import Draw, Request
from .buckets import boundaries
from .columns import Column, Columns
from .source import Source
from .table import TableOptions, TableSource
from .tokenizer import Tokenizer, Tokens
from .tokens import TokenSource

_log = logging.getLogger("dataflow")
TOKEN_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "position_ids")
_CACHE = "past"  # how exporters begin the names of a cache's inputs: past_key_values.0.key, past_0
_MOST = 512  # tokens of a text, where neither model nor tokenizer nor caller says it
_MOST_BUCKETS = 12  # more plans than that and a batch of full and one of less size wouldn't be kept


@dataclass(frozen=True)
class TextOptions:
    """How texts are read.

    Attributes:
        text: the column of the texts, or two of pairs of texts.
        tokenizer: the path of a ``tokenizer.json`` or its folder; or a tokenizer.
        max_length: tokens of a text at most; by default the length of the model's input, or what the tokenizer says.
        buckets: how many lengths texts are padded to, or those lengths.
        language_model: ``same``: the labels are the tokens, for losses that shift them; ``next``: each label is the
            token that follows. Padding is no label (-100).
        join: texts follow each other in blocks of ``max_length`` without padding, for language models.
        label: the column of the labels, or several, as of tables; by default the one called ``labels`` or ``label``.
        classes: names of the classes in the order of their numbers; by default those that occur, sorted.
        missing: ``error``, or ``drop`` for rows without text or label.
        delimiter: of the cells of a CSV file; by default a comma, a tab in .tsv files.
    """

    tokenizer: Any = None
    text: str | Sequence[str] = "text"
    max_length: int | None = None
    buckets: int | Sequence[int] = 4
    language_model: Literal["same", "next"] | None = None
    join: bool = False
    label: str | Sequence[str] | None = None
    classes: Sequence[str] | None = None
    missing: Literal["error", "drop"] = "error"
    delimiter: str | None = None

    def __post_init__(self) -> None:
        if self.tokenizer is None:
            raise InputError("text= needs tokenizer=, the path of a tokenizer.json")
        checks.text("missing", self.missing, ("error", "drop"))
        if len(self.columns) not in (1, 2):
            raise InputError(f"text has {len(self.columns)} columns; expected one, or two of pairs")
        if self.max_length is not None:
            integer("max_length", self.max_length)
        if self.language_model is not None:
            checks.text("language_model", self.language_model, ("same", "next"))
        checks.instance("join", self.join, bool)
        if self.join and (self.language_model is None or self.max_length is None or len(self.columns) > 1):
            raise InputError("join=True needs language_model=, max_length= and one column of texts")
        one = isinstance(self.buckets, (int, np.integer))
        lengths = (self.buckets,) if one else checks.entries("buckets", self.buckets, "a count, or lengths")
        for length in lengths:
            integer("buckets", length)
        count = lengths[0] if one else len(lengths)
        if not 0 < count <= _MOST_BUCKETS:
            raise InputError(f"buckets: {count} lengths; expected 1 to {_MOST_BUCKETS}, since each has a plan")
        self._table()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of texts."""
        return checks.texts("text", self.text)

    def texts(self) -> tuple[str, ...]:
        """Names of columns that may have texts."""
        return (*self.columns, *self._table().texts())

    def separator(self, path: Path) -> str:
        """Of the cells of a CSV file."""
        return self._table().separator(path)

    def _table(self) -> TableOptions:
        """How the other columns are read."""
        return TableOptions({}, self.label, self.classes, self.missing, self.delimiter)

    def labels(self, columns: Columns) -> TableSource:
        """The other columns."""
        return TableSource(columns, self._table())


def read_lines(path: Path) -> Columns:
    """The lines of a file as a column ``text``; empty ones are left out.

    Raises:
        InputError: no text in UTF-8, or nothing in it.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no text in UTF-8: {error}") from error
    numbers = [number for number, line in enumerate(lines, 1) if line.strip()]
    if not numbers:
        raise InputError(f"{path}: it has no text")
    texts = np.array([lines[number - 1] for number in numbers], object)
    return Columns(str(path), {"text": Column(texts)}, lambda row: f"line {numbers[row]}")


@dataclass(frozen=True)
class TextSource:
    """Texts, until a request says which inputs they become.

    Attributes:
        columns: of the table.
        options: how it is read.
        names: what the model's inputs are called, by what they are; their own names where it doesn't say.
    """

    columns: Columns
    options: TextOptions
    names: Mapping[str, str | None]
    workers: int = field(default=0, init=False)
    unusable: Array = field(default_factory=lambda: NONE, init=False, compare=False)
    classes: Mapping[str, Sequence[str]] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.columns) if not self.options.join else len(self._blocks.starts) - 1

    def bound(self, request: Request) -> Source:
        """Encoded texts with the inputs that a request wants.

        Raises:
            InputError: the model has no input for tokens, or texts or labels are missing.
        """
        if request.raw and not request.inputs:  # labels alone are wanted
            return self.options.labels(self.columns).bound(request)
        inputs, length = self._inputs(request)
        keys = request.labels if self.options.language_model is None else ()
        table = self.options.labels(self.columns) if keys else None
        bound = None if table is None else table.bound(replace(request, inputs={}, labels=keys, open=False, raw=False))
        unusable = NONE if bound is None else bound.unusable
        labels = {} if bound is None else bound.read(np.arange(len(bound)), None)
        if self.options.join:
            tokens = self._blocks
        else:
            missing = self._missing()
            if len(missing) and self.options.missing == "error":
                raise self.columns.refused(self.options.columns[0], missing[0], "the text is missing")
            unusable = np.union1d(unusable, missing)
            tokens = self._tokenizer.encoded(self._texts(), length)
        found = TokenSource(
            tokens,
            self._boundaries(tokens, length, self._fixed(request)),
            inputs,
            self._tokenizer.padding,
            self._tokenizer.left,
            self.options.language_model,
            request.labels[0] if request.labels else "labels",
            labels,
            {} if bound is None else bound.classes,
            unusable,
            _caches(request),
        )
        self._report(found)
        return found

    def keys(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(self.columns.columns)

    def read(self, rows: Array, draw: Draw | None) -> dict[str, Array]:
        """The rows as they are."""
        if self.options.join:
            raise InputError(f"{self.columns.name}: joined texts are no samples before they are tokens")
        return self.options.labels(self.columns).read(rows, draw)

    def column(self, key: str, rows: Array) -> Array | None:
        """Rows of a column."""
        return self.options.labels(self.columns).column(key, rows)

    def order(self, rows: Array, batch_size: int, generator: Any) -> Array:
        """Any order."""
        return self.options.labels(self.columns).order(rows, batch_size, generator)

    def signature(self) -> dict[str, Any]:
        """Types of the columns."""
        return self.options.labels(self.columns).signature()

    def likewise(self, request: Request) -> dict[str, Any]:
        """The columns of texts and of labels, and how long texts are at most; the tokenizer is a file of its own."""
        found = {"text": list(self.options.columns), "max_length": self.options.max_length}
        return {**found, "label": self.options.label, "language_model": self.options.language_model}

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer(self.options.tokenizer)

    @cached_property
    def _blocks(self) -> Tokens:
        """All texts one after the other, in blocks; what doesn't fill the last is left out."""
        length = self.options.max_length
        assert length is not None  # checked with the options
        tokens = self._tokenizer.encoded((text for text in self._texts() if text), None)
        count = len(tokens.ids) // length
        if not count:
            raise InputError(f"{self.columns.name}: {len(tokens.ids)} tokens don't fill a block of {length}")
        return Tokens(tokens.ids[: count * length], tokens.types[: count * length], np.arange(count + 1) * length)

    def _texts(self) -> list[Any]:
        """A text or a pair per row; empty where it is missing."""
        columns = [self._column(name) for name in self.options.columns]
        if len(columns) == 1:
            return [text or "" for text in columns[0]]
        return [(one or "", other or "") for one, other in zip(*columns, strict=True)]

    def _column(self, name: str) -> Array:
        column = self.columns.column(name)
        return column.values if column.is_text else column.values.astype(str).astype(object)

    def _missing(self) -> Array:
        """Rows without a text."""
        empty = [np.array([not text for text in self._column(name)], bool) for name in self.options.columns]
        return np.flatnonzero(np.logical_or.reduce(empty))

    def _fixed(self, request: Request) -> int | None:
        """The length that the model's inputs have, where it isn't free."""
        sizes = {type_.shape[1] for type_ in request.inputs.values() if len(type_.shape) == 2}
        return next((size for size in sizes if isinstance(size, int)), None)

    def _inputs(self, request: Request) -> tuple[dict[str, tuple[str, Any]], int]:
        """What each input of the model is, with its dtype; and the most tokens of a text."""
        by_name = {
            (self.names.get(kind) or kind): kind for kind in TOKEN_INPUTS if self.names.get(kind, kind) is not None
        }
        found = {n: (by_name[n], t.dtype.numpy) for n, t in request.inputs.items() if n in by_name and _is_2d(t)}
        if "input_ids" not in {kind for kind, _ in found.values()}:
            described = ", ".join(f"{name}: {type_}" for name, type_ in request.inputs.items())
            raise InputError(
                f"{self.columns.name}: the model has no input 'input_ids' of two axes for tokens, but {described}; "
                "rename={'input_ids': NAME} says what it is called"
            )
        fixed, given = self._fixed(request), self.options.max_length
        if fixed is not None and given is not None and (given > fixed or (self.options.join and given != fixed)):
            raise InputError(f"max_length={given}, and the model's inputs have the length {fixed}")
        return found, given or fixed or self._tokenizer.most or _MOST

    def _boundaries(self, tokens: Tokens, length: int, fixed: int | None) -> Array:
        if fixed is not None:
            return np.array([fixed])
        if isinstance(self.options.buckets, (int, np.integer)):
            return boundaries(tokens.lengths, int(self.options.buckets), length)
        given = np.unique(np.array(list(self.options.buckets)))
        longest = int(tokens.lengths.max())
        if given[-1] < longest:
            raise InputError(f"buckets: the longest text has {longest} tokens; give a length for it, or max_length=")
        return given

    def _report(self, made: TokenSource) -> None:
        lengths = made.tokens.lengths
        padded = made.boundaries[np.searchsorted(made.boundaries, lengths)].sum()
        used = len(np.unique(np.searchsorted(made.boundaries, lengths)))
        _log.info(
            "%s: %d texts of %d to %d tokens, padded to %s (%.0f%% padding): %d plan%s, and one for a short last batch",
            self.columns.name,
            len(lengths),
            lengths.min(),
            lengths.max(),
            ", ".join(map(str, made.boundaries)),
            100 * (1 - lengths.sum() / padded),
            used,
            "" if used == 1 else "s",
        )


def _caches(request: Request) -> dict[str, tuple[tuple[int, ...], Any]]:
    """What a decoder's export has as inputs for the keys and values of tokens before: of none, so their axis is 0."""
    found = {}
    for name, type_ in request.inputs.items():
        sizes = tuple(size if isinstance(size, int) else 0 for size in type_.shape[1:])
        if name.startswith(_CACHE) and 0 in sizes:
            found[name] = sizes, type_.dtype.numpy
    return found


def _is_2d(type_: TensorType) -> bool:
    return len(type_.shape) == 2
