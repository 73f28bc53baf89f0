"""Weights that a network computes from others before its layers read them: of positive numbers, gates, normalized rows.

PyTorch's older exporter stores parameters and buffers alike, by the names that a module has for them. What a module
computes of a tensor alone, in every run, is computed of a parameter: of a buffer it would have kept the result. What is
subtracted from other values, or divides them, may be a buffer: the mean and deviation by which inputs are normalized.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from dataflow import Graph, Value

_VIEWS = frozenset({"broadcast_to", "cast", "copy", "reshape", "transpose"})
_FUNCTIONS = frozenset(
    {"abs", "clip", "elu", "exp", "log_softmax", "relu", "sigmoid", "softmax", "softplus", "tanh"}
)  # whose results are positive, bounded or add up to 1
_BY_ITSELF = frozenset({"div", "sub"})


def parametrized(graph: Graph, stored: Collection[Value]) -> Iterator[Value]:
    """Those of some stored tensors that are weights by what is computed of them.

    They stand alone in a function that parametrizes, in a quotient with what is computed of them, as their norm, or in
    a difference with that, as their mean; or they are an exponent.
    """
    shown = {value: value for value in stored}
    made_of = {value: frozenset({value} & shown.keys()) for value in graph.initializers}
    for node in graph.nodes if shown else ():
        read = [value for value in node.inputs if value is not None]
        made = [value for value in node.outputs if value is not None]
        if read and not node.bodies and made_of.keys() >= {*read}:
            made_of.update(dict.fromkeys(made, frozenset[Value]().union(*(made_of[value] for value in read))))
        if node.op.name == "pow" and read[1] in shown:
            yield shown[read[1]]
        first = shown.get(read[0]) if read else None
        if first is None:
            continue
        if node.op.name in _VIEWS:
            shown.update(dict.fromkeys(made, first))
        elif node.op.name in _FUNCTIONS or (node.op.name in _BY_ITSELF and first in made_of.get(read[1], ())):
            yield first
