"""Reference of casts."""

from __future__ import annotations

import numpy as np

from .arrays import Array, Attributes, Code, upcast


def _cast(attributes: Attributes, x: Array) -> Array:
    to = attributes["to"].numpy
    if x.dtype.kind in "fV" and attributes["to"].is_int:  # out of range: the nearest end, NaN the lower
        x = upcast(x)
        if attributes["to"].bits < 8:
            return np.trunc(x).astype(to)
        low, high = np.iinfo(to).min, x.dtype.type(np.iinfo(to).max)
        if int(high) > np.iinfo(to).max:  # rounded up when converted to a float
            high = np.nextafter(high, x.dtype.type(0))
        return np.where(x >= low, np.minimum(x, high), x.dtype.type(low)).astype(to)
    return x.astype(to)


KERNELS: dict[str, Code] = {
    "cast": _cast,
}
