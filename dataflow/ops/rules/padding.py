"""Which elements an axis that is padded by its own elements reads."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.dims import Dim, Size
from ...ir.value import Builder, Value
from ..arithmetic import abs_, add, maximum, minimum, mod, sub
from ..dynamic_shape import sizes
from ..gather import range_
from ..infer import need


def elements_read(builder: Builder, size: Size, before: Any, after: Any, mode: Any) -> Value:
    """The index of each element of an axis after ``pad`` in a mode that repeats elements.

    A constant; of a named size nodes compute it, which fold once that is known.

    Raises:
        InputError: the pads are named.
    """
    fixed = not isinstance(before, Dim) and not isinstance(after, Dim)
    need(fixed, f"pad: in mode {mode!r} by the named sizes {before} and {after}; expected numbers")
    first, cropped = max(-before, 0), max(-after, 0)
    front, behind = max(before, 0), max(after, 0)
    if not isinstance(size, Dim):
        kept = np.arange(first, int(size) - cropped, dtype=np.int64)
        return builder.constant(np.pad(kept, (front, behind), mode=mode))
    count = size - (first + cropped)
    at: Any = builder.add(range_, (), {"start": -front, "limit": count + behind}).outputs[0]
    number: Any = builder.add(sizes, (), {"values": (count,), "shape": ()}).outputs[0]
    last = sub(number, 1)
    if mode == "edge":
        at = minimum(maximum(at, 0), last)
    elif mode == "wrap":
        at = mod(at, number)
    else:  # the mirror image about the first element, then about the last
        at = sub(last, abs_(sub(last, abs_(at))))
    found: Value = at if first == 0 else add(at, first)
    return found
