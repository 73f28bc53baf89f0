"""Converters of operators that one op computes element by element."""

from __future__ import annotations

from typing import Any

from dataflow import Value

from ..converters import Collector
from ..importer import Importer
from ..tensor import Tensor

T = Tensor


def unary(operator: Collector, name: str, op: Any) -> None:
    """Adds the converter of an operator of one operand."""

    @operator(name)
    def convert(c: Importer, x: T) -> Any:
        return op(c.value(x))


def binary(operator: Collector, name: str, op: Any, learned: bool = False) -> None:
    """Adds the converter of an operator of two operands.

    With ``learned``, an operand that is stored is a parameter when the other isn't.
    """

    @operator(name, 7)
    def convert(c: Importer, a: T, b: T) -> Any:
        left, right = operands(c, a, b)
        return op(left, right) if c.freed is None else op(*c.freed.aligned(c, left, right))

    def operands(c: Importer, a: T, b: T) -> tuple[Value, Value]:
        if learned and a.stored is not None and b.array is None and b.stored is None:
            return c.weight(a, single=False), c.value(b)  # a view, as of one bias of three, or with axes behind it
        if learned and a.array is None:
            return c.value(a), c.weight(b, single=False)
        if learned and b.array is None:
            return c.weight(a, single=False), c.value(b)
        return c.value(a), c.value(b)
