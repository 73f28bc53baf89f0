"""Which stored tensors of an imported graph are parameters, statistics or constants, and which of them are trained."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from dataflow import Graph, Value
from dataflow.plugin import Initializer

from .file.records import Array, Noted
from .parametrized import parametrized
from .positions import of_positions

Roles = Mapping[str, tuple[str, bool]]  # by name: the role, and whether it is trained

_WORTH_A_SUM = 1 << 12  # elements: a sum reads them once, a check of each writes a mask too


def with_roles(graph: Graph, roles: Roles, noted: Noted) -> Graph:
    """The graph, its stored tensors in these roles; others have one by what the exporter noted.

    Args:
        graph: as it was built.
        roles: that converters gave.
        noted: by the exporter.
    """
    stored: dict[Value, Initializer] = {}
    for value, data in graph.initializers.items():
        learned = value.name in noted.parameters and data.array.dtype.kind in "fV"
        alone = data.array.size == 1 and value.name in noted.named
        other = "parameter" if learned or alone else "constant"
        role, trainable = roles.get(value.name, (other, learned))
        stored[value] = Initializer(data.array, role, trainable)  # type: ignore[arg-type]
    named = noted.named - roles.keys()
    for value in parametrized(graph, [v for v in stored if v.name in named and is_finite(stored[v].array)]):
        stored[value] = Initializer(stored[value].array, "parameter", True)
    guessed = {v: d.array for v, d in stored.items() if d.trainable and v.name not in noted.parameters}
    for value in of_positions(graph, guessed):
        stored[value] = dataclasses.replace(stored[value], trainable=False)
    return dataclasses.replace(graph, initializers=stored)


def is_finite(array: Array) -> bool:
    """Whether all elements are."""
    if 0 in array.strides:  # one number repeated
        array = array[tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)]
    if array.dtype.itemsize == 2:  # by their bits: NumPy adds 16-bit floats one by one, 4 to 21 ns each
        infinite = int(np.array(np.inf, array.dtype).view(np.uint16))
        positive = array.view(np.int16).max(initial=0) < infinite
        return bool(positive and array.view(np.uint16).max(initial=0) < infinite + 0x8000)
    if array.dtype.kind != "f":
        array = array.astype(np.float32)
    flat = array.reshape(-1) if array.size <= _WORTH_A_SUM else None
    with np.errstate(over="ignore", invalid="ignore"):
        # No sum with an infinite term, or one that is no number, is finite; one of squares is made without Python.
        if math.isfinite(array.sum() if flat is None else flat.dot(flat)):
            return True
    return bool(np.isfinite(array).all())
