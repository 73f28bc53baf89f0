"""Elements in another dtype."""

from __future__ import annotations

from ..ir.graph import Node
from ..ir.op import REQUIRED, Op
from ..ir.types import DType, TensorType
from ..ir.value import Value
from .infer import need, operand


def _cast_infer(x: TensorType, *, to: DType) -> TensorType:
    need(isinstance(to, DType), f"cast: to={to!r} is no dtype, e.g. df.float32")
    need(x.dtype.kind != "c" or to.kind in "cb", f"cast: {x} to {to} would lose the imaginary parts")
    return TensorType(to, x.shape)


def _cast_gradient(node: Node, dy: Value) -> Value | None:
    source: DType = operand(node).type.dtype
    return cast(dy, to=source) if source.is_float and dy.type.dtype.is_float else None


cast: Op = Op(
    "cast",
    ("x",),
    _cast_infer,
    attributes={"to": REQUIRED},
    gradient=_cast_gradient,
    cheap=True,
    doc="x in another dtype; floats to integers towards zero, out of range to the nearest end, NaN to the lower one",
)

OPS = (cast,)
