"""Converters of matrix products."""

from __future__ import annotations

from typing import Any

from dataflow import Value, ops

from ..converters import Collector
from ..importer import Importer
from ..tensor import Tensor

T = Tensor
operator = Collector()


def _transposed(x: Value, wanted: int) -> Any:
    return ops.transpose(x, perm=(1, 0)) if wanted else x


@operator("Gemm", 7)
def Gemm(
    c: Importer,
    a: T,
    b: T,
    bias: T | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    y = ops.matmul(_transposed(c.weight(a), transA), _transposed(c.weight(b), transB))
    if alpha != 1.0:
        y = ops.mul(y, alpha)
    if bias is None or beta == 0.0:
        return y
    added = c.weight(bias)
    return ops.add(y, added if beta == 1.0 else ops.mul(added, beta))


@operator("MatMul")
def MatMul(c: Importer, a: T, b: T) -> Any:
    left, right = c.weight(a), c.weight(b)
    one, two = left.type.rank == 1, right.type.rank == 1
    if one:
        left = ops.reshape(left, shape=(1, left.type.shape[0]))
    if two:
        right = ops.reshape(right, shape=(right.type.shape[0], 1))
    y = ops.matmul(left, right)
    shape = list(y.type.shape)
    if one:
        del shape[-2]
    if two:
        del shape[-1]
    return ops.reshape(y, shape=tuple(shape)) if one or two else y
