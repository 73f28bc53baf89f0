"""Stored tensors of a file that get new data."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from dataflow import TensorType
from dataflow.plugin import dtype as as_dtype

from .records import Array
from .saving import is_external
from .value_types import CODE_OF

_DATA_FIELDS = (
    "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data", "external_data",
)  # fmt: skip


def type_of(array: Array) -> TensorType:
    """That of an array's elements and sizes."""
    return TensorType(as_dtype(array), array.shape)


def tensor_of(name: str, array: Array) -> TensorProto:
    """A stored tensor, whose data lies in the file."""
    proto = TensorProto(name=name)
    fill(proto, array)
    return proto


def fill(proto: TensorProto, array: Array) -> None:
    """Gives a tensor new data; one whose data lies in another file stays so, and gets it when the file is written."""
    external = is_external(proto)
    for field in _DATA_FIELDS:
        proto.ClearField(field)
    proto.data_type = CODE_OF[type_of(array).dtype]
    del proto.dims[:]
    proto.dims.extend(array.shape)
    if not external:
        proto.raw_data = raw_bytes(array)


def raw_bytes(array: Array) -> bytes:
    """The elements little-endian and packed."""
    dtype = type_of(array).dtype
    if dtype.bits < 8:
        per = 8 // dtype.bits
        flat = array.reshape(-1).view(np.uint8) & ((1 << dtype.bits) - 1)
        flat = np.pad(flat, (0, -len(flat) % per)).reshape(-1, per)
        packed = np.zeros(len(flat), np.uint8)
        for index in range(per):
            packed |= flat[:, index] << (index * dtype.bits)
        return packed.tobytes()
    little = array.dtype.newbyteorder("<") if array.dtype.kind != "V" else array.dtype
    return np.ascontiguousarray(array).astype(little, copy=False).tobytes()
