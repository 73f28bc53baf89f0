"""Which stored tensors of an imported graph are parameters, statistics or constants, and which of them are trained."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from dataflow import Graph, Value
from dataflow.plugin import Initializer

from .file.records import Array, Noted, Roles
from .parametrized import STATISTIC, parametrized, standardized
from .positions import of_positions

_MASKED = -1e3  # at most: what is added to scores that nothing shall attend to
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
        stored[value] = dataclasses.replace(data, role=role, trainable=trainable)  # type: ignore[arg-type]
    named = noted.named - roles.keys()
    for value in parametrized(graph, [v for v in stored if v.name in named and is_finite(stored[v].array)]):
        stored[value] = dataclasses.replace(stored[value], role="parameter", trainable=True)
    numbered = [v for v, data in stored.items() if "::" in v.name and data.array.dtype.kind in "fV"]
    for value in standardized(graph, () if noted.parameters else numbered):
        stored[value] = dataclasses.replace(stored[value], role="parameter", trainable=True)
    guessed = {v: d.array for v, d in stored.items() if d.trainable and v.name not in noted.parameters}
    for value in of_positions(graph, guessed):
        stored[value] = dataclasses.replace(stored[value], trainable=False)
    for value in [v for v, data in stored.items() if data.trainable and STATISTIC.search(v.name)]:
        if value.name not in noted.parameters:  # of batch norms whose four vectors are fixed
            stored[value] = dataclasses.replace(stored[value], trainable=False)
    for value in _copies(stored) if noted.named else ():
        stored[value] = dataclasses.replace(stored[value], role="parameter", trainable=True)
    for value, data in stored.items() if noted.roles else ():
        if value.name in noted.roles and data.array.dtype.kind in "fV" and data.role != "statistic":
            role, trainable = noted.roles[value.name]
            stored[value] = dataclasses.replace(data, role=role, trainable=trainable)  # type: ignore[arg-type]
    for value, data in stored.items() if noted.origins else ():
        if value.name in noted.origins:
            stored[value] = dataclasses.replace(data, origin=noted.origins[value.name])
    return dataclasses.replace(graph, initializers=stored)


def _copies(stored: Mapping[Value, Initializer]) -> list[Value]:
    """What PyTorch's older exporter computed of a parameter, with other axes of 1: the data are its own."""
    learned: dict[tuple[str, int], list[Array]] = {}
    for data in stored.values():
        if data.trainable:
            learned.setdefault((data.array.dtype.str, data.array.size), []).append(data.array.squeeze())
    found = []
    for value, data in stored.items():
        if data.trainable or "::" not in value.name or data.array.size < 2:
            continue
        row = data.array.squeeze()
        of = learned.get((row.dtype.str, row.size), ())
        if any(np.array_equal(row, array) for array in of) and (row != row.reshape(-1)[0]).any():
            found.append(value)
    return found


def is_mask(name: str, array: Array) -> bool:
    """Whether a tensor that onnxruntime computed of a file of PyTorch is a mask: 0 and a large negative, or 0 and 1.

    Nodes of the older exporter have paths of modules, as ``/layer/Trilu_output_0``; folded weights have others' values.
    """
    if not name.startswith("/") or array.ndim < 2 or array.dtype.kind not in "fV":
        return False
    low, high = array.min(), array.max()
    masks = (float(high) == 0.0 and float(low) <= _MASKED) or (float(low), float(high)) == (0.0, 1.0)
    return masks and bool(((array == low) | (array == high)).all())


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
