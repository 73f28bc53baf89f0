"""Reference of products of matrices."""

from __future__ import annotations

import numpy as np

from .arrays import Array, Attributes, Code, upcast


def matmul(attributes: Attributes, a: Array, b: Array) -> Array:
    """The product of the last two axes."""
    return np.matmul(upcast(a), upcast(b)).astype(a.dtype)


KERNELS: dict[str, Code] = {
    "matmul": matmul,
}
