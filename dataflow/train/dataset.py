"""Datasets: named arrays cut into batches, in an order that depends on seed and epoch alone."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ..errors import DataflowError, InputError
from ..host import checks
from ..host.numbers import integer
from ..ir.types import Array

_CHUNK = 1 << 22
_END: Any = object()
_LOOKED_AT = 16  # rows that a signature is made from


@dataclass(frozen=True, slots=True)
class Batch:
    """Some samples.

    Attributes:
        arrays: by key, samples first.
        indices: the samples' numbers in the dataset; None where it has none.
    """

    arrays: Mapping[str, Array]
    indices: Array | None

    @property
    def size(self) -> int:
        """How many samples."""
        return min((len(a) for a in self.arrays.values() if a.ndim), default=0)


class Dataset:
    """Samples to train on or to evaluate.

    Args:
        data: a dict of arrays or memory maps with samples first; the path of an npz file; anything with ``__len__``
            and ``__getitem__`` that gives a dict or a tuple per sample; an iterable of ready batches (dicts or tuples
            of arrays), or a function that makes one.
        rename: old key to new; a new key of None drops the entry.
        keys: names for the elements of tuples; by default the model's inputs in order, then ``labels``.

    Arrays are read through ``.to_numpy`` or ``__array__``.
    """

    def __init__(
        self,
        data: Any,
        *,
        rename: Mapping[str, str | None] | None = None,
        keys: Sequence[str] | None = None,
    ) -> None:
        self._rename = {} if rename is None else dict(checks.mapping("rename", rename))
        for new in self._rename.values():
            checks.optional("rename: a new key", new, str)
        self._keys = None if keys is None else checks.texts("keys", keys)
        self._arrays: dict[str, Array] | None = None
        self._samples: Any = None
        self._stream: Any = None
        self._streamed = False
        self._subset: Array | None = None
        if isinstance(data, Dataset):
            raise InputError("Dataset: the data is a Dataset already")
        if isinstance(data, (str, os.PathLike)):
            data = _read_npz(os.fspath(data))
        if isinstance(data, Mapping):
            self._arrays = self._renamed({str(key): as_array(value, f"data[{key!r}]") for key, value in data.items()})
            self._check_lengths(self._arrays)
        elif hasattr(data, "__len__") and hasattr(data, "__getitem__"):
            self._samples = data
        elif callable(data) or isinstance(data, Iterable):
            self._stream = data
        else:
            raise InputError(
                f"Dataset: {type(data).__name__} is no data; expected a dict of arrays, the path of an npz file, "
                "something with __len__ and __getitem__, or an iterable of batches"
            )
        if self._arrays is None and (isinstance(data, np.ndarray) or hasattr(data, "to_numpy")):
            raise InputError("Dataset: one array has no names; give a dict, e.g. {'x': X, 'labels': Y}")
        if self._sized and not len(self):
            raise InputError("Dataset: it has no samples")

    @property
    def _sized(self) -> bool:
        return self._stream is None

    def __len__(self) -> int:
        """The number of samples; raises TypeError for an iterable of batches."""
        if self._subset is not None:
            return len(self._subset)
        if self._arrays is not None:
            return len(next(iter(self._arrays.values())))
        if self._samples is not None:
            return len(self._samples)
        raise TypeError("an iterable of batches has no length")

    @property
    def length(self) -> int | None:
        """The number of samples, or None when it is not known."""
        return len(self) if self._sized else None

    def keys(self, tuple_keys: Sequence[str] = ()) -> tuple[str, ...] | None:
        """The keys of a batch; ``tuple_keys`` name the parts of tuples. None when only reading would tell."""
        if self._arrays is not None:
            return tuple(self._arrays)
        if self._samples is not None:
            return tuple(self._sample(0, tuple_keys))
        return None

    def signature(self, tuple_keys: Sequence[str] = ()) -> dict[str, Any]:
        """What tells this data from other data at little cost, for JSON: types of its entries, and a hash of some rows.

        Empty for an iterable of batches; without a hash where samples are read one by one, which may be random.
        """
        if self._stream is not None:
            return {}
        if self._arrays is None:
            entries = self._sample(0, tuple_keys)
            return {"entries": {key: _type_of(as_array(value, repr(key))) for key, value in entries.items()}}
        rows = self._subset if self._subset is not None else np.arange(len(self))
        chosen = rows[np.linspace(0, len(rows) - 1, _LOOKED_AT).astype(np.int64)]
        content = xxhash.xxh3_128()
        for key in sorted(self._arrays):
            content.update(np.asarray(self._arrays[key][chosen]).tobytes())
        entries = {key: _type_of(array[:1][0]) for key, array in self._arrays.items()}
        return {"entries": entries, "content": content.hexdigest()}

    def check_keys(self, required: Collection[str], optional: Collection[str], tuple_keys: Sequence[str] = ()) -> None:
        """Raises InputError that lists the keys that are missing and those that nothing reads."""
        found = self.keys(tuple_keys)
        if found is not None:
            check_keys(found, required, optional)

    def refuse_nan(self, keys: Collection[str]) -> None:
        """Raises InputError where an array among ``keys`` has a NaN, with the sample; other data is checked later."""
        for key in keys:
            if self._arrays is not None and key in self._arrays:
                rows = self._subset if self._subset is not None else np.arange(len(self))
                array = self._arrays[key]
                step = max(1, _CHUNK // max(1, array[:1].size))
                if array.dtype.kind == "f":
                    for start in range(0, len(rows), step):
                        block = rows[start : start + step]
                        refuse_nan(key, array[block], block)

    def split(self, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
        """Two datasets without common samples; the second has ``fraction`` of them, chosen by seed.

        Raises:
            InputError: the fraction leaves one of them empty, or the data has no length.
        """
        if not self._sized:
            raise InputError("val_split needs data with a length; give validation= for an iterable of batches")
        count = round(len(self) * fraction)
        if not 0.0 < fraction < 1.0 or not 0 < count < len(self):
            raise InputError(f"val_split={fraction} of {len(self)} samples leaves one side empty; expected 0 < it < 1")
        rows = self._subset if self._subset is not None else np.arange(len(self))
        order = np.random.default_rng([seed, 0x5B11]).permutation(rows)
        return self._rows(np.sort(order[count:])), self._rows(np.sort(order[:count]))

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: bool = False,
        start: int = 0,
        tuple_keys: Sequence[str] = (),
    ) -> Iterator[Batch]:
        """The batches of an epoch; the last may be short.

        Args:
            batch_size: samples per batch; an iterable of ready batches keeps its own.
            seed: with ``epoch`` the only thing that the order depends on.
            epoch: number of the pass.
            shuffle: a random order; not for iterables.
            start: how many batches to skip.
            tuple_keys: names for the elements of tuples, where the dataset has no ``keys``.
        """
        batch_size = integer("batch_size", batch_size)
        if not self._sized:
            yield from self._stream_batches(start, tuple_keys)
            return
        rows = self._subset if self._subset is not None else np.arange(len(self))
        if shuffle:
            rows = np.random.default_rng([seed, epoch]).permutation(rows)
        for first in range(start * batch_size, len(rows), batch_size):
            indices = rows[first : first + batch_size]
            yield Batch(self._take(indices, tuple_keys), indices)

    def count(self, batch_size: int) -> int | None:
        """The number of batches in an epoch, or None when it is not known."""
        return -(-len(self) // batch_size) if self._sized else None

    # ---- the three forms ------------------------------------------------------------------------------

    def _take(self, indices: Array, tuple_keys: Sequence[str]) -> dict[str, Array]:
        if self._arrays is not None:
            return {key: np.asarray(array[indices]) for key, array in self._arrays.items()}
        read: Callable[[list[int]], Any] | None = getattr(self._samples, "__getitems__", None)
        rows = [int(i) for i in indices]
        if read is not None:
            with _reading(f"samples {rows[0]} to {rows[-1]}" if len(rows) > 1 else f"sample {rows[0]}"):
                samples = list(read(rows))
            if len(samples) != len(rows):
                raise InputError(f"Dataset: __getitems__ gave {len(samples)} samples for {len(rows)} indices")
            entries = [self._entries(sample, tuple_keys) for sample in samples]
        else:
            entries = [self._sample(row, tuple_keys) for row in rows]
        for number, entry in zip(rows, entries, strict=True):
            if entry.keys() != entries[0].keys():
                raise InputError(
                    f"Dataset: sample {number} has keys {list(entry)}, sample {rows[0]} {list(entries[0])}"
                )
        taken = {}
        for key in entries[0]:
            samples = [as_array(entry[key], f"{key!r} of sample {n}") for n, entry in zip(rows, entries, strict=True)]
            odd = next((n for n, sample in zip(rows, samples, strict=True) if sample.shape != samples[0].shape), None)
            if odd is not None:
                raise InputError(
                    f"Dataset: {key!r} of sample {odd} has another shape than of sample {rows[0]} {samples[0].shape}; "
                    "pad the samples to one shape, or give an iterable of ready batches"
                )
            taken[key] = np.stack(samples)
        return taken

    def _sample(self, row: int, tuple_keys: Sequence[str]) -> dict[str, Any]:
        """A sample that is read by its number."""
        with _reading(f"sample {row}"):
            item = self._samples[row]
        return self._entries(item, tuple_keys)

    def _stream_batches(self, start: int, tuple_keys: Sequence[str]) -> Iterator[Batch]:
        with _reading("the first batch"):
            source = self._stream() if callable(self._stream) else self._stream
        if not isinstance(source, Iterable):
            raise InputError(f"Dataset: the function gave {type(source).__name__}; expected an iterable of batches")
        if self._streamed and iter(source) is source and not callable(self._stream):
            raise InputError(
                "Dataset: this iterator was read already and can't begin again; for several epochs give a function "
                "that makes an iterator, e.g. Dataset(lambda: read_batches())"
            )
        self._streamed = True
        items, number = iter(source), -1
        while True:
            number += 1
            with _reading(f"batch {number}"):
                item = next(items, _END)
            if item is _END:
                break
            if number < start:
                continue
            arrays = {
                key: as_array(v, f"{key!r} of batch {number}") for key, v in self._entries(item, tuple_keys).items()
            }
            self._check_lengths(arrays)
            yield Batch(arrays, None)
        if number < start:
            raise InputError(
                f"Dataset: it ended after {number} batches, but the run goes on after {start} of this epoch; it must "
                "give the same batches again"
            )

    def _entries(self, item: Any, tuple_keys: Sequence[str]) -> dict[str, Any]:
        """A sample or batch as a dict with its final keys."""
        if isinstance(item, Mapping):
            return self._renamed({str(key): value for key, value in item.items()})
        if not isinstance(item, (tuple, list)):
            raise InputError(f"Dataset: it gives {type(item).__name__}; expected dicts or tuples")
        keys = self._keys or tuple(tuple_keys)
        if len(item) != len(keys):
            raise InputError(
                f"Dataset: it gives tuples of {len(item)}, but knows {len(keys)} names ({', '.join(keys) or 'none'}); "
                "name the elements with Dataset(data, keys=(...))"
            )
        return self._renamed(dict(zip(keys, item, strict=True)))

    def _renamed(self, entries: Mapping[str, Any]) -> dict[str, Any]:
        missing = [key for key in self._rename if key not in entries]
        if missing:
            raise InputError(f"Dataset: rename has {missing}, but the keys are {list(entries)}")
        renamed: dict[str, Any] = {}
        for key, value in entries.items():
            new = self._rename.get(key, key)
            if new in renamed:
                raise InputError(f"Dataset: two entries are called {new!r} after rename={self._rename}")
            if new is not None:
                renamed[new] = value
        return renamed

    def _check_lengths(self, arrays: Mapping[str, Array]) -> None:
        if not arrays:
            raise InputError("Dataset: it has no arrays")
        scalars = [key for key, array in arrays.items() if array.ndim == 0]
        if scalars:
            raise InputError(
                f"Dataset: {', '.join(map(repr, scalars))} has no axis of samples; the first axis counts them"
            )
        if len({len(array) for array in arrays.values()}) > 1:
            lengths = ", ".join(f"{key!r} has {len(array)}" for key, array in arrays.items())
            raise InputError(f"Dataset: the arrays differ in their number of samples (first axis): {lengths}")

    def _rows(self, rows: Array) -> Dataset:
        chosen = object.__new__(Dataset)
        chosen.__dict__.update(self.__dict__)
        chosen._subset = rows
        return chosen


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """A context in which anybody's code reads data: what it raises becomes an InputError that says where."""
    try:
        yield
    except (DataflowError, OSError, MemoryError):
        raise
    except Exception as error:
        raise InputError(f"Dataset: {what} can't be read: {type(error).__name__}: {error}") from error


