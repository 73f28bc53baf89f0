"""Tables of the C contract, made from Python values: operands, attributes, node descriptions."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .._runtime import ffi, lib
from ..ir.op import Attribute
from ..ir.operand import BodyKind, Operand
from ..ir.types import Array, DType

CData = Any

# The layout of df_operand, field by field: as records, and as it is written.
_ROW = struct.Struct("=6i7q")
_OPERAND = np.dtype(
    [(n, np.int32) for n in ("struct_size", "arena", "dtype", "rank", "item_bytes", "flags")]
    + [(n, np.int64) for n in ("offset", "bytes", "iteration_stride", "value", "origin", "shape", "strides")]
)
assert _OPERAND.itemsize == _ROW.size == ffi.sizeof("df_operand")
assert all(_OPERAND.fields[n][1] == ffi.offsetof("df_operand", n) for n in _OPERAND.names)  # type: ignore[index, union-attr]

BODY_KINDS: Mapping[BodyKind, int] = {"repeat": lib.DF_REPEAT, "when": lib.DF_WHEN, "while": lib.DF_WHILE}


def member(record: CData, name: str) -> Any:
    """A member of a table of another plugin; None where it is null, or where the plugin's contract is older."""
    kind = ffi.typeof(record).item if ffi.typeof(record).kind == "pointer" else ffi.typeof(record)
    begin = ffi.offsetof(kind, name)
    found = getattr(record, name) if record.struct_size > begin else ffi.NULL
    return None if found == ffi.NULL else found


def pointers(records: CData, kind: str, count: int) -> tuple[Array, CData]:
    """The addresses of the records in a ``kind[]`` as an array, which has to be kept, and it as a ``kind **``."""
    begin, size = int(ffi.cast("intptr_t", records)), int(ffi.sizeof(kind))
    table = np.arange(begin, begin + max(count, 1) * size, size, dtype=np.int64)
    return table, ffi.cast(f"{kind} **", ffi.from_buffer(table))


def empty_held() -> CData:
    """An empty ``df_held``; what it is filled with is given back with it, by a function of C."""
    return ffi.gc(ffi.new("df_held *"), lib.df_let_go)


def text_of(chars: CData) -> str:
    """A string of a table; empty where there is none."""
    return "" if chars == ffi.NULL else ffi.string(chars).decode(errors="replace")


_CHUNK = 1 << 14  # numbers


