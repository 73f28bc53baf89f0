"""Anything with ``__len__`` and ``__getitem__``: datasets of PyTorch, Hugging Face and one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...errors import InputError
from ...ir.types import Array
from .arrays import NONE
from .batch import Draw, Request, as_array, reading, stacked, type_of
from .entry_keys import EntryKeys
from .source import Source, plain_order


class SampleSource:
    """Samples that are read one by one, or many at once through ``__getitems__``.

    Args:
        samples: gives a dict or a tuple per number.
        keys: names of entries.
    """

    workers = 0  # only its author knows whether it may be read from several threads
    unusable = NONE
    classes: Mapping[str, Sequence[str]] = {}

    def __init__(self, samples: Any, keys: EntryKeys) -> None:
        self._samples, self._keys = samples, keys

    def __len__(self) -> int:
        return len(self._samples)

    def bound(self, request: Request) -> Source:
        """With names for the elements of tuples."""
        return SampleSource(self._samples, self._keys.named(request.keys))

    def keys(self) -> tuple[str, ...]:
        """Those of the first sample."""
        return tuple(self._sample(0))

    def read(self, rows: Array, draw: Draw | None) -> dict[str, Array]:
        """The samples, stacked."""
        numbers = [int(i) for i in rows]
        many: Callable[[list[int]], Any] | None = getattr(self._samples, "__getitems__", None)
        if many is None:
            return stacked([self._sample(row) for row in numbers], numbers)
        what = f"samples {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"sample {numbers[0]}"
        with reading(what):
            samples = list(many(numbers))
        if len(samples) != len(numbers):
            raise InputError(f"Dataset: __getitems__ gave {len(samples)} samples for {len(numbers)} indices")
        return stacked([self._keys.entries(sample) for sample in samples], numbers)

    def column(self, key: str, rows: Array) -> Array | None:
        """None: it would read all of them."""
        return None

    def order(self, rows: Array, batch_size: int, generator: Any) -> Array:
        """Any order."""
        return plain_order(rows, generator)

    def signature(self) -> dict[str, Any]:
        """Types of the entries; without a hash, since samples may be random."""
        return {"entries": {key: type_of(as_array(value, repr(key))) for key, value in self._sample(0).items()}}

    def likewise(self, request: Request) -> dict[str, Any]:
        """None: samples are read as they are."""
        return {}

    def _sample(self, row: int) -> dict[str, Any]:
        with reading(f"sample {row}"):
            item = self._samples[row]
        return self._keys.entries(item)
