"""Converters of comparisons, logic, bits and choices between elements."""

from __future__ import annotations

from typing import Any

from dataflow import ops

from ..converters import Collector
from ..importer import Importer
from ..tensor import Tensor
from .elementwise import binary, unary

T = Tensor
operator = Collector()

binary(operator, "Equal", ops.equal)
binary(operator, "Less", ops.less)
binary(operator, "LessOrEqual", ops.less_equal)
binary(operator, "Greater", ops.greater)
binary(operator, "GreaterOrEqual", ops.greater_equal)
binary(operator, "And", ops.logical_and)
binary(operator, "Or", ops.logical_or)
binary(operator, "Xor", ops.logical_xor)
unary(operator, "BitwiseNot", ops.bitwise_not)
binary(operator, "BitwiseAnd", ops.bitwise_and)
binary(operator, "BitwiseOr", ops.bitwise_or)
binary(operator, "BitwiseXor", ops.bitwise_xor)
unary(operator, "IsNaN", ops.is_nan)
unary(operator, "Not", ops.logical_not)


@operator("IsInf")
def IsInf(c: Importer, x: T, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    return ops.is_inf(c.value(x), detect_negative=detect_negative, detect_positive=detect_positive)


@operator("BitShift", 11)
def BitShift(c: Importer, a: T, b: T, *, direction: str) -> Any:
    return ops.bit_shift(c.value(a), c.value(b), left=direction == "LEFT")


@operator("Where")
def Where(c: Importer, condition: T, x: T, y: T) -> Any:
    values = [c.value(condition), c.value(x), c.value(y)]
    return ops.where(*(values if c.freed is None else c.freed.aligned(c, *values)))
