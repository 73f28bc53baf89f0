"""The accumulated gradients between backward and update, as users see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import InputError
from ..host import checks
from ..host.named import unknown_name
from ..ir.types import Array
from .programs import Programs


class Gradients(Mapping[str, Array]):
    """Gradients by parameter: sums over the logical batch so far, which ``update`` divides by its weight.

    Reading gives copies; assigning changes what ``update`` will use.

    Args:
        programs: have them.
        pending: tells how many micro-batches were added to them.
    """

    def __init__(self, programs: Programs, pending: Callable[[], int]) -> None:
        self._programs, self._pending = programs, pending

    def __getitem__(self, name: str) -> Array:
        self._check(name)
        return self._programs.gradient(name)

    def __setitem__(self, name: str, gradient: Any) -> None:
        """Replaces a gradient.

        Raises:
            KeyError: no such parameter is trained.
            InputError: another dtype or shape, numbers that are not finite, or there is no gradient to replace.
        """
        self._check(name)
        array, known = checks.array(f"the gradient of {name!r}", gradient), self._programs.gradient(name)
        if array.dtype != known.dtype or array.shape != known.shape:
            raise InputError(
                f"the gradient of {name!r}: expected {known.dtype}{list(known.shape)}, "
                f"got {array.dtype}{list(array.shape)}"
            )
        if not np.isfinite(array).all():
            raise InputError(f"the gradient of {name!r}: NaN or infinite numbers would spoil the parameters")
        self._programs.set_gradient(name, array)

    def __iter__(self) -> Iterator[str]:
        return iter(self._programs.own)

    def __len__(self) -> int:
        return len(self._programs.own)

    def _check(self, name: str) -> None:
        if not self._pending():
            raise InputError("gradients: there are none between update() and the next backward()")
        if name not in self._programs.trained:
            raise unknown_name("gradient of a trained parameter", name, self._programs.trained)
