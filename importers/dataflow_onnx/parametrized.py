"""Weights that a network computes from others before its layers read them: of positive numbers, gates, normalized rows.

PyTorch's older exporter stores parameters and buffers alike, by the names that a module has for them. What a module
computes of a tensor alone, in every run, is computed of a parameter: of a buffer it would have kept the result. What is
subtracted from other values, or divides them, may be a buffer: the mean and deviation by which inputs are normalized.
Such a center may be a multiple of what is stored, as for inputs of up to 255; any other operand that is computed of one
tensor, of numbers and of masks, as 1 + gamma, is computed of a parameter; not so of a tensor of one element, which is a
setting at least as often, as the epsilon of graph isomorphism networks.
What modules call weight, bias or embeddings is a parameter whatever is computed of it before a layer reads that:
masked, scaled, resized, normalized; but for batch norms that are frozen, whose four vectors are buffers. So is what a
batch norm in training mode makes a convolution's weight of, by whatever name: that exporter numbers a parameter of
which it computed another shape.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from dataflow import Graph, Value

from .file.records import Array

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
    a difference with that, as their mean; or what is computed of one of them and of numbers is read with other values,
    and not subtracted from these or their divisor; or they are an exponent; or are called what parameters are.
    """
    shown = {value: value for value in stored if not _is_mask(graph.initializers[value].array)}
    made_of = {value: frozenset({value} & shown.keys()) for value in graph.initializers}
    computed: set[Value] = set()  # of stored tensors alone, by more than views
    numbers = {
        value for value, data in graph.initializers.items()
        if value not in shown and (data.array.size == 1 or _is_mask(data.array))
    }  # fmt: skip
    single = {value for value in shown if graph.initializers[value].array.size > 1}  # and what is computed of one alone
    for node in graph.nodes if shown else ():
        read = [value for value in node.inputs if value is not None]
        made = [value for value in node.outputs if value is not None]
        if not node.bodies and node.op.effects == "none" and made_of.keys() >= {*read}:
            of = frozenset[Value]().union(*(made_of[value] for value in read))
            made_of.update(dict.fromkeys(made, of))
            if len(of) == 1 and all(value in single or value in numbers for value in read):
                single.update(made)
            repeated = node.op.name == "broadcast_to"
            if read and (repeated or node.op.name not in _VIEWS or not computed.isdisjoint(read)):
                computed.update(made)
        else:
            for value in computed.intersection(read):
                alone = value in single and not (node.op.name in _BY_ITSELF and value is read[1])
                if not any(STATISTIC.search(source.name) for source in made_of[value]):
                    yield from (source for source in made_of[value] if alone or _CALLED.search(source.name))
        if node.op.name == "pow" and read[1] in shown:
            yield shown[read[1]]
        first = shown.get(read[0]) if read else None
        if first is None:
            continue
        if node.op.name in _VIEWS:
            shown.update(dict.fromkeys(made, first))
        elif node.op.name in _FUNCTIONS or (node.op.name in _BY_ITSELF and first in made_of.get(read[1], ())):
            yield first


def _is_mask(array: Array) -> bool:
    """Whether a matrix, or an array of more axes, has zeros and ones alone, and both."""
    if array.ndim < 2 or array.size < 2 or array.min() != 0 or array.max() != 1:
        return False
    return bool(((array == 0) | (array == 1)).all())


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
