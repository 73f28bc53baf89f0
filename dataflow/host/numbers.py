"""Integers that callers choose."""

from __future__ import annotations

import operator
from typing import Any

from ..errors import InputError


def integer(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """The number as an int.

    Args:
        name: of the option, for messages.
        value: an int, or what stands for one as numpy's do.
        least: the smallest that is allowed.
        most: the largest; None: any.

    Raises:
        InputError: it is no integer, or outside this range.
    """
    wanted = f"a whole number from {least} on" if most is None else f"a whole number from {least} to {most}"
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r}; expected {wanted}") from None
    if isinstance(value, bool) or number < least or (most is not None and number > most):
        raise InputError(f"{name} is {value!r}; expected {wanted}")
    return number