def _type_of(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def as_dataset(data: Any) -> Dataset:
    """``data`` itself when it is a Dataset, else one of it."""
    return data if isinstance(data, Dataset) else Dataset(data)


def as_array(value: Any, where: str) -> Array:
    """A numpy array of ``value``, without a copy where that is possible; raises InputError."""
    if isinstance(value, np.ndarray):
        return value
    try:
        found = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
    except Exception as error:  # anybody's code: whatever it raises is its reason
        raise InputError(
            f"{where}: {type(value).__name__} gives no array: {type(error).__name__}: {error}; convert it to numpy"
        ) from error
    array = np.asarray(found)
    if array.dtype.kind == "O":
        raise InputError(f"{where}: {type(value).__name__} gives an array of objects; its parts must have one shape")
    return array


def check_keys(found: Collection[str], required: Collection[str], optional: Collection[str] = ()) -> None:
    """Raises InputError that lists the keys that are missing and those that nothing reads."""
    missing = [key for key in required if key not in found]
    unknown = [key for key in found if key not in required and key not in optional]
    if missing or unknown:
        reasons = []
        if missing:
            reasons.append(f"missing: {', '.join(map(repr, missing))}")
        if unknown:
            reasons.append(f"unknown: {', '.join(map(repr, unknown))}")
        raise InputError(
            f"the data's keys don't fit: {'; '.join(reasons)}; expected {', '.join(map(repr, required))}; "
            "Dataset(data, rename={'old': 'new'}) renames, {'old': None} leaves out"
        )


def refuse_nan(key: str, array: Array, indices: Array | None) -> None:
    """Raises InputError with the first sample whose ``array`` has a NaN."""
    if array.dtype.kind == "f" and np.isnan(array).any():
        row = int(np.argwhere(np.isnan(array))[0][0]) if array.ndim else 0
        number = int(indices[row]) if indices is not None else row
        raise InputError(f"{key!r} of sample {number} is NaN; leave such samples out")


def _read_npz(path: str) -> dict[str, Array]:
    try:
        with Path(path).open("rb") as opened:
            found = np.load(opened, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise InputError(
                    f"{path}: one array without a name; save several with np.savez(path, x=..., labels=...)"
                )
            return {key: found[key] for key in found.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: can't be read as npz: {error}") from error
