"""TensorBoard's event files: records of protobuf messages, each with checksums.

The format is that of TensorFlow's ``record_writer`` and of its messages ``Event``, ``Summary`` and ``HistogramProto``:
a few fields, written here without a library that would weigh hundreds of megabytes.
"""

from __future__ import annotations

import itertools
import os
import platform
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected: CRC-32C of RFC 3720
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # how a field is written
_numbers = itertools.count()  # of the files of this process


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (_POLYNOMIAL if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_TABLE = _table()


def crc32c(content: bytes) -> int:
    """The checksum CRC-32C."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _masked(content: bytes) -> bytes:
    """The checksum as records have it: a checksum over data with checksums would be weak."""
    crc = crc32c(content)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


def record(content: bytes) -> bytes:
    """A record: length, its checksum, content, its checksum."""
    length = struct.pack("<Q", len(content))
    return length + _masked(length) + content + _masked(content)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of numbers between limits.

    Attributes:
        least: of the numbers.
        most: of them.
        count: how many.
        total: their sum.
        squares: the sum of their squares.
        limits: (K,) upper ends, rising.
        counts: (K,) numbers up to each end.
    """

    least: float
    most: float
    count: int
    total: float
    squares: float
    limits: Sequence[float]
    counts: Sequence[float]


class EventFile:
    """A new event file.

    Args:
        folder: of the run, which is made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{platform.node()}.{os.getpid()}.{next(_numbers)}"
        self._path = folder / name
        self._write(_field(3, _BYTES, b"brain.Event:2"))

    def add(self, step: int, scalars: Mapping[str, float], histograms: Mapping[str, Histogram] | None = None) -> None:
        """Writes figures of a step."""
        values = [_field(1, _BYTES, tag.encode()) + _field(2, _FIXED32, number) for tag, number in scalars.items()]
        for tag, histogram in (histograms or {}).items():
            values.append(_field(1, _BYTES, tag.encode()) + _field(5, _BYTES, _histogram(histogram)))
        summary = b"".join(_field(1, _BYTES, value) for value in values)
        self._write(_field(2, _VARINT, step) + _field(5, _BYTES, summary))

    def _write(self, fields: bytes) -> None:
        with self._path.open("ab") as file:  # closed between, so that readers see it and no run leaves it open
            file.write(record(_field(1, _FIXED64, time.time()) + fields))


def _histogram(h: Histogram) -> bytes:
    numbers = (h.least, h.most, float(h.count), h.total, h.squares)
    fields = b"".join(_field(number, _FIXED64, value) for number, value in enumerate(numbers, 1))
    for number, column in ((6, h.limits), (7, h.counts)):
        fields += _field(number, _BYTES, struct.pack(f"<{len(column)}d", *column))
    return fields


def _field(number: int, form: int, value: float | int | bytes) -> bytes:
    """A field of a message."""
    key = _varint(number << 3 | form)
    if isinstance(value, bytes):
        return key + _varint(len(value)) + value
    if form == _VARINT:
        return key + _varint(int(value))
    return key + struct.pack("<d" if form == _FIXED64 else "<f", value)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
