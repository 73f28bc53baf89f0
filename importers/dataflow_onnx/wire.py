"""Large tensors of a serialized model, found without decoding it, so that each lies once in memory, and well.

What protobuf decodes it copies, and Python copies it once more to look at it: a file of weights would take three times
its size. Here the fields of the model are walked (protobuf's encoding: a key, ``number << 3 | wire type``, then a
varint, 8 bytes, 4 bytes, or a length and as many bytes), the data of large initializers is read into memory of its own
and left out, and the rest, which is small, is decoded by protobuf. Anything unusual is left to protobuf as a whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

import dataflow as df

from .records import Array, Content

WORTH_SHARING = 4096  # bytes
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto, TensorProto
_LENGTH = 2  # the wire type of messages and bytes
_WINDOW = 1 << 16  # bytes of a file looked at together
_LONGEST = 20  # bytes of a key and a length


def read_content(path: str) -> Content:
    """The content of a file; large tensors lie where sessions can use them without a copy.

    Raises:
        OSError: it can't be read.
    """
    with Path(path).open("rb", buffering=0) as file:
        return _content(_OnDisk(file))


def content_of(data: bytes) -> Content:
    """The content of a model in memory, which it shares."""
    return _content(_InMemory(data))


def read_array(file: FileIO, offset: int, length: int) -> Array:
    """Bytes of a file, read-only, where sessions can use them without a copy.

    Raises:
        OSError: they can't be read.
    """
    found: Array = df.empty((length,), df.uint8)
    _read(file, offset, found.data)
    found.flags.writeable = False
    return found


def _read(file: FileIO, offset: int, view: memoryview) -> None:
    file.seek(offset)
    done = 0
    while done < len(view):
        count = file.readinto(view[done:])
        if not count:
            raise OSError(0, "it became shorter while it was read")
        done += count


class _Place(Protocol):
    """Where a model lies."""

    size: int

    def around(self, at: int) -> tuple[bytes, int]:
        """Bytes that hold at least ``_LONGEST`` from ``at`` on, or all up to the end, and where they begin."""
        ...

    def cut(self, begin: int, end: int) -> bytes:
        """These bytes."""
        ...

    def array(self, begin: int, end: int) -> Array:
        """These bytes, read-only."""
        ...


class _InMemory:
    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def around(self, at: int) -> tuple[bytes, int]:
        return self.data, 0

    def cut(self, begin: int, end: int) -> bytes:
        return self.data[begin:end]

    def array(self, begin: int, end: int) -> Array:
        return np.frombuffer(self.data, np.uint8, end - begin, begin)


class _OnDisk:
    def __init__(self, file: FileIO) -> None:
        self.file, self.size = file, os.fstat(file.fileno()).st_size
        self.window, self.begin = b"", 0

    def around(self, at: int) -> tuple[bytes, int]:
        end = self.begin + len(self.window)
        if not self.begin <= at or (at + _LONGEST > end and end < self.size):
            self.window, self.begin = self.cut(at, min(self.size, at + _WINDOW)), at
        return self.window, self.begin

    def cut(self, begin: int, end: int) -> bytes:
        found = bytearray(end - begin)
        _read(self.file, begin, memoryview(found))
        return bytes(found)

    def array(self, begin: int, end: int) -> Array:
        return read_array(self.file, begin, end - begin)


class _Field(NamedTuple):
    number: int
    wire: int
    begin: int  # of the key
    value: int  # of what follows key and length
    end: int


class _UnusualError(Exception):
    """Not what an ordinary encoder writes."""


def _content(place: _Place) -> Content:
    try:
        found = _split(place)
    except _UnusualError:
        found = None
    if found is None:
        whole = place.cut(0, place.size)
        return Content(whole, {}, (whole,))
    return found


def _split(place: _Place) -> Content | None:
    """The content, or None where nothing is large."""
    graphs = [f for f in _fields(place, 0, place.size) if f.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].wire != _LENGTH:
        raise _UnusualError
    graph = graphs[0]
    places: dict[int, tuple[_Field, _Field]] = {}  # initializers and their data
    count = 0
    for field in _fields(place, graph.value, graph.end):
        if field.number != _INITIALIZER:
            continue
        if field.wire != _LENGTH:
            raise _UnusualError
        index, count = count, count + 1
        if field.end - field.value < WORTH_SHARING:
            continue
        raw = [f for f in _fields(place, field.value, field.end) if f.number == _RAW_DATA]
        if len(raw) == 1 and raw[0].wire == _LENGTH and raw[0].end - raw[0].value >= WORTH_SHARING:
            places[index] = field, raw[0]
    return _cut(place, graph, places) if places else None


def _cut(place: _Place, graph: _Field, places: Mapping[int, tuple[_Field, _Field]]) -> Content:
    large: dict[int, Array] = {}
    pieces: list[bytes | memoryview] = []
    inner: list[bytes] = []  # of the graph without large data
    done = 0  # up to here all is in ``pieces``
    at = graph.value  # up to here the graph is in ``inner``
    for index, (field, raw) in places.items():
        large[index] = place.array(raw.value, raw.end)
        before = place.cut(done, raw.value)
        pieces += [before, large[index].data]
        head = before[field.value - done : raw.begin - done]
        tail = place.cut(raw.end, field.end)
        inner += [before[at - done : field.begin - done], _key(_INITIALIZER, len(head) + len(tail)), head, tail]
        done, at = raw.end, field.end
    last = place.cut(done, place.size)
    pieces.append(last)
    inner.append(last[at - done : graph.end - done])
    outer = [place.cut(0, graph.begin), _key(_GRAPH, sum(map(len, inner))), *inner, last[graph.end - done :]]
    return Content(b"".join(outer), large, tuple(pieces))


def _fields(place: _Place, at: int, end: int) -> Iterator[_Field]:
    while at < end:
        begin = at
        data, base = place.around(at)
        stop = min(len(data), end - base)
        key, here = _varint(data, at - base, stop)
        wire = key & 7
        if wire == 0:
            value = base + here
            _, here = _varint(data, here, stop)
            at = base + here
        elif wire == _LENGTH:
            length, here = _varint(data, here, stop)
            value = base + here
            at = value + length
        elif wire in (1, 5):
            value = base + here
            at = value + (8 if wire == 1 else 4)
        else:
            raise _UnusualError
        if at > end:
            raise _UnusualError
        yield _Field(key >> 3, wire, begin, value, at)


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number in groups of 7 bits, the lowest first, and where it ends."""
    if at < end and data[at] < 0x80:
        return data[at], at + 1
    found = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        found |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return found, at
        shift += 7
    raise _UnusualError


def _key(number: int, length: int) -> bytes:
    """Key and length of a field of bytes."""
    out = bytearray([number << 3 | _LENGTH])
    while length >= 0x80:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out)
