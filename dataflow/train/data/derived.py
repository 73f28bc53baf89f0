"""Sources made from others: samples changed by a function, batches changed or left out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir.types import Array
from .batch import Batch, Draw, Request, as_array, check_lengths, reading, stacked, type_of
from .source import Source, Stream

Change = Callable[[dict[str, Any]], Any]


class MappedSource:
    """Samples changed by a function.

    Args:
        source: of the samples as they were.
        change: gives the dict of a sample for a dict of its arrays.
    """

    def __init__(self, source: Source, change: Change) -> None:
        self.source, self._change = source, change

    @property
    def workers(self) -> int:
        """Those of the source."""
        return self.source.workers

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """Those of the source."""
        return self.source.classes

    @property
    def unusable(self) -> Array:
        """Those of the source."""
        return self.source.unusable

    def __len__(self) -> int:
        return len(self.source)

    def bound(self, request: Request) -> Source:
        """With the source bound; it may have other entries, from which the function makes those that are wanted."""
        return MappedSource(self.source.bound(dataclasses.replace(request, raw=True)), self._change)

    def keys(self) -> tuple[str, ...]:
        """Those that the function gives for the first sample."""
        return tuple(self._first())

    def read(self, rows: Array, draw: Draw | None) -> dict[str, Array]:
        """The samples, each changed, stacked."""
        arrays = self.source.read(rows, draw)
        numbers = [int(i) for i in rows]
        return stacked([self._changed(arrays, i, row) for i, row in enumerate(numbers)], numbers)

    def column(self, key: str, rows: Array) -> Array | None:
        """None: it would read all of them."""
        return None

    def order(self, rows: Array, batch_size: int, generator: Any) -> Array:
        """That of the source."""
        return self.source.order(rows, batch_size, generator)

    def signature(self) -> dict[str, Any]:
        """That of the source, and types of what the function gives."""
        entries = {key: type_of(as_array(value, repr(key))) for key, value in self._first().items()}
        return {**self.source.signature(), "mapped": entries}

    def likewise(self, request: Request) -> dict[str, Any]:
        """None: the function isn't known elsewhere."""
        return {}

    def _first(self) -> dict[str, Any]:
        row = np.setdiff1d(np.arange(len(self)), self.unusable)[:1]
        return self._changed(self.source.read(row, None), 0, int(row[0]))

    def _changed(self, arrays: Mapping[str, Array], index: int, row: int) -> dict[str, Any]:
        with reading(f"sample {row}"):
            found = self._change({key: array[index] for key, array in arrays.items()})
        return _entries(found, f"sample {row}")


class DerivedStream:
    """Batches changed by a function, or left out where it gives None.

    Args:
        stream: of the batches.
        change: gives the dict of a batch for a dict of its arrays.
        most: how many batches there are at most.
    """

    def __init__(self, stream: Stream, change: Change, most: int | None = None) -> None:
        self._stream, self._change, self._most = stream, change, most

    @property
    def length(self) -> int | None:
        """That of the stream, where only its beginning is taken."""
        known = self._stream.length
        return min(known, self._most) if known is not None and self._most is not None else None

    def bound(self, request: Request) -> Stream:
        """With the stream bound."""
        return DerivedStream(self._stream.bound(request), self._change, self._most)

    def batches(self, start: int, batch_size: int, drop_last: bool) -> Iterator[Batch]:
        """The changed batches from ``start`` on."""
        return islice(self._all(batch_size, drop_last), start, self._most)

    def _all(self, batch_size: int, drop_last: bool) -> Iterator[Batch]:
        for number, batch in enumerate(self._stream.batches(0, batch_size, drop_last)):
            with reading(f"batch {number}"):
                found = self._change(dict(batch.arrays))
            if found is not None:
                entries = _entries(found, f"batch {number}")
                arrays = {key: as_array(value, f"{key!r} of batch {number}") for key, value in entries.items()}
                check_lengths(arrays)
                yield Batch(arrays, batch.indices)


def _entries(found: Any, what: str) -> dict[str, Any]:
    if not isinstance(found, Mapping):
        raise InputError(f"Dataset.map: the function gave {type(found).__name__} for {what}; expected a dict")
    return {str(key): value for key, value in found.items()}
