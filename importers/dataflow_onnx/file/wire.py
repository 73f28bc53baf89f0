"""Large tensors of a serialized model, found without decoding it, so that each is in memory once, and aligned.

What protobuf decodes it copies, and Python copies it once more to look at it: a file of weights would take three times
its size. Here the fields of the model are walked (protobuf's encoding: a key, ``number << 3 | wire type``, then a
varint, 8 bytes, 4 bytes, or a length and as many bytes), the data of large initializers is read into memory of its own
and left out, and the rest, which is small, is decoded by protobuf. A model with anything unusual is decoded by protobuf
alone.
"""

from __future__ import annotations

import copyreg
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Protocol

import numpy as np

import dataflow as df

from .records import Array, Content

WORTH_SHARING = 4096  # bytes
WORTH_WALKING = 1 << 20  # bytes of a file: a smaller one is decoded, and its tensors copied, in less time
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto, TensorProto
_LENGTH = 2  # the wire type of messages and bytes
_WINDOW = 1 << 15  # bytes of a file looked at together
_WORTH_A_THREAD = 1 << 22  # bytes; a thread's begin and end take as long as reading fewer where others run too
_AT_ONCE = 1 << 24  # bytes that are read by one call
_MOST_VIEWS = 1024  # that POSIX lets be filled together, at least on Linux
_LINE = 64  # bytes; the alignment that sessions want for tensors
_LONGEST = 20  # bytes of a key and a length


def read_content(path: str) -> Content:
    """The content of a file; large tensors lie where sessions can use them without a copy.

    Raises:
        OSError: it can't be read.
    """
    with Path(path).open("rb", buffering=0) as file:
        source = _BytesOnDisk(file)
        if source.size < WORTH_WALKING:
            data = file.readall()
            return Content(data, {}, (data,))
        return _content(source)


def content_of(data: bytes) -> Content:
    """The content of a model in memory, which it shares."""
    return _content(_BytesInMemory(data))


copyreg.pickle(Content, lambda content: (content_of, (content.to_bytes(),)))


def read_array(file: FileIO, offset: int, length: int) -> Array:
    """Bytes of a file, read-only, where sessions can use them without a copy.

    Raises:
        OSError: they can't be read.
    """
    found: Array = df.empty((length,), df.uint8)
    _read(file, offset, [found.data])
    found.flags.writeable = False
    return found


def _read(file: FileIO, offset: int, views: Sequence[memoryview]) -> None:
    """Fills ``views``, one after the other, from ``offset`` on.

    Where that takes long, half is read on a second thread: what takes time is that the system makes and clears pages.
    """
    half, number = sum(map(len, views)) // 2, file.fileno()
    if half < _WORTH_A_THREAD:
        _fill(number, offset, list(views))
        return
    first, second = _split_views(views, half)
    failures: list[OSError] = []
    given_up = threading.Event()

    def work() -> None:
        try:
            _fill(number, offset + half, second, given_up)
        except OSError as error:
            failures.append(error)

    helper = threading.Thread(target=work)
    try:
        helper.start()
        _fill(number, offset, first)
    except BaseException:
        given_up.set()
        raise
    finally:
        if helper.ident is not None:
            helper.join()
    if failures:
        raise failures[0]


def _fill(file: int, offset: int, views: list[memoryview], given_up: threading.Event | None = None) -> None:
    """Fills ``views``, unless it is given up; in calls so short that Ctrl-C doesn't wait for them."""
    at = 0  # of the views before it are full
    while at < len(views) and not (given_up is not None and given_up.is_set()):
        count = os.preadv(file, _beginning(views[at : at + _MOST_VIEWS]), offset)
        if not count and any(map(len, views[at:])):
            raise OSError(0, "it became shorter while it was read")
        offset += count
        while at < len(views) and count >= len(views[at]):
            count -= len(views[at])
            at += 1
        if count:
            views[at] = views[at][count:]


def _beginning(views: Sequence[memoryview]) -> list[memoryview]:
    """The first views, ``_AT_ONCE`` bytes of them."""
    found, left = [], _AT_ONCE
    for view in views:
        found.append(view[:left])
        left -= len(found[-1])
        if not left:
            break
    return found


def _split_views(views: Sequence[memoryview], size: int) -> tuple[list[memoryview], list[memoryview]]:
    """The first ``size`` bytes, and the rest."""
    first: list[memoryview] = []
    second: list[memoryview] = []
    for view in views:
        first.append(view[:size])
        second.append(view[size:])
        size -= len(first[-1])
    return [v for v in first if len(v)], [v for v in second if len(v)]


class _Bytes(Protocol):
    """The bytes of a serialized model, in memory or on disk."""

    size: int

    def around(self, at: int) -> tuple[bytes, int]:
        """Bytes that hold at least ``_LONGEST`` from ``at`` on, or all up to the end, and where they begin."""
        ...

    def split(self, taken: Sequence[tuple[int, int]]) -> tuple[list[memoryview], list[Array]]:
        """The bytes around the ranges ``taken``, and the ranges themselves, which are read-only."""
        ...


class _BytesInMemory:
    def __init__(self, data: bytes) -> None:
        self.data, self.size = data, len(data)

    def around(self, at: int) -> tuple[bytes, int]:
        return self.data, 0

    def split(self, taken: Sequence[tuple[int, int]]) -> tuple[list[memoryview], list[Array]]:
        begins, ends = [0, *(end for _, end in taken)], [*(begin for begin, _ in taken), self.size]
        rest = [memoryview(self.data)[begin:end] for begin, end in zip(begins, ends, strict=True)]
        return rest, [np.frombuffer(self.data, np.uint8, end - begin, begin) for begin, end in taken]


