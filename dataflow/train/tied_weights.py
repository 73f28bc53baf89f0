"""Tied weights: stored tensors that are one, as an exporter writes them twice, and their training as one.

Exporters write a decoder's embedding once for the look-up and once, transposed, for the output layer, and compute the
first step of a recurrence, whose state is zeros: it is the bias, once for each sample. Nothing in the file says that
these belong together, so equal data does: bit for bit, directly, transposed or repeated, and not of one value.
"""

from __future__ import annotations

import hashlib
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


@dataclass(frozen=True, slots=True)
class Tie:
    """What a stored tensor is a copy of.

    Attributes:
        of: name of the tensor that is trained.
        transposed: its two axes are exchanged.
        shape: to which it is repeated along leading axes; None: it isn't.
    """

    of: str
    transposed: bool = False
    shape: tuple[int, ...] | None = None

    def apply(self, array: Array) -> Array:
        """The copy's data, from that of the tensor that is trained."""
        if self.shape is not None:
            return np.broadcast_to(array, self.shape)
        return array.T if self.transposed else array

    def build(self, source: Value) -> Value:
        """The copy in a graph."""
        copy: Value = source
        if self.shape is not None:
            copy = ops.broadcast_to(source, shape=self.shape)
        elif self.transposed:
            copy = ops.transpose(source, perm=(1, 0))
        return copy


def find_ties(model: Model) -> dict[str, Tie]:
    """The copies among the parameters that are trained by default, each with what it copies.

    What is looked up by index comes first, so that the other is its transposed view; else the first in the model, and
    what is repeated last.
    """
    looked_up = {n.inputs[0].name for n in model.graph.nodes if n.op.name == "gather" and n.inputs[0] is not None}
    arrays = {name: p.array for name, p in model.parameters.items() if p.trainable}
    rows = {name: _row(array) for name, array in arrays.items()}
    same_size: dict[tuple[str, int], list[str]] = {}
    for name in sorted(rows, key=lambda name: (name not in looked_up, rows[name] is not arrays[name])):  # stable
        same_size.setdefault((rows[name].dtype.name, rows[name].size), []).append(name)
    found: dict[str, Tie] = {}
    for group in same_size.values():
        known: dict[tuple[tuple[int, ...], bytes], str] = {}
        for name in group if len(group) > 1 else ():
            row, shape = rows[name], arrays[name].shape
            if row.size < 2 or (row == row.reshape(-1)[0]).all():
                continue
            direct = known.get(_key(row))
            if direct is not None and shape == arrays[direct].shape:
                found[name] = Tie(direct)
            elif direct is not None and row.shape == arrays[direct].shape:
                found[name] = Tie(direct, shape=shape)
            elif direct is None and row.ndim == 2 and row.shape == shape and _key(row.T) in known:
                found[name] = Tie(known[_key(row.T)], transposed=True)
            else:
                known.setdefault(_key(row), name)
    return found


def _row(array: Array) -> Array:
    """What an array repeats along leading axes; itself where it doesn't."""
    row = array
    while row.ndim > 1 and len(row) and np.array_equal(row[0], row[-1]) and (row == row[0]).all():
        row = row[0]
    return row if row.size < array.size else array


def _key(array: Array) -> tuple[tuple[int, ...], bytes]:
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
