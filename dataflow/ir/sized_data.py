"""Stored data that was computed from traced sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .graph import Initializer, Node
from .substitution import Substitution
from .tracing import Traced, number_of
from .types import Array, DType


class SizedData(Initializer):
    """A constant that is another for other sizes; whoever reads its data now decides by them.

    Attributes:
        compute: gives its data for any sizes.
        now: for those of now.
        sizes: on which it depends.
    """

    __slots__ = ("compute", "now", "sizes")
    compute: Callable[[Substitution], Array]
    now: Array
    sizes: tuple[Traced, ...]

    def __init__(self, compute: Callable[[Substitution], Array], now: Array, sizes: Iterable[Traced]) -> None:
        given = {"role": "constant", "trainable": False, "factor": None, "origin": "", "literal": False}
        for name, value in {**given, "compute": compute, "now": now, "sizes": tuple(sizes)}.items():
            object.__setattr__(self, name, value)

    @property
    def array(self) -> Array:
        """Its data, for these sizes alone."""
        for size in self.sizes:
            size.__index__()
        return self.now

    def at(self, sizes: Substitution) -> Initializer:
        """The constant for some sizes."""
        return Initializer(frozen(self.compute(sizes)))


def sized_scalar(size: Traced, number: Callable[[int], float], dtype: DType) -> SizedData:
    """A number of rank 0 that is computed from a size."""

    def compute(sizes: Substitution) -> Array:
        return np.asarray(number(sizes.size(size)), dtype.numpy)

    return SizedData(compute, np.asarray(number(size.number), dtype.numpy), (size,))


def sized_vector(values: Sequence[Any], shape: Sequence[int], dtype: DType) -> SizedData:
    """The sizes ``values``, of which some are traced, as an array of ``shape``."""

    def compute(sizes: Substitution) -> Array:
        return np.array(sizes.sizes(tuple(values)), dtype.numpy).reshape(shape)

    now = np.array([number_of(size) for size in values], dtype.numpy).reshape(shape)
    return SizedData(compute, now, [size for size in values if type(size) is Traced])


def frozen(array: Array) -> Array:
    """The array, not to be written."""
    view = array.view()
    view.flags.writeable = False
    return view


def sizes_in(node: Node) -> Iterator[Traced]:
    """The traced sizes of a node's types and attributes."""
    shapes: list[Any] = [value.type.shape for value in (*node.inputs, *node.outputs) if value is not None]
    for several in (*shapes, *node.attributes.values()):
        for size in several if isinstance(several, tuple) else (several,):
            if type(size) is Traced:
                yield size
