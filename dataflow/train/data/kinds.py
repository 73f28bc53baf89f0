"""The kinds of data that a Dataset is made of, and how each is recognized: by suffix, folder or what an object has."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from .arrays import ArraySource
from .batch import as_array
from .columns import Columns
from .entry_keys import EntryKeys
from .frames import read_frame
from .image_options import ImageOptions
from .images import SUFFIXES as IMAGES
from .images import has_images, read_images
from .npy_files import read_npy_folder, read_npz
from .samples import SampleSource
from .source import Source, Stream
from .streams import BatchStream
from .table import TableOptions, TableSource
from .text import TOKEN_INPUTS, TextOptions, TextSource, read_lines

Made = tuple[Source | None, Stream | None]


@dataclass(frozen=True)
class _NoOptions:
    """Data without options."""


@dataclass(frozen=True)
class _StreamOptions:
    """Options of iterables.

    Attributes:
        samples: they give single samples, not ready batches; None: found from the class.
    """

    samples: bool | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of data.

    Attributes:
        name: for messages.
        fits: whether data is of this kind.
        options: dataclasses of its options: the first that knows all that are given is used.
        make: the source or stream of the data.
    """

    name: str
    fits: Callable[[Any], bool]
    options: tuple[type, ...]
    make: Callable[[Any, EntryKeys, Any], Made]


def opened(data: Any, keys: EntryKeys, options: Mapping[str, Any]) -> Made:
    """The source or the stream of data of any kind.

    Raises:
        InputError: it is no data, or an option isn't one of its kind.
    """
    path = Path(os.fspath(data)) if isinstance(data, (str, os.PathLike)) else None
    found = path if path is not None else data
    if path is not None and not path.exists():
        raise InputError(f"{path}: there is no such file or folder")
    kind = next((kind for kind in (_OBJECTS if path is None else _PATHS) if kind.fits(found)), None)
    if kind is None:
        raise InputError(_unknown(data, path))
    form = next((form for form in kind.options if options.keys() <= _names(form)), None)
    if form is None:
        known: list[str] = sorted(set().union(*map(_names, kind.options)))
        odd = next((name for name in options if name not in known), next(iter(options)))
        raise InputError(f"Dataset: {odd}= is no option of {kind.name}; it has {', '.join(known) or 'none'}")
    return kind.make(found, keys, form(**options))


def kind_of(data: Any) -> str | None:
    """The name of the kind of data; None: there is no such kind."""
    path = Path(os.fspath(data)) if isinstance(data, (str, os.PathLike)) else None
    found = path if path is not None else data
    return next((kind.name for kind in (_OBJECTS if path is None else _PATHS) if kind.fits(found)), None)


def _names(options: type) -> set[str]:
    return {entry.name for entry in fields(options)}


def _unknown(data: Any, path: Path | None) -> str:
    if path is None:
        return (
            f"Dataset: {type(data).__name__} is no data; expected a dict of arrays, the path of a file or folder, "
            "something with __len__ and __getitem__, or an iterable of batches"
        )
    if path.is_dir():
        return (
            f"{path}: expected a folder of images, with one folder of them per class, or with .npy files named as keys"
        )
    return f"{path}: expected a file that ends in {', '.join(_SUFFIXES)}"


def _arrays(data: Mapping[Any, Any], keys: EntryKeys, _: Any) -> Made:
    return ArraySource(keys.renamed({str(k): as_array(v, f"data[{k!r}]") for k, v in data.items()})), None


def _array_files(read: Callable[[Path], dict[str, Any]]) -> Callable[[Path, EntryKeys, Any], Made]:
    return lambda path, keys, _: (ArraySource(keys.renamed(read(path))), None)


def _tables(read: Callable[[Any, Any], Columns]) -> Callable[[Any, EntryKeys, Any], Made]:
    def make(data: Any, keys: EntryKeys, options: TableOptions | TextOptions) -> Made:
        columns = read(data, options)
        if isinstance(options, TableOptions):
            return TableSource(columns.renamed(keys), options), None
        names = {kind: name for kind, name in keys.rename.items() if kind in TOKEN_INPUTS}
        others = EntryKeys({old: new for old, new in keys.rename.items() if old not in names}, None)
        return TextSource(columns.renamed(others), options, names), None

    return make


def _csv(path: Path, options: TableOptions | TextOptions) -> Columns:
    from .csv_file import read_csv

    return read_csv(path, options)


def _parquet(path: Path, options: Any) -> Columns:
    from .arrow_files import read_parquet

    return read_parquet(path)


def _json_lines(path: Path, options: Any) -> Columns:
    from .arrow_files import read_json_lines

    return read_json_lines(path)


def _images(path: Path, keys: EntryKeys, options: ImageOptions) -> Made:
    if keys.rename:
        raise InputError(f"{path}: rename= is for columns and arrays; images are the model's input, folders its labels")
    return read_images(path, options), None


def _samples(data: Any, keys: EntryKeys, _: Any) -> Made:
    return SampleSource(data, keys), None


def _stream(data: Any, keys: EntryKeys, options: _StreamOptions) -> Made:
    return None, BatchStream(data, keys, options.samples)


def _one_array(data: Any, _keys: EntryKeys, _: Any) -> Made:
    raise InputError("Dataset: one array has no names; give a dict, e.g. {'x': X, 'labels': Y}")


def _ends(*suffixes: str) -> Callable[[Path], bool]:
    return lambda path: path.suffix.lower() in suffixes and not path.is_dir()


_PATHS = (
    Kind("npz files", _ends(".npz", ".npy"), (_NoOptions,), _array_files(read_npz)),
    Kind("CSV files", _ends(".csv", ".tsv"), (TableOptions, TextOptions), _tables(_csv)),
    Kind("Parquet files", _ends(".parquet"), (TableOptions, TextOptions), _tables(_parquet)),
    Kind("files of JSON lines", _ends(".jsonl", ".ndjson"), (TableOptions, TextOptions), _tables(_json_lines)),
    Kind("texts", _ends(".txt"), (TextOptions,), _tables(lambda path, _: read_lines(path))),
    Kind("folders of .npy files", lambda p: any(p.glob("*.npy")), (_NoOptions,), _array_files(read_npy_folder)),
    Kind("images", has_images, (ImageOptions,), _images),
)
_SUFFIXES = (".npz", ".csv", ".tsv", ".parquet", ".jsonl", ".ndjson", ".txt", *IMAGES)
_OBJECTS = (
    Kind("dicts of arrays", lambda data: isinstance(data, Mapping), (_NoOptions,), _arrays),
    Kind(
        "tables",
        lambda data: hasattr(data, "columns") and (hasattr(data, "to_numpy") or hasattr(data, "combine_chunks")),
        (TableOptions, TextOptions),
        _tables(lambda data, _: read_frame(data)),
    ),
    Kind("arrays", lambda d: isinstance(d, np.ndarray) or hasattr(d, "to_numpy"), (_NoOptions,), _one_array),
    Kind("samples", lambda d: hasattr(d, "__len__") and hasattr(d, "__getitem__"), (_NoOptions,), _samples),
    Kind("iterables", lambda data: callable(data) or isinstance(data, Iterable), (_StreamOptions,), _stream),
)
