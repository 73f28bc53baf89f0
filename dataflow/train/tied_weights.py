"""Tied weights: stored tensors that are one, as an exporter writes them twice, and their training as one.

Exporters write a decoder's embedding once for the look-up and once, transposed, for the output layer, and compute the
first step of a recurrence, whose state is zeros: it is the bias, once for each sample. Nothing in the file says that
these belong together, so equal data does: bit for bit, directly, transposed, with other axes of 1 or repeated, and not
of one value. Where a file notes of which parameters of a module they are, those of two are two.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .. import ops
from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.types import Array
from ..ir.value import Value
from ..model import Model

_Key = tuple[tuple[int, ...], bytes]  # shape and hash of data


@dataclass(frozen=True, slots=True)
class Tie:
    """What a stored tensor is a copy of.

    Attributes:
        of: name of the tensor that is trained.
        transposed: its two axes are exchanged.
        shape: its own, where that is another: with other axes of 1, or repeated along leading axes.
        row: the shape of what is repeated, with its axes of 1.
    """

    of: str
    transposed: bool = False
    shape: tuple[int, ...] | None = None
    row: tuple[int, ...] = ()

    def apply(self, array: Array) -> Array:
        """The copy's data, from that of the tensor that is trained."""
        array = array.T if self.transposed else array
        return array if self.shape is None else np.broadcast_to(array.reshape(self.row), self.shape)

    def invert(self, array: Array, shape: tuple[int, ...]) -> Array | None:
        """The data of the tensor that is trained, of this shape, from the copy's; None where rows of it differ."""
        found = array
        if self.shape is not None:
            found = array[(0,) * (array.ndim - len(self.row))]
            found = found[tuple(slice(size) for size in self.row)]
        found = (found.reshape(shape[::-1]).T if self.transposed else found.reshape(shape)).copy()
        same = self.apply(found).tobytes() == array.tobytes()
        return found if same else None

    def build(self, source: Value) -> Value:
        """The copy in a graph."""
        copy: Value = ops.transpose(source, perm=(1, 0)) if self.transposed else source
        if self.shape is None:
            return copy
        copy = ops.reshape(copy, shape=self.row)
        return copy if self.row == self.shape else ops.broadcast_to(copy, shape=self.shape)


def find_ties(model: Model) -> dict[str, Tie]:
    """The copies among the parameters that are trained by default, each with what it copies.

    What is looked up by index comes first, so that the other is its transposed view; else the first in the model, and
    what is repeated last.
    """
    looked_up = {n.inputs[0].name for n in model.graph.nodes if n.op.name == "gather" and n.inputs[0] is not None}
    origins = {value.name: stored.origin for value, stored in model.graph.initializers.items()}
    arrays = {name: p.array for name, p in model.parameters.items() if p.trainable}
    rows = {name: _row(array) for name, array in arrays.items()}
    same_size: dict[tuple[str, int], list[str]] = {}
    for name in sorted(rows, key=lambda name: (name not in looked_up, rows[name].size < arrays[name].size)):  # stable
        same_size.setdefault((rows[name].dtype.name, rows[name].size), []).append(name)
    found: dict[str, Tie] = {}
    for group in same_size.values():
        known: dict[_Key, dict[str, str]] = {}  # by the data and by origin: the first
        for name in group if len(group) > 1 else ():
            row, shape, origin = rows[name], arrays[name].shape, origins[name]
            if row.size < 2 or (row == row.reshape(-1)[0]).all():
                continue
            key = _key(row)
            direct = _alike(known.get(key), origin)
            if direct is not None and shape == arrays[direct].shape:
                found[name] = Tie(direct)
                continue
            if direct is not None and row.size == arrays[direct].size:
                found[name] = Tie(direct, False, shape, _last_axes(shape, row.size))
                continue
            matrix = direct is None and row.ndim == 2 and row.size == arrays[name].size
            other = _alike(known.get(_key(row.T)), origin) if matrix else None
            if other is not None and arrays[other].ndim == 2:
                found[name] = Tie(other, True) if shape == row.shape else Tie(other, True, shape, shape)
                continue
            known.setdefault(key, {}).setdefault(origin, name)
    return found


def _alike(known: Mapping[str, str] | None, origin: str) -> str | None:
    """A tensor that may be one with a tensor of this origin: of the same, or where one of the two isn't known."""
    if not known:
        return None
    return known.get(origin) or known.get("") if origin else next(iter(known.values()))


def repeated(model: Model, ties: Mapping[str, Tie]) -> list[str]:
    """Parameters trained by default that a file has once for each sample of its fixed batch, and no other tensor once.

    Each row would train by itself, though it was one parameter that an exporter repeated.
    """
    batches = {type_.shape[0] for type_ in model.inputs.values() if type_.rank}
    computed = {v.name for v, stored in model.graph.initializers.items() if stored.origin not in ("", v.name)}
    found = []
    for name, parameter in model.parameters.items():
        first = parameter.type.shape[:1]
        if parameter.trainable and name in computed and name not in ties and len(first) and first[0] in batches:
            row = _row(parameter.array)
            if 1 < row.size < parameter.array.size and not (row == row.reshape(-1)[0]).all():
                found.append(name)
    return found


def _row(array: Array) -> Array:
    """What an array repeats along leading axes, without axes of 1."""
    row = array
    while row.ndim > 1 and len(row) and np.array_equal(row[0], row[-1]) and (row == row[0]).all():
        row = row[0]
    return row.squeeze()


def _last_axes(shape: tuple[int, ...], elements: int) -> tuple[int, ...]:
    """The last axes of a shape, as many as have so many elements."""
    at = next(at for at in range(len(shape) + 1) if math.prod(shape[at:]) == elements)
    return shape[at:]


def _key(array: Array) -> _Key:
    return array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def tied(graph: Graph, ties: Mapping[str, Tie]) -> Graph:
    """The graph with every copy read from what it copies."""
    if not ties:
        return graph
    made: dict[str, Value] = {}

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> tuple[Value | None, ...] | None:
        for position, value in enumerate(node.inputs):
            tie = ties.get(value.name) if value is not None and value in graph.initializers else None
            if tie is None or value is None:
                continue
            if value.name not in made:
                source = next(v for v in builder.initializers() if v.name == tie.of)
                made[value.name] = tie.build(source)
            inputs[position] = made[value.name]
        return None

    return rewrite(graph, replace)
