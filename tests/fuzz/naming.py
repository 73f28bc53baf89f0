"""Turns sizes of a graph into named ones, where what follows still can be inferred."""

from __future__ import annotations

import random as standard
from typing import Any

import dataflow as df
from dataflow.ir.dims import Dim
from dataflow.ir.graph import Node
from dataflow.ir.rewrite import rewrite
from dataflow.ir.types import TensorType
from dataflow.ir.value import Value

_SHAPES = ("shape", "sizes", "input_shape", "weight_shape", "stops", "depth", "limit", "count")


def named(graph: df.Graph, random: standard.Random) -> tuple[df.Graph, dict[str, int]]:
    """The graph with one or two sizes named, and what they were; no names where that isn't possible.

    Each size stands for a number. Axes of inputs that are this long get the name, and so do numbers of attributes that
    say how long something is; if that isn't consistent, inferring says so, and other choices are tried.
    """
    numbers = sorted({d for v in graph.inputs for d in v.type.sizes if d > 0})
    if not numbers or any(node.bodies for node in graph.nodes):
        return graph, {}
    for _ in range(4):
        chosen = random.sample(numbers, min(len(numbers), random.randint(1, 2)))
        names = {number: Dim(name) for number, name in zip(chosen, "NM", strict=False)}
        also = random.random() < 0.6
        kept = {v.name for v in graph.inputs if random.random() < 0.3}
        try:
            found = _rebuilt(graph, names, kept, also)
        except df.DataflowError:
            continue
        open_ = {dim for value in found.inputs for dim in value.type.shape}
        if open_ >= {*names.values()}:  # a name that attributes alone have could not be bound
            return found, {str(dim): number for number, dim in names.items()}
    return graph, {}


def _rebuilt(graph: df.Graph, names: dict[int, Dim], kept: set[str], also: bool) -> df.Graph:
    def of(key: str, value: Any) -> Any:
        if not also or key not in _SHAPES:
            return value
        if isinstance(value, tuple):
            return tuple(names.get(v, v) if isinstance(v, int) else v for v in value)
        return names.get(value, value) if isinstance(value, int) else value

    def copy(builder: df.GraphBuilder, node: Node, inputs: list[Value | None]) -> tuple[Value | None, ...]:
        attributes = {key: of(key, value) for key, value in node.attributes.items()}
        return builder.add(node.op, inputs, attributes, bodies=node.bodies, name=node.name).outputs

    types = {id(v.type): v.name for v in graph.inputs}

    def typed(type_: TensorType) -> TensorType:
        if types.get(id(type_)) in kept:
            return type_
        return TensorType(type_.dtype, tuple(names.get(d, d) if isinstance(d, int) else d for d in type_.shape))

    return rewrite(graph, copy, input_type=typed)
