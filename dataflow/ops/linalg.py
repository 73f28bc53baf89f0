"""Products of matrices."""

from __future__ import annotations

from ..errors import InputError
from ..ir.dims import Dim, Size
from ..ir.graph import Node
from ..ir.op import Op
from ..ir.types import TensorType, bfloat16, float16, float32
from ..ir.value import Value
from .cast import cast
from .infer import broadcast_shape, product, same_dtype
from .shape import reshape, transpose


def _matmul_infer(a: TensorType, b: TensorType) -> TensorType:
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

OPS = (matmul,)
