"""Converters of comparisons, logic and choices between elements."""

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
unary(operator, "IsNaN", ops.is_nan)
unary(operator, "Not", ops.logical_not)


@operator("IsInf")
def IsInf(c: Importer, x: T, *, detect_negative: int = 1, detect_positive: int = 1) -> Any:
    return ops.is_inf(c.value(x), detect_negative=detect_negative, detect_positive=detect_positive)


@operator("Where")
def Where(c: Importer, condition: T, x: T, y: T) -> Any:
    return ops.where(c.value(condition), c.value(x), c.value(y))
