"""What kernels of several families share: types of arrays, their computing dtype, checked indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dataflow.errors import InputError

Array = np.ndarray[Any, Any]


Attributes = Mapping[str, Any]


Code = Callable[..., Any]


def wide(x: Array) -> Array:
    """``x`` in a dtype that NumPy computes well in: two-byte floats become float32."""
    return x.astype(np.float32) if x.dtype.kind in "fV" and x.dtype.itemsize <= 2 else x


def lowest(dtype: np.dtype[Any], sign: int = 1) -> Any:
    """What is below every number of ``dtype``, or its least; with sign -1 what is above, or the largest."""
    if dtype.kind in "fc":
        return -np.inf * sign
    if dtype.kind == "b":
        return sign < 0
    import ml_dtypes

    of_ints: Any = ml_dtypes.iinfo  # neither has types
    of_floats: Any = ml_dtypes.finfo
    least = np.asarray(-np.inf * sign).astype(dtype) if not dtype.name.startswith(("int", "uint")) else None
    if least is not None and np.isinf(least.astype(np.float32)):
        return least
    limits = of_ints(dtype) if least is None else of_floats(dtype)
    return limits.min if sign > 0 else limits.max


def check_indices(indices: Array, size: int, what: str) -> Array:
    """Indices counted from the front.

    Raises:
        InputError: one is outside [-size, size); says where.
    """
    wrong = (indices < -size) | (indices >= size)
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(f"{what}: index {int(indices[at])} at {list(at)} is outside [{-size}, {size})")
    return np.where(indices < 0, indices + size, indices)
