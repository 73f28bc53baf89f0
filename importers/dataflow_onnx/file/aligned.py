"""One block of memory for the small tensors of a file, where sessions use them without a copy of each."""

from __future__ import annotations

import dataflow as df

from .records import Array

_LINE = 64  # bytes; the alignment that sessions want for tensors
_MOST = 1 << 22  # bytes of a block: one tensor that somebody keeps keeps all of it


class AlignedTensors:
    """Copies of the bytes of tensors, one behind another, read-only.

    Args:
        size: bytes of all that may come.
        count: how many may come.
    """

    def __init__(self, size: int, count: int) -> None:
        self._size = size + count * _LINE
        self._block: Array | None = None  # made when the first comes
        self._at = 0

    def keep(self, raw: bytes) -> bytes | Array:
        """The same bytes in the block; themselves where they don't fit."""
        begin, end = self._at, self._at + len(raw)
        if end > self._size or self._size > _MOST:
            return raw
        if self._block is None:
            self._block = df.empty((self._size,), df.uint8)
            self._bytes = self._block.data
            self._block.flags.writeable = False
        self._bytes[begin:end] = raw
        self._at = -(-end // _LINE) * _LINE
        return self._block[begin:end]
