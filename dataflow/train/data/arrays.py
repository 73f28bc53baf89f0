"""Arrays in memory or memory maps, with samples first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from ...ir.types import Array
from .batch import Draw, Request, check_lengths, type_of
from .source import Source, plain_order

_LOOKED_AT = 16  # rows that a signature is made from
NONE = np.zeros(0, np.int64)  # of the rows


class ArraySource:
    """Arrays by key.

    Args:
        arrays: by key, samples first.
        classes: see ``Source``.
        unusable: see ``Source``.

    Raises:
        InputError: the arrays differ in length.
    """

    workers = 0  # a batch is one copy per array

    def __init__(
        self, arrays: Mapping[str, Array], classes: Mapping[str, Sequence[str]] | None = None, unusable: Array = NONE
    ) -> None:
        check_lengths(arrays)
        self.arrays, self.classes, self.unusable = dict(arrays), classes or {}, unusable

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def bound(self, request: Request) -> Source:
        """Itself: arrays have their names."""
        return self

    def keys(self) -> tuple[str, ...]:
        """The keys of the arrays."""
        return tuple(self.arrays)

    def read(self, rows: Array, draw: Draw | None) -> dict[str, Array]:
        """Copies of the rows."""
        return {key: np.asarray(array[rows]) for key, array in self.arrays.items()}

    def column(self, key: str, rows: Array) -> Array | None:
        """Rows of one array."""
        return np.asarray(self.arrays[key][rows]) if key in self.arrays else None

    def order(self, rows: Array, batch_size: int, generator: Any) -> Array:
        """Any order."""
        return plain_order(rows, generator)

    def signature(self) -> dict[str, Any]:
        """Types of the arrays, and a hash of some rows."""
        chosen = np.linspace(0, len(self) - 1, _LOOKED_AT).astype(np.int64)
        content = xxhash.xxh3_128()
        for key in sorted(self.arrays):
            content.update(np.asarray(self.arrays[key][chosen]).tobytes())
        entries = {key: type_of(array[:1][0]) for key, array in self.arrays.items()}
        return {"entries": entries, "content": content.hexdigest()}

    def likewise(self, request: Request) -> dict[str, Any]:
        """None: arrays are read as they are."""
        return {}
