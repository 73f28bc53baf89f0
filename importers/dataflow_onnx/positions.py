"""Constants of positions that look like weights: frequencies of rotations and waves, and tables of their sines.

Exporters note which tensors are parameters; tools that optimize a file afterwards drop that, and leave tensors that
layers multiply by and add. Those of positions are recognized by what they are for, or by what they hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from dataflow import Graph, Value
from dataflow.plugin import Node

from .file.records import Array

_MOVES = frozenset({"broadcast_to", "cast", "concat", "expand", "reshape", "slice", "transpose"})
_PRODUCTS = frozenset({"matmul", "mul", "div", "add", "sub"})
_WAVES = frozenset({"sin", "cos"})
_MOST = 100  # values that are followed
_NEAR = 5e-3  # to 1, in float16


def of_positions(graph: Graph, trained: Mapping[Value, Array]) -> set[Value]:
    """Those of the trained tensors that are constants of positions.

    Frequencies are multiplied by what no weight has a say in, as positions and times of a diffusion, and reach nothing
    but sines and cosines, both of them. Tables are the sines and cosines themselves: their squares add up to 1.
    """
    found: set[Value] = set()
    if {node.op.name for node in graph.nodes} >= _WAVES:
        found.update(_frequencies(graph, trained))
    return found.union(_tables({value: array for value, array in trained.items() if value not in found}))


def _frequencies(graph: Graph, trained: Collection[Value]) -> Iterator[Value]:
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value, []).append(node)
    outputs = {*graph.outputs.values()}
    learned = {*trained}
    for node in graph.nodes:
        if not learned.isdisjoint(node.inputs):
            learned.update(value for value in node.outputs if value is not None)
    return (value for value in trained if _is_frequency(value, readers, outputs, learned))


def _is_frequency(
    tensor: Value, readers: Mapping[Value, Sequence[Node]], outputs: set[Value], learned: set[Value]
) -> bool:
    """Whether all that is computed of a tensor becomes sines and cosines of its products with what isn't learned."""
    waves: set[str] = set()
    reached, waiting = {tensor}, [tensor]
    products: dict[Node, None] = {}
    while waiting:
        value = waiting.pop()
        if value in outputs or not readers.get(value) or len(reached) > _MOST:
            return False
        for node in readers[value]:
            if node.op.name in _WAVES:
                waves.add(node.op.name)
            elif node.op.name in _MOVES or node.op.name in _PRODUCTS:
                if node.op.name in _PRODUCTS:
                    products[node] = None
                new = [made for made in node.outputs if made is not None and made not in reached]
                reached.update(new)
                waiting += new
            else:
                return False
    others = (value for node in products for value in node.inputs if value is not None and value not in reached)
    return waves == _WAVES and learned.isdisjoint(others)


def _tables(trained: Mapping[Value, Array]) -> Iterator[Value]:
    """Tables of sines and cosines of positions from 0 on, in two tensors, or in one by turns or by halves."""
    tables: dict[Value, Array] = {}
    for value, array in trained.items():
        first = (
            array.reshape(-1)[: array.shape[-1]]
            if array.ndim >= 2 and array.dtype.kind == "f"
            else array.reshape(-1)[:0]
        )
        if first.size and array.size > first.size and (np.minimum(np.abs(first), np.abs(first - 1)) < _NEAR).all():
            tables[value] = array.astype(np.float32)
    for value, array in tables.items():
        half = array.shape[-1] // 2
        by_turns = array.shape[-1] % 2 == 0 and _are_waves(array[..., ::2], array[..., 1::2])
        if by_turns or (array.shape[-1] % 2 == 0 and _are_waves(array[..., :half], array[..., half:])):
            yield value
    for one, two in combinations(tables, 2):
        if tables[one].shape == tables[two].shape and _are_waves(tables[one], tables[two]):
            yield from (one, two)


def _are_waves(one: Array, two: Array) -> bool:
    """Whether these are the sine and cosine of angles that aren't all the same, or zeros in the row of a padding."""
    squares = one * one + two * two
    padding = ~squares.any(axis=-1, keepdims=True)
    return bool(((np.abs(squares - 1) < _NEAR) | padding).all()) and float(np.ptp(one)) > _NEAR
