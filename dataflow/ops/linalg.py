"""Products of matrices, determinants, and the discrete Fourier transform."""

from __future__ import annotations

import functools
import math
from itertools import combinations

import numpy as np

from ..errors import GradientError, InputError
from ..ir.dims import Dim, Size
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op
from ..ir.types import Array, TensorType, bfloat16, float16, float32, float64
from ..ir.value import Value
from .activation import relu as _relu
from .arithmetic import add, div, mul, neg, sub
from .cast import cast
from .gather import gather
from .infer import (
    broadcast_shape,
    builder_for,
    need_float,
    need_number,
    normal_axis,
    operand,
    product,
    result,
    same_dtype,
)
from .reduce import reduce_sum
from .shape import reshape, transpose


def _matmul_infer(a: TensorType, b: TensorType) -> TensorType:
    need_number("matmul", a, b)
    upcast = a.dtype == float32 and b.dtype in (float16, bfloat16)
    dtype = a.dtype if upcast else same_dtype("matmul", a, b)
    if a.rank < 2 or b.rank < 2:
        raise InputError(f"matmul: operands {a} and {b} need two axes or more; reshape vectors first")
    inner, other = a.shape[-1], b.shape[-2]
    if not (inner == other or isinstance(inner, Dim) or isinstance(other, Dim)):
        raise InputError(f"matmul: inner sizes differ: a is {a}, b is {b}; transpose one of them if that was meant")
    return TensorType(dtype, (*broadcast_shape("matmul", a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]))


