"""What kernels of several families share: types of arrays, the dtype to compute in, checked indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dataflow.errors import InputError

Array = np.ndarray[Any, Any]
Attributes = Mapping[str, Any]
Code = Callable[..., Any]
"""``code(attributes, *inputs)`` gives an array, or a tuple with one per output."""


def upcast(x: Array) -> Array:
    """Floats of two bytes or fewer as float32, in which kernels compute before they round once; others as they are."""
    return x.astype(np.float32) if x.dtype.kind in "fV" and x.dtype.itemsize <= 2 else x


def lowest(dtype: np.dtype[Any], sign: int = 1) -> Any:
    """The identity of a maximum over ``dtype``: -inf, or the least number; with sign -1 that of a minimum."""
    if dtype.kind in "fc":
        return -np.inf * sign
    if dtype.kind == "b":
        return sign < 0
    import ml_dtypes

    int_limits: Any = ml_dtypes.iinfo  # neither is typed
    float_limits: Any = ml_dtypes.finfo
    least = np.asarray(-np.inf * sign).astype(dtype) if not dtype.name.startswith(("int", "uint")) else None
    if least is not None and np.isinf(least.astype(np.float32)):
        return least
    limits = int_limits(dtype) if least is None else float_limits(dtype)
    return limits.min if sign > 0 else limits.max


def check_indices(indices: Array, size: int, what: str) -> Array:
    """The indices, where negative ones count from the end.

    Raises:
        InputError: one is outside [-size, size); says which.
    """
    indices = indices.astype(np.int64, copy=False)  # a size may be no number of theirs
    wrong = (indices < -size) | (indices >= size)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(f"{what}: index {int(indices[at])} at {list(at)} is outside [{-size}, {size})")
    return np.where(indices < 0, indices + size, indices)
