"""Parquet and JSON lines, read with pyarrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from .columns import Column, Columns
from .frames import made_column

_BLOCK = 1 << 24  # bytes that are parsed at a time: a line must fit into one
_MISSING = "{path}: needs pyarrow, which reads such files; pip install dataflow-engine[data]"


def read_parquet(path: Path) -> Columns:
    """The columns of a Parquet file.

    Raises:
        InputError: it is none, or pyarrow isn't installed.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InputError(_MISSING.format(path=path)) from None
    try:
        return _columns(path, parquet.read_table(path))
    except (ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read as Parquet: {error}") from error


def read_json_lines(path: Path) -> Columns:
    """The columns of a file with a JSON object per line.

    Raises:
        InputError: a line is none, or has another type in a column than those before; pyarrow isn't installed.
    """
    try:
        from pyarrow import ArrowException, json
    except ImportError:
        raise InputError(_MISSING.format(path=path)) from None
    try:
        return _columns(path, json.read_json(path, json.ReadOptions(block_size=_BLOCK)))
    except (ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read as JSON lines: {error}") from error


def _columns(path: Path, table: Any) -> Columns:
    if not table.num_rows:
        raise InputError(f"{path}: it has no rows")
    twice = [name for name in table.column_names if table.column_names.count(name) > 1]
    if twice:
        raise InputError(f"{path}: two columns are called {twice[0]!r}")
    columns = {name: _column(table.column(name)) for name in table.column_names}
    return Columns(str(path), columns, lambda row: f"row {row}")


def _column(chunks: Any) -> Column:
    """A column with missing values as NaN or None."""
    kind = str(chunks.type)
    if kind.startswith(("date", "time", "duration", "struct", "map", "binary", "null")):
        return Column(np.zeros(0), f"values of type {kind} are neither numbers nor texts")
    if kind.startswith("decimal"):
        chunks = chunks.cast("float64")
    if kind == "bool" and chunks.null_count:
        chunks = chunks.cast("uint8")
    if kind.startswith(("list", "large_list", "fixed_size_list")):
        return made_column(np.array([*chunks.to_pylist(), None], object)[:-1])  # lists stay objects
    return made_column(chunks.to_numpy())
