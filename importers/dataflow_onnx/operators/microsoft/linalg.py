"""Converters of matrix products with transposed operands, factors and activations."""

from __future__ import annotations

from typing import Any

from dataflow import Value, float32, float64, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to, number, slice_axis
from ...importer import Importer
from ...tensor import Tensor
from ..linalg import Gemm, MatMul, transformed
from .activation import activated

T = Tensor
operator = Collector("com.microsoft")


def _operand(x: Value, transposed: int, batch_transposed: int) -> Any:
    """A factor with its first axis behind those of the batch, then with its last two axes swapped, as asked for."""
    rank = x.type.rank
    if rank < 2:
        return x
    perm = list(range(rank))
    if batch_transposed:
        perm = [*perm[1:-1], 0, rank - 1]
    if transposed:
        perm[-2:] = perm[:-3:-1]
    return ops.transpose(x, perm=tuple(perm)) if perm != list(range(rank)) else x


def _product(c: Importer, a: T, b: T, alpha: float, transposed: tuple[int, int], batch: tuple[int, int]) -> Any:
    operands = (_operand(c.weight(t), transposed[i], batch[i]) for i, t in enumerate((a, b)))
    y = MatMul(c, *(Tensor(v.name, v) for v in operands))
    return y if alpha == 1.0 else ops.mul(y, alpha)


@operator("FusedMatMul")
def FusedMatMul(
    c: Importer,
    a: T,
    b: T,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Any:
    return _product(c, a, b, alpha, (transA, transB), (transBatchA, transBatchB))


@operator("TransposeMatMul")
def TransposeMatMul(c: Importer, a: T, b: T, *, alpha: float = 1.0, transA: int = 0, transB: int = 0) -> Any:
    return _product(c, a, b, alpha, (transA, transB), (0, 0))


@operator("FusedMatMulActivation")
def FusedMatMulActivation(
    c: Importer,
    a: T,
    b: T,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_axis: int | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> Any:
    y = _product(c, a, b, alpha, (transA, transB), (transBatchA, transBatchB))
    if activation == "Softmax":
        return ops.softmax(y, axis=-1 if activation_axis is None else activation_axis)
    if activation_axis is not None:
        raise ModelError(f"activation {activation} has no axis; activation_axis is {activation_axis}")
    return activated(y, activation, {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma})


@operator("FusedGemm")
def FusedGemm(
    c: Importer,
    a: T,
    b: T,
    bias: T | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Any:
    y = Gemm(c, a, b, bias, alpha=alpha, beta=beta, transA=transA, transB=transB)
    return activated(y, activation, {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma})


@operator("GemmFastGelu")
def GemmFastGelu(c: Importer, x: T, w: T, bias: T | None = None) -> Any:
    y = MatMul(c, x, w)
    return ops.gelu(y if bias is None else ops.add(y, c.weight(bias)), approximate="tanh")


@operator("CDist")
def CDist(c: Importer, a: T, b: T, *, metric: str = "sqeuclidean") -> Any:
    """Distances between the rows of two matrices (M, N) and (K, N), by products.

    They are computed in float64, of what is left once the mean of the second rows is subtracted: what cancels then
    in ``a * a + b * b - 2 * a * b`` is far behind the digits of float32.
    """
    if metric not in ("euclidean", "sqeuclidean"):
        raise ModelError(f"metric is {metric!r}; expected 'euclidean' or 'sqeuclidean'")
    left, right = c.value(a), c.value(b)
    if left.type.rank != 2 or right.type.rank != 2:
        raise ModelError(f"its operands are {left.type} and {right.type}; expected two matrices")
    dtype, second = left.type.dtype, cast_to(right, float64)
    zero = number(c.builder, 0.0, float64)
    finite = ops.where(ops.equal(ops.sub(second, second), zero), second, zero)  # what isn't would be in every distance
    mean = ops.reduce_mean(finite, axes=(0,), keepdims=1)
    first, second = ops.sub(cast_to(left, float64), mean), ops.sub(second, mean)
    squares = [ops.reduce_sum(ops.mul(x, x), axes=(1,), keepdims=1) for x in (first, second)]
    other = ops.transpose(squares[1], perm=(1, 0))
    product = ops.matmul(first, ops.transpose(second, perm=(1, 0)))
    squared = ops.maximum(ops.sub(ops.add(squares[0], other), ops.mul(product, 2.0)), zero)
    return cast_to(squared if metric == "sqeuclidean" else ops.sqrt(squared), dtype)


@operator("Inverse")
def Inverse(c: Importer, x: T) -> Any:
    value = c.value(x)
    return cast_to(ops.inverse(cast_to(value, float32) if value.type.dtype.bits < 32 else value), value.type.dtype)


def _signal_axes(x: Value, count: int, behind: int, normalized: int, onesided: int) -> list[int]:
    """The axes of a signal, the last first; those ``behind`` it are none of them."""
    last = x.type.rank - 1 - behind
    if normalized or onesided != 1 or not 1 <= count <= last + 1:
        raise ModelError(f"signal_ndim is {count} for {x.type}; expected one side, and that nothing is normalized")
    return [last - i for i in range(count)]


@operator("Rfft")
def Rfft(c: Importer, x: T, *, normalized: int = 0, onesided: int = 1, signal_ndim: int = 1) -> Any:
    """The first half of the spectrum of real numbers, as pairs along a new last axis."""
    value = c.value(x)
    last, *others = _signal_axes(value, signal_ndim, 0, normalized, onesided)
    y = ops.reshape(value, shape=(*value.type.shape, 1))
    for axis, half in ((last, 1), *((axis, 0) for axis in others)):
        y = transformed(c, Tensor(x.name, y), None, axis, 0, half)
    return y


@operator("Irfft")
def Irfft(c: Importer, x: T, *, signal_ndim: int, normalized: int = 0, onesided: int = 1) -> Any:
    """Real numbers, of an even count, from the first half of their spectrum."""
    y = c.value(x)
    last, *others = _signal_axes(y, signal_ndim, 1, normalized, onesided)
    for axis, half in (*((axis, 0) for axis in reversed(others)), (last, 1)):
        y = transformed(c, Tensor(x.name, y), None, axis, 1, half)
    return ops.reshape(y, shape=y.type.shape[:-1])


def _complex_product(c: Importer, a: T, b: T, conjugate: bool) -> Any:
    """Of pairs of real and imaginary parts; of the conjugate of ``b`` if asked for."""
    factors = [c.value(t) for t in (a, b)]
    if any(f.type.rank < 1 or f.type.shape[-1] != 2 for f in factors):
        raise ModelError(f"its operands are {factors[0].type} and {factors[1].type}; expected pairs")
    (ar, ai), (br, bi) = ([slice_axis(f, -1, i, i + 1) for i in (0, 1)] for f in factors)
    first, second = (ops.add, ops.sub) if conjugate else (ops.sub, ops.add)
    real = first(ops.mul(ar, br), ops.mul(ai, bi))
    return ops.concat(real, second(ops.mul(ai, br), ops.mul(ar, bi)), axis=-1)


@operator("ComplexMul")
def ComplexMul(c: Importer, a: T, b: T) -> Any:
    return _complex_product(c, a, b, False)


@operator("ComplexMulConj")
def ComplexMulConj(c: Importer, a: T, b: T) -> Any:
    return _complex_product(c, a, b, True)
