"""Iterables: of ready batches, as PyTorch's DataLoader and generators give them, or of single samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any

from ...errors import InputError
from ...ir.types import Array
from .batch import Batch, Request, as_array, reading, stacked
from .entry_keys import EntryKeys
from .source import Stream


class BatchStream:
    """Ready batches.

    Args:
        data: an iterable of dicts or tuples of arrays, or a function that makes one.
        keys: names of entries.
        of_samples: the iterable gives single samples, which become batches here; None: it does where one of its
            classes is called IterableDataset, as in PyTorch and Hugging Face.
    """

    def __init__(self, data: Any, keys: EntryKeys, of_samples: bool | None = None) -> None:
        self._data, self._keys, self._of_samples = data, keys, of_samples
        self._begun: list[bool] = []  # shared by bound copies: whether it was read already

    @property
    def length(self) -> int | None:
        """Batches, where the iterable has a length and gives batches."""
        if not hasattr(self._data, "__len__") or self._gives_samples(self._data):
            return None
        try:
            return len(self._data)
        except TypeError:  # a DataLoader of an iterable without a length
            return None

    def bound(self, request: Request) -> Stream:
        """With names for the elements of tuples."""
        found = BatchStream(self._data, self._keys.named(request.keys), self._of_samples)
        found._begun = self._begun
        return found

    def batches(self, start: int, batch_size: int, drop_last: bool) -> Iterator[Batch]:
        """The batches from ``start`` on; those before are read and left out."""
        source = self._opened()
        number = 0
        for arrays in self._arrays(source, start, batch_size, drop_last):
            number += 1
            if number > start:
                yield Batch(arrays, None)  # whose first axes may differ: nodes and edges of graphs, time before samples
        if number < start:
            raise InputError(
                f"Dataset: it ended after {number} batches, but the run goes on after {start} of this epoch; it must "
                "give the same batches again"
            )

    def _arrays(
        self, source: Iterable[Any], start: int, batch_size: int, drop_last: bool
    ) -> Iterator[dict[str, Array]]:
        """The entries of each batch; empty for those before ``start``."""
        size = batch_size if self._gives_samples(source) else 0
        items = iter(source)
        for number in count():
            what = f"one of the samples {number * size} to {(number + 1) * size - 1}" if size else f"batch {number}"
            with reading(what):
                given = list(islice(items, size or 1))
            if len(given) < (size if drop_last else 1):
                return
            if number < start:
                yield {}
            elif size:
                numbers = range(number * size, number * size + len(given))
                yield stacked([self._keys.entries(sample) for sample in given], numbers)
            else:
                entries = self._keys.entries(given[0])
                yield {key: as_array(value, f"{key!r} of batch {number}") for key, value in entries.items()}

    def _opened(self) -> Iterable[Any]:
        with reading("the first batch"):
            source = self._data() if callable(self._data) else self._data
        if not isinstance(source, Iterable):
            raise InputError(f"Dataset: the function gave {type(source).__name__}; expected an iterable of batches")
        if self._begun and iter(source) is source and not callable(self._data):
            raise InputError(
                "Dataset: this iterator was read already and can't begin again; for several epochs give a function "
                "that makes an iterator, e.g. Dataset(lambda: read_batches())"
            )
        self._begun.append(True)
        return source

    def _gives_samples(self, source: Any) -> bool:
        if self._of_samples is not None:
            return self._of_samples
        return any(kind.__name__ == "IterableDataset" for kind in type(source).__mro__)
