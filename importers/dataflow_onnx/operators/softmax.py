"""Converters of softmax and its relatives."""

from __future__ import annotations

from typing import Any

from dataflow import Dim, Value, ops

from ..converters import Collector
from ..importer import Importer
from ..shape_eval import axis_in, product
from ..tensor import Tensor

T = Tensor
operator = Collector()


def _softmax_family(onnx_name: str, op: Any) -> None:
    @operator(onnx_name)
    def over_the_rest(c: Importer, x: T, *, axis: int = 1) -> Any:
        """Until opset 12: over all axes from ``axis`` on, taken as one."""
        value = c.value(x)
        shape = value.type.shape
        at = axis_in(axis, len(shape))
        if all(not isinstance(n, Dim) and n == 1 for n in shape[at + 1 :]):
            return op(value, axis=at)
        flat = ops.reshape(value, shape=(*shape[:at], product(shape[at:])))
        return ops.reshape(op(flat, axis=-1), shape=shape)

    @operator(onnx_name, 13)
    def along_one(c: Importer, x: T, *, axis: int = -1) -> Any:
        return op(c.value(x), axis=axis)


def _hardmax(x: Value, *, axis: int) -> Any:
    at = axis_in(axis, x.type.rank)
    if x.type.shape[at] == 0:
        return ops.copy(x)
    found = ops.argmax(x, axis=at, keepdims=0)
    return ops.one_hot(found, depth=x.type.shape[at], axis=at, dtype=x.type.dtype)


_softmax_family("Softmax", ops.softmax)
_softmax_family("LogSoftmax", ops.log_softmax)
_softmax_family("Hardmax", _hardmax)
