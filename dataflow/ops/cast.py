"""Elements in another dtype."""

from __future__ import annotations

from ..errors import InputError
from ..ir.graph import Node
from ..ir.op import REQUIRED_DTYPE, Op
from ..ir.types import DType, TensorType
from ..ir.value import Value
from .infer import operand

ROUND_MODES = ("up", "down", "nearest")


def _cast_infer(x: TensorType, *, to: DType, saturate: bool, round_mode: str) -> TensorType:
    if not ("s" not in (x.dtype.kind, to.kind) or "c" not in (x.dtype.kind, to.kind)):
        raise InputError(f"cast: {x} to {to} has no format")
    if not (x.dtype.kind != "c" or to.kind in "cb"):
        raise InputError(f"cast: {x} to {to} would lose the imaginary parts")
    if round_mode not in ROUND_MODES:
        raise InputError(f"cast: round_mode={round_mode!r}; expected one of {', '.join(ROUND_MODES)}")
    return TensorType(to, x.shape)


def _cast_gradient(node: Node, dy: Value) -> Value | None:
    source: DType = operand(node).type.dtype
    if not (source.is_float and dy.type.dtype.is_float):
        return None
    return dy if dy.type.dtype == source.cotangent else cast(dy, to=source.cotangent)


cast: Op = Op(
    "cast",
    ("x",),
    _cast_infer,
    attributes={"to": REQUIRED_DTYPE, "saturate": True, "round_mode": "up"},
    gradient=_cast_gradient,
    cheap=True,
    doc="x in another dtype; floats to integers towards zero, out of range to the nearest end, NaN to the lower one, "
    "and to integers of 4 and 2 bits the low bits of what that gives in 32. To floats of 8 bits what is too large "
    "becomes the largest number, with saturate=False infinity or NaN, as the dtype has them; to float8_e8m0fnu the "
    "magnitude is rounded to a power of two by round_mode (up, down, or nearest with ties up), and with "
    "saturate=False what is out of range and 0 become NaN. Strings from and to decimal notation",
)


def _bitcast_infer(x: TensorType, *, to: DType) -> TensorType:
    if not (x.dtype.bits == to.bits > 0):
        raise InputError(f"bitcast: {x} has elements of {x.dtype.bits} bits, {to} of {to.bits}")
    return TensorType(to, x.shape)


bitcast: Op = Op(
    "bitcast",
    ("x",),
    _bitcast_infer,
    attributes={"to": REQUIRED_DTYPE},
    gradient=lambda node, dy: None,
    inplace=((0, 0),),
    cheap=True,
    doc="the bits of x read as another dtype with as many",
)

OPS = (cast, bitcast)