class _BytesOnDisk:
    def __init__(self, file: FileIO) -> None:
        self.file, self.size = file, os.fstat(file.fileno()).st_size
        self.window, self.begin = b"", 0

    def around(self, at: int) -> tuple[bytes, int]:
        end = self.begin + len(self.window)
        if not self.begin <= at or (at + _LONGEST > end and end < self.size):
            window = memoryview(bytearray(min(self.size - at, _WINDOW)))
            _read(self.file, at, [window])
            self.window, self.begin = bytes(window), at
        return self.window, self.begin

    def split(self, taken: Sequence[tuple[int, int]]) -> tuple[list[memoryview], list[Array]]:
        sizes = [-(-(end - begin) // _LINE) * _LINE for begin, end in taken]
        block = df.empty((sum(sizes),), df.uint8)  # one block: large pages are mapped faster
        rest: list[memoryview] = []
        found: list[Array] = []
        views: list[memoryview] = []  # all of the file
        done = at = 0
        for (begin, end), size in zip(taken, sizes, strict=True):
            rest.append(memoryview(bytearray(begin - done)))
            found.append(block[at : at + end - begin])
            views += [rest[-1], found[-1].data]
            done, at = end, at + size
        rest.append(memoryview(bytearray(self.size - done)))
        _read(self.file, 0, [*views, rest[-1]])
        for array in (block, *found):
            array.flags.writeable = False
        return rest, found


_Field = tuple[int, int, int, int, int]
"""A number, a wire type, where the key begins, where what follows key and length begins, and where that ends."""


class _UnusualError(Exception):
    """Not what an ordinary encoder writes."""


def _content(source: _Bytes) -> Content:
    try:
        found = _separated(source)
    except _UnusualError:
        found = None
    if found is None:
        (everything,), _ = source.split(())
        return Content(bytes(everything), {}, (everything,))
    return found


def _separated(source: _Bytes) -> Content | None:
    """The content with large tensors apart, or None where there is none."""
    graphs = [field for field in _fields(source, 0, source.size) if field[0] == _GRAPH]
    if len(graphs) != 1 or graphs[0][1] != _LENGTH:
        raise _UnusualError
    large: dict[int, tuple[_Field, _Field]] = {}  # initializers and their data
    count = 0
    for field in _fields(source, *graphs[0][3:]):
        number, wire, _, value, end = field
        if number != _INITIALIZER:
            continue
        if wire != _LENGTH:
            raise _UnusualError
        index, count = count, count + 1
        if end - value < WORTH_SHARING:
            continue
        raw = [inner for inner in _fields(source, value, end) if inner[0] == _RAW_DATA]
        if len(raw) == 1 and raw[0][1] == _LENGTH and raw[0][4] - raw[0][3] >= WORTH_SHARING:
            large[index] = field, raw[0]
    return _without(source, graphs[0], large) if large else None


def _without(source: _Bytes, graph: _Field, large: Mapping[int, tuple[_Field, _Field]]) -> Content:
    """The content with the data of large initializers left out of the small model."""
    rest, arrays = source.split([(raw[3], raw[4]) for _, raw in large.values()])
    _, _, graph_begin, done, graph_end = graph
    inner: list[bytes | memoryview] = []  # of the graph without large data
    before = rest[0][done:]  # from ``done`` to the next large data
    for (field, raw), behind in zip(large.values(), rest[1:], strict=True):
        _, _, begin, value, end = field
        length = end - value - (raw[4] - raw[2])
        inner += [before[: begin - done], _key(_INITIALIZER, length), before[value - done : raw[2] - done]]
        before, done = behind, raw[4]
    inner.append(before[: graph_end - done])
    outer = [rest[0][:graph_begin], _key(_GRAPH, sum(map(len, inner))), *inner, before[graph_end - done :]]
    chunks: list[bytes | memoryview] = [rest[0]]
    for array, behind in zip(arrays, rest[1:], strict=True):
        chunks += [array.data, behind]
    return Content(b"".join(outer), dict(zip(large, arrays, strict=True)), tuple(chunks))


def _fields(source: _Bytes, at: int, end: int) -> Iterator[_Field]:
    data, base, last = b"", 0, -1  # a key and a length that begin up to ``last`` lie in ``data``
    while at < end:
        if not base <= at <= last:
            data, base = source.around(at)
            last = base + len(data) - _LONGEST
        stop = min(len(data), end - base)
        begin, here = at, at - base
        key = data[here]
        if key < 0x80:  # of one byte, as almost all are
            here += 1
        else:
            key, here = _varint(data, here, stop)
        wire = key & 7
        if wire == _LENGTH:
            length = data[here] if here < stop else 0x80
            if length < 0x80:
                here += 1
            else:
                length, here = _varint(data, here, stop)
            value = base + here
            at = value + length
        elif wire == 0:
            value = base + here
            _, here = _varint(data, here, stop)
            at = base + here
        elif wire in (1, 5):
            value = base + here
            at = value + (8 if wire == 1 else 4)
        else:
            raise _UnusualError
        if at > end:
            raise _UnusualError
        yield key >> 3, wire, begin, value, at


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
