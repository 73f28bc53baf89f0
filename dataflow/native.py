"""Tables of the C contract, made from Python values: operands, attributes, node descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._runtime import ffi, lib
from .errors import Cancelled, DataflowError, DeviceError, InputError, OutOfMemoryError
from .graph import Attribute
from .types import DType, TensorType, contiguous_strides

CData = Any

_ERRORS: Mapping[int, type[DataflowError]] = {
    1: InputError,
    3: OutOfMemoryError,
    5: Cancelled,
}


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor as a plan names it: a place in an arena.

    Attributes:
        arena: index into the plan's arenas; -1 before placement.
        offset: bytes from the arena's begin.
        type: bound dtype and shape.
        strides: in elements.
        value: number of the root value whose bytes these are.
        origin: where in the root it begins, in bytes.
        trip_stride: bytes that it moves per trip in a loop's body.
        flip: bytes that it moves on odd trips only.
    """

    arena: int
    offset: int
    type: TensorType
    strides: tuple[int, ...]
    value: int
    origin: int = 0
    trip_stride: int = 0
    flip: int = 0

    @property
    def bytes(self) -> int:
        """From the first to the last element; negative strides reach below the offset and count too."""
        if self.type.elements == 0:
            return 0
        low, high = self.span
        return high - low

    @property
    def span(self) -> tuple[int, int]:
        """First and one-past-last byte, relative to the offset."""
        size = self.type.dtype.nbytes(1)
        reach = [(d - 1) * s * size for d, s in zip(self.type.sizes, self.strides, strict=True)]
        return sum(min(r, 0) for r in reach), sum(max(r, 0) for r in reach) + size

    @property
    def is_contiguous(self) -> bool:
        """Row-major without gaps."""
        return is_contiguous(self.type.shape, self.strides)


def is_contiguous(shape: Sequence[Any], strides: Sequence[int]) -> bool:
    """True when the strides are row-major without gaps; axes of size one don't count."""
    return 0 in shape or all(
        d == 1 or s == e for d, s, e in zip(shape, strides, contiguous_strides(shape), strict=True)
    )


def raise_error(status: int, error: CData, where: str) -> None:
    """Raises the error of a status that isn't DF_OK, with ``where`` before its text."""
    if status == 0:
        return
    text = ffi.string(error.text).decode("utf-8", "replace") or f"status {status}"
    raise _ERRORS.get(status, DeviceError)(f"{where}: {text}")


class Tables:
    """Makes C structures and keeps what they point to alive. One per plan."""

    def __init__(self) -> None:
        self._lists: dict[tuple[int, ...], CData] = {}
        self._attributes: dict[tuple[Attribute, ...], tuple[CData, int]] = {}
        self._keep: list[CData] = []

    def ints(self, numbers: Sequence[int]) -> CData:
        """A lasting ``int64_t[]`` with these numbers."""
        key = tuple(numbers)
        found = self._lists.get(key)
        if found is None:
            found = self._lists[key] = ffi.new("int64_t[]", key or (0,))
        return found

    def attributes(self, values: Mapping[str, Attribute]) -> tuple[CData, int]:
        """A lasting ``df_attribute[]`` in the order of ``values``, and its length."""
        if not values:
            return ffi.NULL, 0
        key = tuple((type(v).__name__, v) for v in values.values())
        found = self._attributes.get(key)
        if found is None:
            table = ffi.new("df_attribute[]", len(values))
            for entry, value in zip(table, values.values(), strict=True):
                self._attribute(entry, value)
            found = self._attributes[key] = (table, len(values))
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

    def operand(self, into: CData, operand: Operand | None) -> None:
        """Fills a ``df_operand``."""
        if operand is None:
            into.arena = -1
            return
        type_ = operand.type
        into.arena = operand.arena
        into.dtype = type_.dtype.code
        into.rank = len(type_.shape)
        into.offset = operand.offset
        into.bytes = operand.bytes
        into.trip_stride = operand.trip_stride
        into.value = operand.value
        into.origin = operand.origin
        into.shape = self.ints(type_.sizes)
        into.strides = self.ints(operand.strides)

    def node(
        self,
        into: CData,
        inputs: Sequence[Operand | None],
        outputs: Sequence[Operand | None],
        attributes: Mapping[str, Attribute],
        threads: int,
    ) -> None:
        """Fills a ``df_node``."""
        operands = ffi.new("df_operand[]", max(len(inputs) + len(outputs), 1))
        self._keep.append(operands)
        for index, operand in enumerate([*inputs, *outputs]):
            self.operand(operands[index], operand)
        into.struct_size = ffi.sizeof("df_node")
        into.n_inputs, into.n_outputs = len(inputs), len(outputs)
        into.inputs, into.outputs = operands, operands + len(inputs)
        into.attributes, into.n_attributes = self.attributes(attributes)
        into.threads = threads