class Tables:
    """Makes C structures and keeps what they point to alive. One per plan.

    Args:
        shared: equal lists, and those of equal attributes, are made once. Otherwise each has its own memory, in the
            order in which they are made, so that tables of plans that are alike can be compared number by number.

    Attributes:
        numbers: where numbers that may differ between such plans lie, as arrays of int64; empty where lists are shared.
    """

    def __init__(self, *, shared: bool = True) -> None:
        self._shared = shared
        self._lists: dict[tuple[int, ...], CData] = {}
        self._attributes: dict[tuple[Attribute, ...], tuple[CData, int]] = {}
        self._keep: list[Any] = []
        self._rows: dict[int, bytes] = {}
        self._addresses: dict[tuple[int, ...], int] = {}
        self._layouts: dict[Any, Any] = {}  # what operands of one type and the same strides share
        self._chunk, self._left = np.zeros(0, np.int64), 0  # for lists that have their own memory, and what is free
        self.numbers: list[Array] = []

    def ints(self, numbers: Sequence[int]) -> CData:
        """A lasting ``int64_t[]`` with these numbers."""
        key = tuple(numbers)
        if not self._shared:
            return ffi.cast("int64_t *", self._own(key))
        found = self._lists.get(key)
        if found is None:
            found = self._lists[key] = ffi.new("int64_t[]", key or (0,))
        return found

    def _own(self, numbers: tuple[int, ...]) -> int:
        """The address of a list that has its own memory."""
        if self._left < len(numbers):
            self._left = max(_CHUNK, len(numbers))
            self._chunk = np.zeros(self._left, np.int64)
            self.numbers.append(self._chunk)
        begin = len(self._chunk) - self._left
        self._chunk[begin : begin + len(numbers)] = numbers
        self._left -= len(numbers)
        return int(self._chunk.ctypes.data) + 8 * begin

    def attributes(self, values: Mapping[str, Attribute]) -> tuple[CData, int]:
        """A lasting ``df_attribute *[]`` in the order of ``values``, and its length."""
        if not values:
            return ffi.NULL, 0
        key = tuple((type(v).__name__, v) for v in values.values())
        found = self._attributes.get(key) if self._shared else None
        if found is None:
            table = ffi.new("df_attribute[]", len(values))
            for entry, value in zip(table, values.values(), strict=True):
                entry.struct_size = ffi.sizeof("df_attribute")
                self._attribute(entry, value)
            kept, listed = pointers(table, "df_attribute", len(values))
            self._keep += [table, kept]
            found = (listed, len(values))
            if self._shared:
                self._attributes[key] = found
            else:
                rows = np.frombuffer(ffi.buffer(table), np.int64).reshape(len(values), -1)
                self.numbers.append(rows[:, ffi.offsetof("df_attribute", "i") // 8])
        return found

    def _attribute(self, entry: CData, value: Attribute) -> None:
        if value is None:
            entry.kind = lib.DF_ATTR_ABSENT
        elif isinstance(value, DType):
            entry.kind, entry.i = lib.DF_ATTR_INT, value.code
        elif isinstance(value, (bool, int)):
            entry.kind, entry.i = lib.DF_ATTR_INT, int(value)
        elif isinstance(value, float):
            entry.kind, entry.f = lib.DF_ATTR_FLOAT, value
        elif isinstance(value, str):
            text = ffi.new("char[]", value.encode())
            self._keep.append(text)
            entry.kind, entry.count, entry.s = lib.DF_ATTR_STRING, len(text) - 1, text
        elif any(isinstance(v, float) for v in value):
            floats = ffi.new("double[]", list(value))
            self._keep.append(floats)
            entry.kind, entry.count, entry.floats = lib.DF_ATTR_FLOATS, len(value), floats
        else:
            entry.kind, entry.count, entry.ints = lib.DF_ATTR_INTS, len(value), self.ints(value)

    def operands(self, given: Sequence[Operand | None]) -> tuple[CData, CData]:
        """A lasting ``df_operand[]`` and ``df_operand *[]``; filled as one array, since field by field is slow."""
        known = self._rows
        rows = []
        for operand in given:
            row = known.get(id(operand)) if self._shared else None
            if row is None:
                row = known[id(operand)] = self._row(operand)
                self._keep.append(operand)  # so that its id stays its own
            rows.append(row)
        table = bytearray(b"".join(rows) if rows else self._row(None))
        records = ffi.cast("df_operand *", ffi.from_buffer(table))
        self._keep.append(table)
        if not self._shared:
            fields = np.frombuffer(table, _OPERAND)
            self.numbers += [fields[name] for name in ("offset", "bytes", "iteration_stride", "origin")]
        kept, listed = pointers(records, "df_operand", len(rows))
        self._keep.append(kept)
        return records, listed

    @staticmethod
    def rows(operands: CData, count: int) -> Array:
        """A ``df_operand[]`` of so many as a record array, which shares its memory."""
        return np.frombuffer(ffi.buffer(operands, count * _OPERAND.itemsize), _OPERAND)

    def _row(self, operand: Operand | None) -> bytes:
        """A ``df_operand``."""
        if operand is None:
            return _ROW.pack(_ROW.size, -1, *[0] * 11)
        type_ = operand.type
        key = type_.dtype.code, type_.shape, operand.strides
        layout = self._layouts.get(key) if self._shared else None  # few are different
        if layout is None:
            sizes = type_.sizes
            layout = self._layouts[key] = (
                (type_.dtype.code, len(sizes), type_.dtype.nbytes(1), 0),
                operand.bytes,
                (self.address(sizes), self.address(operand.strides)),
            )
        kind, size, lists = layout
        moves = operand.iteration_stride, operand.value, operand.origin
        return _ROW.pack(_ROW.size, operand.arena, *kind, operand.offset, size, *moves, *lists)

    def address(self, numbers: Sequence[int]) -> int:
        """The address of a lasting list of numbers."""
        key = tuple(numbers)
        if not self._shared:
            return self._own(key)
        found = self._addresses.get(key)
        if found is None:
            found = self._addresses[key] = int(ffi.cast("intptr_t", self.ints(key)))
        return found

    def node(
        self, into: CData, operands: CData, inputs: int, outputs: int, attributes: Mapping[str, Attribute], threads: int
    ) -> None:
        """Fills a ``df_node``.

        Args:
            into: the record.
            operands: of the node, as ``df_operand **``.
            inputs: how many come first.
            outputs: how many are behind them.
            attributes: in their order.
            threads: the session's.
        """
        into.struct_size = ffi.sizeof("df_node")
        into.n_inputs, into.n_outputs = inputs, outputs
        into.inputs, into.outputs = operands, operands + inputs
        into.attributes, into.n_attributes = self.attributes(attributes)
        into.threads = threads