def swapped(x: Value) -> Value:
    """The value with its last two axes exchanged: a view."""
    rank = x.type.rank
    return transpose(x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _matmul_gradient(node: Node, dy: Value) -> tuple[Value, Value]:
    a, b = node.inputs[:2]
    assert a is not None and b is not None
    if a.type.rank > 2 and b.type.rank == 2:  # one product over all rows instead of a sum of one per batch entry
        rows = product(a.type.shape[:-1])
        flat, dflat = (reshape(v, shape=(rows, v.type.shape[-1])) for v in (a, dy))
        return matmul(dy, swapped(b)), _like(b, matmul(swapped(flat), dflat))
    return matmul(dy, swapped(b)), _like(b, matmul(swapped(a), dy))


def _like(x: Value, gradient: Value) -> Value:
    """The gradient by x in its dtype."""
    return gradient if gradient.type.dtype == x.type.dtype else cast(gradient, to=x.type.dtype)


def _matmul_cost(node: Node) -> int:
    a, y = node.inputs[0], node.outputs[0]
    assert a is not None and y is not None
    inner: Size = a.type.shape[-1]
    return 2 * y.type.elements * int(inner)


matmul: Op = Op(
    "matmul",
    ("a", "b"),
    _matmul_infer,
    gradient=_matmul_gradient,
    cost=_matmul_cost,
    doc="y (..., M, N) = a (..., M, K) b (..., K, N); leading axes broadcast; b may have 16 bits where a is float32",
)


# ---- operands that are rounded once, for all products that read them ----------------------------------------


def _rounded_infer(
    a: TensorType, b: TensorType, bias: TensorType | None = None, addend: TensorType | None = None, *, relu: bool
) -> TensorType:
    if a.dtype not in (bfloat16, float16):
        raise InputError(f"matmul_rounded: a is {a}; expected 16 bits")
    y = _matmul_infer(a, b)
    found = TensorType(float32, y.shape)
    if bias is not None and (bias.dtype != float32 or bias.shape != y.shape[-1:]):
        raise InputError(f"matmul_rounded: bias is {bias}; expected one element per column")
    if addend is not None and addend != found:
        raise InputError(f"matmul_rounded: addend is {addend}; expected what the product gives, {found}")
    return found


def _rounded_decompose(
    a: Value, b: Value, bias: Value | None = None, addend: Value | None = None, *, relu: bool
) -> Value:
    y = matmul(cast(a, to=float32), cast(b, to=float32))
    for added in (bias, addend):
        y = y if added is None else add(y, added)
    return _relu(y) if relu else y


matmul_rounded: Op = Op(
    "matmul_rounded",
    ("a", "b", "bias?", "addend?"),
    _rounded_infer,
    attributes={"relu": False},
    decompose=_rounded_decompose,
    cost=_matmul_cost,
    inplace=((0, 3),),
    doc="y = a b + bias + addend, with relu no less than 0; a and b have 16 bits, sums and all else are float32",
)


def _square(name: str, x: TensorType) -> None:
    need_float(name, x)
    sizes = x.shape[-2:]
    fits = len(sizes) == 2 and (sizes[0] == sizes[1] or any(isinstance(n, Dim) for n in sizes))
    if not fits:
        raise InputError(f"{name}: expected square matrices along the last two axes, got {x}")


def _det_infer(x: TensorType) -> TensorType:
    _square("det", x)
    return TensorType(x.dtype, x.shape[:-2])


def _cofactor_infer(x: TensorType) -> TensorType:
    _square("cofactor", x)
    return x


def _det_gradient(node: Node, dy: Value) -> Value:
    """Of singular matrices too, which have cofactors and no inverse."""
    return mul(cofactor(operand(node)), reshape(dy, shape=(*dy.type.shape, 1, 1)))


def _det_cost(node: Node) -> int:
    x = operand(node).type
    return x.elements * int(x.shape[-1])


det: Op = Op(
    "det",
    ("x",),
    _det_infer,
    gradient=_det_gradient,
    cost=_det_cost,
    doc="the determinant of each matrix of x (..., M, M)",
)

_FEW = 6  # rows of a matrix up to which its minors without two rows and two columns are computed: 225 of 4 by 4


def _cofactor_gradient(node: Node, dy: Value) -> Value | None:
    """In float64; of matrices of few rows by minors, which singular ones have too, of larger ones by the inverse."""
    x = operand(node)
    rows = next((n for n in x.type.shape[-2:] if not isinstance(n, Dim)), None)
    if rows is None:
        raise GradientError(f"{node.describe()}: its gradient needs matrices of a fixed size; x is {x.type}")
    if rows < 2:
        return None
    if rows == 2:
        return cofactor(dy)
    upcast, cotangent = (cast(v, to=float64) for v in (x, dy))
    return cast((_by_minors if rows <= _FEW else _by_inverse)(upcast, cotangent, int(rows)), to=dy.type.dtype)


def _by_minors(x: Value, dy: Value, rows: int) -> Value:
    """Sums over i, j of dy[i, j] times the second derivative of the determinant by x[i, j] and x[k, l].

    That is the minor without rows i and k and columns j and l, with a sign.
    """
    kept, index, sign = _second_minors(rows)
    lead, pairs = x.type.shape[:-2], len(kept)
    constant = builder_for(x).constant
    chosen = gather(gather(x, constant(kept), axis=-2), constant(kept), axis=-1)  # (..., pair, row, pair, column)
    at = len(lead)
    minors = det(transpose(chosen, perm=(*range(at), at, at + 2, at + 1, at + 3)))
    second = mul(gather(reshape(minors, shape=(*lead, pairs * pairs)), constant(index), axis=-1), constant(sign))
    found = matmul(second, reshape(dy, shape=(*lead, rows * rows, 1)))
    return reshape(found, shape=x.type.shape)


@functools.cache
def _second_minors(rows: int) -> tuple[Array, Array, Array]:
    """What is left without each pair of rows; for two elements of the matrix the number of their minor, and its sign.

    Elements are numbered by row; minors by the pair of their rows, then of their columns.
    """
    pairs = list(combinations(range(rows), 2))
    kept = np.array([[i for i in range(rows) if i not in pair] for pair in pairs], np.int64)
    number, sign = np.zeros((rows, rows), np.int64), np.zeros((rows, rows))
    for at, (i, k) in enumerate(pairs):
        number[i, k] = number[k, i] = at
        sign[i, k], sign[k, i] = (-1) ** (i + k), -((-1) ** (i + k))
    # of i, k and j, l: elements (i, j) and (k, l)
    index = number[:, None, :, None] * len(pairs) + number[None, :, None, :]
    signs = sign[:, None, :, None] * sign[None, :, None, :]
    return kept, index.reshape(rows * rows, -1), signs.reshape(rows * rows, -1)


def _by_inverse(x: Value, dy: Value, rows: int) -> Value:
    """With Y the inverse and C the cofactors, det(x) times Y transposed: sum(dy * C) Y^T - C dy^T Y^T."""
    transposed = swapped(inverse(x))
    found = mul(transposed, reshape(det(x), shape=(*x.type.shape[:-2], 1, 1)))
    along = reduce_sum(mul(dy, found), axes=(-2, -1), keepdims=True)
    return sub(mul(transposed, along), matmul(matmul(found, swapped(dy)), transposed))


cofactor: Op = Op(
    "cofactor",
    ("x",),
    _cofactor_infer,
    gradient=_cofactor_gradient,
    cost=_det_cost,
    doc="the cofactors of each matrix of x (..., M, M): the derivatives of its determinant by its elements. Their own "
    "gradient is that of singular matrices too where M is at most 6; of larger ones it is by the inverse, and isn't "
    "finite for a singular matrix",
)


def _inverse_infer(x: TensorType) -> TensorType:
    _square("inverse", x)
    return x


def _inverse_decompose(x: Value) -> Value:
    """Cofactors over the determinant, in float64: both may be far beyond 1."""
    upcast = cast(x, to=float64)
    found = div(swapped(cofactor(upcast)), reshape(det(upcast), shape=(*x.type.shape[:-2], 1, 1)))
    return cast(found, to=x.type.dtype)


def _inverse_gradient(node: Node, dy: Value) -> Value:
    transposed = swapped(result(node))
    return neg(matmul(matmul(transposed, dy), transposed))


inverse: Op = Op(
    "inverse",
    ("x",),
    _inverse_infer,
    gradient=_inverse_gradient,
    decompose=_inverse_decompose,
    cost=_det_cost,
    doc="the inverse of each matrix of x (..., M, M); of a singular one its elements aren't finite",
)

# ---- the discrete Fourier transform: real and imaginary parts lie along the last axis -----------------------


def _dft_infer(x: TensorType, *, axis: int, inverse: bool) -> TensorType:
    need_float("dft", x)
    at = normal_axis("dft", axis, x.rank)
    pairs = at < x.rank - 1 and (x.shape[-1] == 2 or isinstance(x.shape[-1], Dim))
    if not pairs:
        raise InputError(f"dft: axis {axis} of {x}; expected pairs along the last axis, and to transform another one")
    return x


def _dft_gradient(node: Node, dy: Value) -> Value:
    """The adjoint of a sum with factors e^(-it) is that with e^(it)."""
    return dft(dy, axis=node.attributes["axis"], inverse=not node.attributes["inverse"])


def _dft_cost(node: Node) -> int:
    """5 n log n for n points, as is usual (Frigo and Johnson 2005)."""
    x = operand(node).type
    points = int(x.shape[normal_axis("dft", node.attributes["axis"], x.rank)])
    return int(2.5 * x.elements * math.log2(max(points, 2)))


dft: Op = Op(
    "dft",
    ("x",),
    _dft_infer,
    attributes={"axis": REQUIRED, "inverse": False},
    gradient=_dft_gradient,
    cost=_dft_cost,
    doc="y_k = the sum over j of x_j e^(-2 pi i j k / n) along axis, with n points; inverse: of e^(2 pi i j k / n), "
    "which isn't divided by n. x (..., n, ..., 2) holds real and imaginary parts",
)

OPS = (matmul, matmul_rounded, det, cofactor, inverse, dft)
