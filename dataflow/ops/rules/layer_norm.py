"""Types of layer norm and of its gradient."""

from __future__ import annotations

from ...errors import InputError
from ...ir.dims import Shape
from ...ir.types import TensorType
from ..infer import alike, need_float, normal_axis
from ..reduce import reduce_sum


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
