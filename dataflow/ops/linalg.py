"""Products of matrices, determinants, and the discrete Fourier transform."""

from __future__ import annotations

import math

from ..errors import InputError
from ..ir.dims import Dim, Size
from ..ir.graph import Node
from ..ir.op import REQUIRED, Op
from ..ir.types import TensorType, bfloat16, float16, float32, float64
from ..ir.value import Value
from .activation import relu as _relu
from .arithmetic import add, div, mul, neg
from .cast import cast
from .infer import broadcast_shape, need_float, need_number, normal_axis, operand, product, result, same_dtype
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
cofactor: Op = Op(
    "cofactor",
    ("x",),
    _cofactor_infer,
    cost=_det_cost,
    doc="the cofactors of each matrix of x (..., M, M): the derivatives of its determinant by its elements",
)


def _inverse_infer(x: TensorType) -> TensorType:
    _square("inverse", x)
    return x


def _swapped(x: Value) -> Value:
    return transpose(x, perm=(*range(x.type.rank - 2), x.type.rank - 1, x.type.rank - 2))


def _inverse_decompose(x: Value) -> Value:
    """Cofactors over the determinant, in float64: both may be far beyond 1."""
    upcast = cast(x, to=float64)
    found = div(_swapped(cofactor(upcast)), reshape(det(upcast), shape=(*x.type.shape[:-2], 1, 1)))
    return cast(found, to=x.type.dtype)


def _inverse_gradient(node: Node, dy: Value) -> Value:
    transposed = _swapped(result(node))
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
