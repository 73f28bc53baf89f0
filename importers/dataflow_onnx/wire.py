"""Large tensors of a serialized model, found without decoding it, so that arrays share the file's bytes.

What protobuf decodes it copies, and Python copies it once more to look at it: a file of weights would take three times
its size. Here the fields of the model are walked (protobuf's encoding: a key, ``number << 3 | wire type``, then a
varint, 8 bytes, 4 bytes, or a length and as many bytes), the data of large initializers is noted and left out, and the
rest, which is small, is decoded by protobuf. Anything unusual is left to protobuf as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

WORTH_SHARING = 4096  # bytes
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # fields of ModelProto, GraphProto, TensorProto
_LENGTH = 2  # the wire type of messages and bytes


class _Field(NamedTuple):
    number: int
    wire: int
    begin: int  # of the key
    value: int  # of what follows key and length
    end: int


class _UnusualError(Exception):
    """Not what an ordinary encoder writes."""


def without_large_data(data: bytes) -> tuple[bytes, dict[int, memoryview]]:
    """A model without the data of its large initializers, and these data by the initializer's number.

    Args:
        data: a serialized ModelProto, unchecked.

    Returns:
        ``data`` itself and nothing where there is no large data, or where the file is unusual or broken.
    """
    try:
        return _split(data)
    except _UnusualError:
        return data, {}


def _split(data: bytes) -> tuple[bytes, dict[int, memoryview]]:
    graphs = [f for f in _fields(data, 0, len(data)) if f.number == _GRAPH]
    if len(graphs) != 1 or graphs[0].wire != _LENGTH:
        raise _UnusualError
    graph = graphs[0]
    view = memoryview(data)
    pieces: list[bytes | memoryview] = []
    large: dict[int, memoryview] = {}
    done = graph.value  # up to here the graph is in ``pieces``
    count = 0
    for field in _fields(data, graph.value, graph.end):
        if field.number != _INITIALIZER:
            continue
        if field.wire != _LENGTH:
            raise _UnusualError
        index, count = count, count + 1
        if field.end - field.value < WORTH_SHARING:
            continue
        raw = [f for f in _fields(data, field.value, field.end) if f.number == _RAW_DATA]
        if len(raw) != 1 or raw[0].wire != _LENGTH or raw[0].end - raw[0].value < WORTH_SHARING:
            continue
        large[index] = view[raw[0].value : raw[0].end]
        rest = [view[field.value : raw[0].begin], view[raw[0].end : field.end]]
        pieces += [view[done : field.begin], _key(_INITIALIZER, sum(map(len, rest))), *rest]
        done = field.end
    if not large:
        return data, {}
    pieces.append(view[done : graph.end])
    whole = [view[: graph.begin], _key(_GRAPH, sum(map(len, pieces))), *pieces, view[graph.end :]]
    return b"".join(whole), large


def _fields(data: bytes, at: int, end: int) -> Iterator[_Field]:
    while at < end:
        begin = at
        key, at = _varint(data, at, end)
        wire = key & 7
        if wire == 0:
            value = at
            _, at = _varint(data, at, end)
        elif wire == _LENGTH:
            length, value = _varint(data, at, end)
            at = value + length
        elif wire in (1, 5):
            value, at = at, at + (8 if wire == 1 else 4)
        else:
            raise _UnusualError
        if at > end:
            raise _UnusualError
        yield _Field(key >> 3, wire, begin, value, at)


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A number in groups of 7 bits, the lowest first, and where it ends."""
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
