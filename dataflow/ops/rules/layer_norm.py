"""Types of layer norm and of its gradient; layer norm in smaller ops."""

from __future__ import annotations

from ...errors import InputError
from ...ir.dims import Shape
from ...ir.types import TensorType
from ...ir.value import Value
from ..arithmetic import add, copy, mul, sub
from ..infer import alike, need_float, normal_axis
from ..reduce import reduce_mean, reduce_sum
from ..shape import reshape
from .batch_norm import inverse_deviation
from .subgraph import zeros


def _rows(name: str, x: TensorType, axis: int) -> tuple[Shape, Shape]:
    """The sizes that count the rows, and those of a row."""
    need_float(name, x)
    at = normal_axis(name, axis, x.rank)
    return x.shape[:at], x.shape[at:]


def norm_infer(
    x: TensorType,
    scale: TensorType | None = None,
    bias: TensorType | None = None,
    *,
    axis: int,
    epsilon: float,
    center: bool,
) -> tuple[TensorType, ...]:
    """Of layer_norm."""
    rows, row = _rows("layer_norm", x, axis)
    for label, vector in (("scale", scale), ("bias", bias)):
        if vector is None:
            continue
        fits = vector.shape == row or not (x.is_bound and vector.is_bound)
        if not (fits and vector.dtype == x.dtype):
            raise InputError(f"layer_norm: {label} is {vector}; expected {TensorType(x.dtype, row)}")
    return x, TensorType(x.dtype, rows), TensorType(x.dtype, rows)


def row_norm(
    x: Value, scale: Value | None = None, bias: Value | None = None, *, axis: int, epsilon: float, center: bool
) -> tuple[Value, ...]:
    """layer_norm."""
    rows, _ = _rows("layer_norm", x.type, axis)
    axes = tuple(range(len(rows), x.type.rank))
    means = TensorType(x.type.dtype, rows)
    assert x.builder is not None
    if not x.type.elements:
        return copy(x), zeros(x.builder, means), zeros(x.builder, means)
    mean = reduce_mean(x, axes=axes, keepdims=True) if center else None
    centered = x if mean is None else sub(x, mean)
    inverse = inverse_deviation(reduce_mean(mul(centered, centered), axes=axes, keepdims=True), epsilon)
    y = mul(centered, inverse)
    y = y if scale is None else mul(y, scale)
    y = y if bias is None else add(y, bias)
    kept = zeros(x.builder, means) if mean is None else reshape(mean, shape=rows)
    return y, kept, reshape(inverse, shape=rows)


def norm_grad_infer(
    dy: TensorType,
    x: TensorType,
    scale: TensorType | None,
    mean: TensorType,
    inverse: TensorType,
    addend: TensorType | None = None,
    *,
    axis: int,
    epsilon: float,
    center: bool,
) -> tuple[TensorType, ...]:
    """Of layer_norm_grad."""
    rows, columns = _rows("layer_norm_grad", x, axis)
    row = TensorType(x.dtype, columns)
    alike("layer_norm_grad: x, dy and addend", x, dy, *(() if addend is None else (addend,)))
    alike("layer_norm_grad: a row of x and scale", row, *(() if scale is None else (scale,)))
    alike("layer_norm_grad: rows of x, mean and inverse_deviation", TensorType(x.dtype, rows), mean, inverse)
    return x, row, row


def norm_grad_sums_infer(
    *types: TensorType | None, axis: int, epsilon: float, center: bool, keepdims: bool
) -> tuple[TensorType, ...]:
    """Of layer_norm_grad_sums."""
    dx, *others = norm_grad_infer(*types, axis=axis, epsilon=epsilon, center=center)  # type: ignore[arg-type]
    over = tuple(range(normal_axis("layer_norm_grad_sums", axis, dx.rank)))
    sums = reduce_sum.infer(dx, axes=over, keepdims=keepdims) if over else dx
    assert isinstance(sums, TensorType)
    return dx, sums, *others
