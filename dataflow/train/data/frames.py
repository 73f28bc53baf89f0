"""Tables in memory: DataFrames of pandas and Polars, tables of Arrow; none of these packages is imported."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import InputError
from ...ir.types import Array
from .columns import Column, Columns


def read_frame(frame: Any) -> Columns:
    """The columns of a table: its ``columns`` are names, or ``column_names`` are.

    Raises:
        InputError: two columns have one name.
    """
    names = list(getattr(frame, "column_names", None) or frame.columns)
    texts = [str(name) for name in names]
    twice = [name for name in dict.fromkeys(texts) if texts.count(name) > 1]
    if twice:
        raise InputError(f"{type(frame).__name__}: two columns are called {twice[0]!r}")
    columns = {text: made_column(frame[name].to_numpy()) for text, name in zip(texts, names, strict=True)}
    return Columns(type(frame).__name__, columns, lambda row: f"row {row}")


def made_column(values: Array) -> Column:
    """A column of what a table gives: numbers, texts, missing values, or arrays of one shape."""
    values = np.asarray(values)
    if values.dtype.kind in "fiub":
        return Column(values)
    if values.dtype.kind in "SU":
        return Column(values.astype(str).astype(object))
    if values.dtype.kind != "O":
        return Column(values, f"values of {values.dtype} are neither numbers nor texts")
    cells = [None if _missing(cell) else cell for cell in values]
    kinds = {type(cell) for cell in cells if cell is not None}
    if kinds <= {str}:
        return Column(np.array(cells, object))
    if all(issubclass(kind, (int, float, np.number, np.bool_)) for kind in kinds):
        return Column(np.array([np.nan if cell is None else float(cell) for cell in cells]))
    odd = next((i for i, cell in enumerate(cells) if not isinstance(cell, (list, tuple, np.ndarray))), None)
    if odd is not None:
        return Column(values, f"row {odd}: {cells[odd]!r} beside {', '.join(sorted(k.__name__ for k in kinds))}")
    return _of_lists(cells)


def _of_lists(cells: list[Any]) -> Column:
    """Lists of numbers, all of one shape."""
    first: Array | None = None
    rows: list[Array] = []
    for row, cell in enumerate(cells):
        try:
            array = np.array([np.asarray(c) for c in cell])  # pandas has arrays of arrays
        except (TypeError, ValueError):
            return Column(np.zeros(0), f"row {row}: its list is no array of numbers")
        first = array if first is None else first
        if array.dtype.kind not in "fiub":
            return Column(np.zeros(0), f"row {row}: its list is of {array.dtype}, not of numbers")
        if array.shape != first.shape:
            return Column(np.zeros(0), f"row {row}: its list has shape {array.shape}, that of row 0 {first.shape}")
        rows.append(array)
    return Column(np.stack(rows))


def _missing(cell: Any) -> bool:
    """None, NaN, or pandas' NA, which is equal to nothing."""
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, float) and cell != cell
