"""Weights that a network computes from others before its layers read them: of positive numbers, gates, normalized rows.

PyTorch's older exporter stores parameters and buffers alike, by the names that a module has for them. What a module
computes of a tensor alone, in every run, is computed of a parameter: of a buffer it would have kept the result. What is
subtracted from other values, or divides them, may be a buffer: the mean and deviation by which inputs are normalized.
A tensor to which 1 is added is a scale that is learned as its difference from 1.
What modules call weight, bias or embeddings is a parameter whatever is computed of it before a layer reads that:
masked, scaled, resized, normalized; but for batch norms that are frozen, whose four vectors are buffers. So is what a
batch norm in training mode makes a convolution's weight of, by whatever name: that exporter numbers a parameter of
which it computed another shape.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from dataflow import Graph, Value

_VIEWS = frozenset({"broadcast_to", "cast", "copy", "reshape", "transpose"})
_FUNCTIONS = frozenset(
    {"abs", "clip", "elu", "exp", "log_softmax", "relu", "sigmoid", "softmax", "softplus", "tanh"}
)  # whose results are positive, bounded or add up to 1
_CONVOLUTIONS = frozenset({"conv", "conv_grad_input"})  # the second is a transposed one
_BY_ITSELF = frozenset({"div", "sub"})
_CALLED = re.compile(r"(^|[._])(weight|bias|\w*embeddings?)$")
STATISTIC = re.compile(r"(^|[._])running_(mean|var)$")


def parametrized(graph: Graph, stored: Collection[Value]) -> Iterator[Value]:
    """Those of some stored tensors that are weights by what is computed of them.

    They stand alone in a function that parametrizes, in a quotient with what is computed of them, as their norm, or in
    a difference with that, as their mean; or 1 is added to them; or they are an exponent; or are called what parameters
    are.
    """
    shown = {value: value for value in stored}
    made_of = {value: frozenset({value} & shown.keys()) for value in graph.initializers}
    computed: set[Value] = set()  # of stored tensors alone, by more than views
    for node in graph.nodes if shown else ():
        read = [value for value in node.inputs if value is not None]
        made = [value for value in node.outputs if value is not None]
        if not node.bodies and node.op.effects == "none" and made_of.keys() >= {*read}:
            made_of.update(dict.fromkeys(made, frozenset[Value]().union(*(made_of[value] for value in read))))
            if read and (node.op.name not in _VIEWS or not computed.isdisjoint(read)):
                computed.update(made)
        else:
            for value in computed.intersection(read):
                if not any(STATISTIC.search(source.name) for source in made_of[value]):
                    yield from (source for source in made_of[value] if _CALLED.search(source.name))
        if node.op.name == "pow" and read[1] in shown:
            yield shown[read[1]]
        if node.op.name == "add":
            yield from (shown[a] for a, b in (read, read[::-1]) if a in shown and _is_one(graph, b))
        first = shown.get(read[0]) if read else None
        if first is None:
            continue
        if node.op.name in _VIEWS:
            shown.update(dict.fromkeys(made, first))
        elif node.op.name in _FUNCTIONS or (node.op.name in _BY_ITSELF and first in made_of.get(read[1], ())):
            yield first


def _is_one(graph: Graph, value: Value) -> bool:
    """Whether a value is the stored number 1."""
    stored = graph.initializers.get(value)
    return stored is not None and stored.array.size == 1 and bool((stored.array == 1).all())


def standardized(graph: Graph, stored: Collection[Value]) -> Iterator[Value]:
    """Those of some stored tensors that are a convolution's weight once a batch norm made them of mean 0."""
    shown = {value: value for value in stored}
    normalized: dict[Value, Value] = {}  # and views of it, by what it was
    for node in graph.nodes if shown else ():
        made = [value for value in node.outputs[:1] if value is not None]
        read = [value for value in node.inputs if value is not None]
        if node.op.name in _VIEWS:
            for of in (shown, normalized):
                of.update(dict.fromkeys(made, of[read[0]]) if read[0] in of else {})
        elif node.op.name == "batch_norm_train" and read[0] in shown:
            normalized.update(dict.fromkeys(made, shown[read[0]]))
        elif node.op.name in _CONVOLUTIONS and read[1] in normalized:
            yield normalized[read[1]]
