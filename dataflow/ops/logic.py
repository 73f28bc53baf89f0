"""Comparisons, connectives, bits and choices: elementwise, with operands that broadcast as in NumPy."""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..ir.op import REQUIRED, Op
from ..ir.types import TensorType, bool_
from .infer import broadcast_shape, compare, logical, need_bool, need_real, same_dtype, scalar_like

_EITHER = ((0, 0), (0, 1))


def _comparison(name: str, doc: str, *, commutative: bool = False) -> Op:
    return Op(name, ("a", "b"), compare(name), cheap=True, commutative=commutative, doc=doc)


def _connective(name: str, doc: str) -> Op:
    return Op(name, ("a", "b"), logical(name), cheap=True, commutative=True, doc=doc)


equal: Op = _comparison("equal", "a = b", commutative=True)
less: Op = _comparison("less", "a < b")
less_equal: Op = _comparison("less_equal", "a <= b")
greater: Op = _comparison("greater", "a > b")
greater_equal: Op = _comparison("greater_equal", "a >= b")
logical_and: Op = _connective("logical_and", "a and b, of bools")
logical_or: Op = _connective("logical_or", "a or b, of bools")
logical_xor: Op = _connective("logical_xor", "a or b but not both, of bools")


def _bools(x: TensorType) -> TensorType:
    need_bool("logical_not", x)
    return x


logical_not: Op = Op("logical_not", ("x",), _bools, inplace=((0, 0),), cheap=True, doc="y = not x, of bools")

# ---- bits ---------------------------------------------------------------------------------------------


def _integers(name: str) -> Any:
    def infer(*types: TensorType, **_: Any) -> TensorType:
        for type_ in types:
            if not type_.dtype.is_int:
                raise InputError(f"{name}: expected integers, got {type_}")
        return TensorType(same_dtype(name, *types), broadcast_shape(name, *(type_.shape for type_ in types)))

    return infer


def _bits(name: str, doc: str) -> Op:
    return Op(name, ("a", "b"), _integers(name), inplace=_EITHER, cheap=True, commutative=True, doc=doc)


bitwise_not: Op = Op(
    "bitwise_not", ("x",), _integers("bitwise_not"), inplace=((0, 0),), cheap=True, doc="y = ~x, of integers"
)
bitwise_and: Op = _bits("bitwise_and", "y = a & b, of integers")
bitwise_or: Op = _bits("bitwise_or", "y = a | b, of integers")
bitwise_xor: Op = _bits("bitwise_xor", "y = a ^ b, of integers")
bit_shift: Op = Op(
    "bit_shift",
    ("a", "b"),
    _integers("bit_shift"),
    attributes={"left": REQUIRED},
    inplace=_EITHER,
    cheap=True,
    doc="a with its bits moved by b, to the left or else to the right, where the sign is kept; by a negative b, and "
    "from as many bits as a has on, nothing but the sign that moves in remains: 0, to the right of a negative a -1",
)

# ---- tests and choices --------------------------------------------------------------------------------


def _flag(name: str) -> Any:
    def infer(x: TensorType, **_: Any) -> TensorType:
        need_real(name, x)
        return TensorType(bool_, x.shape)

    return infer


is_nan: Op = Op("is_nan", ("x",), _flag("is_nan"), cheap=True, doc="whether x is not a number")
is_inf: Op = Op(
    "is_inf",
    ("x",),
    _flag("is_inf"),
    attributes={"detect_negative": True, "detect_positive": True},
    cheap=True,
    doc="whether x is infinite, of the signs asked for",
)


def _where_infer(condition: TensorType, x: TensorType, y: TensorType) -> TensorType:
    need_bool("where", condition)
    return TensorType(same_dtype("where", x, y), broadcast_shape("where", condition.shape, x.shape, y.shape))


where: Op = Op(
    "where",
    ("condition", "x", "y"),
    _where_infer,
    gradient=lambda n, g: (None, where(n.inputs[0], g, scalar_like(g, 0)), where(n.inputs[0], scalar_like(g, 0), g)),
    inplace=((0, 1), (0, 2)),
    cheap=True,
    doc="x where the condition holds, else y",
)

OPS = (
    equal, less, less_equal, greater, greater_equal, logical_and, logical_or, logical_xor, logical_not, bitwise_not,
    bitwise_and, bitwise_or, bitwise_xor, bit_shift, is_nan, is_inf, where,
)  # fmt: skip
