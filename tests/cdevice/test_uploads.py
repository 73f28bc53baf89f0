"""Uploads in a row: the largest go first, and nothing overtakes anything else."""

from __future__ import annotations

from typing import Any

from dataflow._runtime import ffi, lib
from dataflow.cdevice.sequence import CopyItem, NativeItems

UP, DOWN = lib.DF_COPY_TO_DEVICE, lib.DF_COPY_TO_HOST


class Other:
    """A segment or a wait."""

    native = 1

    def fill(self, entry: Any) -> None:
        entry.kind = lib.DF_COMMAND_SEGMENT

    def check(self, status: int, error: Any) -> None:
        pass


def copy(direction: int, size: int) -> CopyItem:
    return CopyItem(ffi.NULL, ffi.NULL, direction, (ffi.NULL, 0), (0, 0), size, "a copy")


def test_large_uploads_overtake_smaller_ones_alone() -> None:
    given = [copy(UP, 4), copy(UP, 9), copy(UP, 4), Other(), copy(UP, 3), copy(DOWN, 1), copy(DOWN, 2), copy(UP, 5)]
    made = NativeItems(given)
    assert [given.index(item) for item in made._items] == [1, 0, 2, 3, 4, 5, 6, 7]
    assert [int(entry.copy.bytes) for entry in made._entries] == [9, 4, 4, 0, 3, 1, 2, 5]
