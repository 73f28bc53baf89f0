"""CSV files, read with the standard library's reader, a block of rows at a time."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir.types import Array
from .columns import EXACT, Column, Columns
from .table import TableOptions
from .text import TextOptions

# Cells that stand for a missing number where the others are numbers; pandas has the same.
_ABSENT = frozenset(
    ["", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "None", "NULL", "null", "<NA>", "#NA", "#N/A", "#N/A N/A"]
) | {"1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN"}
_SEPARATORS = (";", "\t", ",", "|")
_ROWS = 1 << 14  # at a time: numbers need less memory than the texts that they are read from


def read_csv(path: Path, options: TableOptions | TextOptions) -> Columns:
    """The columns of a file with a header; those that a text column or label names keep their texts.

    Raises:
        InputError: no text in UTF-8, no header, or a line with another number of cells; says which.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, delimiter=options.separator(path), strict=True)
            try:
                return _read(path, reader, options)
            except csv.Error as error:
                raise InputError(f"{path}: line {reader.line_num}: {error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no text in UTF-8: {error}") from error


def _read(path: Path, reader: Any, options: TableOptions | TextOptions) -> Columns:
    names = [name.strip() for name in next(reader, [])]
    if not any(names):
        raise InputError(f"{path}: it has no header; the first line names the columns")
    other = [text for text in _SEPARATORS if len(names) == 1 and text in names[0]]
    if other and options.delimiter is None:
        of_command = "'\\t'" if other[0] == "\t" else f"'{other[0]}'"
        raise InputError(
            f"{path}: its one column is called {names[0]!r}; with delimiter={other[0]!r} (--delimiter {of_command}) "
            f"the cells are apart, with delimiter={options.separator(path)!r} it stays one column"
        )
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}")
    prose = options.columns if isinstance(options, TextOptions) else ()
    building = [_Building(name in options.texts(), name in prose) for name in names]
    lines: list[Array] = []
    for block, numbers in _blocks(path, reader, len(names)):
        lines.append(np.array(numbers, np.int64))
        for column, cells in zip(building, zip(*block, strict=True), strict=True):
            column.add(cells, lines[-1])
    if not lines:
        raise InputError(f"{path}: it has a header and no rows")
    found = {name: column.column() for name, column in zip(names, building, strict=True)}
    line_of = np.concatenate(lines)
    return Columns(str(path), found, lambda row: f"line {line_of[row]}")


def _blocks(path: Path, reader: Any, width: int) -> Iterator[tuple[list[Sequence[str]], list[int]]]:
    """Rows and the numbers of their lines; empty lines are left out."""
    while True:
        block, numbers = [], []
        for cells in islice(reader, _ROWS):
            if not cells:
                continue
            if len(cells) != width:
                raise InputError(f"{path}: line {reader.line_num} has {len(cells)} cells; the header has {width}")
            block.append(cells)
            numbers.append(reader.line_num)
        if not block:
            return
        yield block, numbers


class _Building:
    """A column that grows.

    Args:
        text: its cells stay texts as long as not all are numbers, or missing.
        prose: they stay texts where one is missing, too.
    """

    def __init__(self, text: bool, prose: bool) -> None:
        self._text = text
        self._prose = prose
        self._numbers: list[Array] = []
        self._texts: list[str] = []
        self._problem: str | None = None

    def add(self, cells: Sequence[str], lines: Array) -> None:
        """Appends the cells of a block."""
        if self._text or self._texts:
            self._texts += cells
        elif self._problem is None:
            numbers = _numbers(cells)
            if numbers is not None:
                self._numbers.append(numbers)
            elif not self._numbers:
                self._texts += cells
            else:
                bad = next(i for i, cell in enumerate(cells) if _numbers([cell]) is None)
                self._problem = f"line {lines[bad]}: {cells[bad]!r} is no number, as there are in the lines before"
                self._numbers = []

    def column(self) -> Column:
        """What was added."""
        if self._problem is not None:
            return Column(np.zeros(0), self._problem)
        if not self._texts:
            return Column(np.concatenate(_alike(self._numbers)))
        texts = np.array(self._texts, object)
        numbers = _numbers(self._texts) if self._text else None
        return Column(texts if numbers is None or (self._prose and np.isnan(numbers).any()) else numbers)


def _numbers(cells: Sequence[str]) -> Array | None:
    """The cells as numbers, NaN for those that are missing; None where one is no number.

    They are float64, but int64 where all are whole and float64 would round one.
    """
    if "_" in "".join(cells):  # which groups digits in Python alone
        return None
    try:
        found = np.array(["nan" if cell in _ABSENT else cell for cell in cells], np.float64)
    except ValueError:
        return None
    if (np.abs(found) >= EXACT).any() and (found == np.floor(found)).all():
        try:
            return np.array([int(cell) for cell in cells], np.int64)
        except (ValueError, OverflowError):
            pass
    return found


def _alike(blocks: Sequence[Array]) -> Sequence[Array]:
    """The blocks as int64 where some are and the others can be, exactly."""
    if all(block.dtype.kind != "i" for block in blocks):
        return blocks
    exact = all(
        ((block == np.floor(block)) & (np.abs(block) < 2.0**63)).all() for block in blocks if block.dtype.kind != "i"
    )
    return [block.astype(np.int64) for block in blocks] if exact else blocks
