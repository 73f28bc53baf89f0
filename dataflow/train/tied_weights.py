"""Tied weights: stored tensors that are one, as an exporter writes them twice, and their training as one.

Exporters write a decoder's embedding once for the look-up and once, transposed, for the output layer. Nothing in the
file says that these belong together, so equal data does: bit for bit, directly or transposed, and not of one value.
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
    """

    of: str
    transposed: bool

    def apply(self, array: Array) -> Array:
        """The copy's data, from that of the tensor that is trained."""
        return array.T if self.transposed else array


def find_ties(model: Model) -> dict[str, Tie]:
    """The copies among the parameters that are trained by default, each with what it copies.

    What is looked up by index comes first, so that the other is its transposed view; else the first in the model.
    """
    looked_up = {n.inputs[0].name for n in model.graph.nodes if n.op.name == "gather" and n.inputs[0] is not None}
    names = [name for name, p in model.parameters.items() if p.trainable]
    names.sort(key=lambda name: name not in looked_up)  # stable
    same_size: dict[tuple[str, int], list[str]] = {}
    for name in names:
        type_ = model.parameters[name].type
        same_size.setdefault((type_.dtype.name, type_.elements), []).append(name)
    found: dict[str, Tie] = {}
    for group in same_size.values():
        if len(group) < 2:
            continue
        known: dict[tuple[tuple[int, ...], bytes], str] = {}
        for name in group:
            array = model.parameters[name].array
            if array.size < 2 or (array == array.reshape(-1)[0]).all():
                continue
            direct = known.get(_key(array))
            transposed = known.get(_key(array.T)) if array.ndim == 2 and direct is None else None
            if direct is not None or transposed is not None:
                found[name] = Tie(direct or transposed or "", direct is None)
            else:
                known[_key(array)] = name
    return found


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
                made[value.name] = ops.transpose(source, perm=(1, 0)) if tie.transposed else source
            inputs[position] = made[value.name]
        return None

    return rewrite(graph, replace)
