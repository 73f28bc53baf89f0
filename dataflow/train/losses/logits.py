"""What losses of logits read where a model ends in probabilities: the logits, or logarithms of the probabilities."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ... import ops
from ...ir.builder import GraphBuilder
from ...ir.graph import Graph, Node
from ...ir.types import TensorType, float32
from ...ir.value import Value
from .before import before
from .intervals import MOVES, Intervals, axis_before, keeps_numbers

_log = logging.getLogger("dataflow")


@dataclass(frozen=True, slots=True)
class Read:
    """What a loss reads in place of a value.

    Attributes:
        graph: with the nodes that give it.
        value: what is read.
        what: it is, for messages.
    """

    graph: Graph
    value: Value
    what: str


def logits_of(graph: Graph, value: Value, skips: Sequence[str], *, logarithms: bool = False) -> Read | None:
    """What a loss of logits reads in place of a value that is a probability; None: the value itself.

    The input of the op that made the probabilities is best, since they round to 0 and 1. Where only moves stand behind
    that, they move its input; where anything else computes probabilities, their logarithms are read, of the numbers
    next to 0 and 1 at most.

    Args:
        graph: has the value.
        value: what the loss was given.
        skips: ops whose input the loss wants.
        logarithms: the loss wants logarithms of probabilities, and normalizes nothing.
    """
    inner = before(graph, value, skips)
    if inner is not None:
        return Read(graph, inner[1], f"the input of {inner[0]}")
    moved = _moved(graph, value, skips)
    if moved is not None:
        return moved
    softmax, sigmoid = "softmax" in skips or logarithms, "sigmoid" in skips
    if not (softmax or sigmoid):
        return None
    known = Intervals(graph)
    if not known.is_probability(value):
        return None
    if softmax and known.is_distribution(value):
        return _computed(graph, value, _logarithm, "the logarithms of its numbers")
    if sigmoid and not softmax:
        return _computed(graph, value, _logit, "the logits of its numbers")
    _log.warning(
        "the loss takes %r for %s, and its numbers are from 0 to 1: where they are probabilities, give the name of the "
        "value before them as output=", value.name, "logarithms" if logarithms else "logits",
    )  # fmt: skip
    return None


def _moved(graph: Graph, value: Value, skips: Sequence[str]) -> Read | None:
    """The input of an op among ``skips``, moved as the op's result is."""
    makers, moves, current = graph.producers(), list[Node](), value
    axes = {axis: axis for axis in range(value.type.rank)}  # of the value, by those of ``current``
    while current in makers and makers[current].op.name in MOVES and keeps_numbers(makers[current]):
        node = makers[current]
        kept = {axis: axis_before(node, at) for axis, at in axes.items()}
        axes = {axis: at for axis, at in kept.items() if at is not None and not _permutes(node, at)}
        moves.append(node)
        assert node.inputs[0] is not None
        current = node.inputs[0]
    node_ = makers.get(current)
    if node_ is None or node_.op.name not in skips or not moves or node_.inputs[0] is None:
        return None
    if node_.op.name != "sigmoid" and int(node_.attributes["axis"]) % current.type.rank not in axes.values():
        return None  # classes are missing, or lie elsewhere
    names, result, made = _names(graph), node_.inputs[0], list[Node]()
    for move in reversed(moves):
        output = move.outputs[0]
        assert output is not None
        type_ = output.type if move.op is ops.cast else TensorType(result.type.dtype, output.type.shape)
        moved = Value(names(f"{output.name}/logits"), type_, None)
        inputs = (result, *move.inputs[1:])
        made.append(dataclasses.replace(move, name=names(f"{move.name}/logits"), inputs=inputs, outputs=(moved,)))
        result = moved
    graph = dataclasses.replace(graph, nodes=(*graph.nodes, *made))
    return Read(graph, result, f"the input of {node_.op.name}, moved as its result is")


def _permutes(node: Node, axis: int) -> bool:
    """Whether a gather chooses among the elements along an axis of its operand."""
    operand = node.inputs[0]
    return node.op.name == "gather" and operand is not None and int(node.attributes["axis"]) % operand.type.rank == axis


def _computed(graph: Graph, value: Value, compute: Callable[[Value], Value], what: str) -> Read:
    """What is computed of a value, with its nodes behind the graph's."""
    builder, names = GraphBuilder(), _names(graph)
    x = builder.input(value.name, value.type.dtype, value.type.shape)
    builder.output("y", compute(x))
    added = builder.build()
    renamed = {v: Value(names(f"{value.name}/{v.name}"), v.type, None) for v in _made(added)}
    renamed[x] = value
    nodes = [
        dataclasses.replace(
            node,
            name=names(f"{value.name}/{node.name}"),
            inputs=tuple(None if v is None else renamed[v] for v in node.inputs),
            outputs=tuple(None if v is None else renamed[v] for v in node.outputs),
        )
        for node in added.nodes
    ]
    stored = {renamed[v]: data for v, data in added.initializers.items()}
    graph = dataclasses.replace(
        graph, nodes=(*graph.nodes, *nodes), initializers={**graph.initializers, **stored}
    )  # fmt: skip
    return Read(graph, renamed[added.outputs["y"]], what)


def _made(graph: Graph) -> list[Value]:
    return [*graph.initializers, *(v for node in graph.nodes for v in node.outputs if v is not None)]


def _names(graph: Graph) -> Callable[[str], str]:
    """Makes names that neither values nor nodes of a graph have."""
    taken = {v.name for v in (*graph.inputs, *_made(graph))} | {node.name for node in graph.nodes}

    def unique(name: str) -> str:
        while name in taken:
            name += "'"
        taken.add(name)
        return name

    return unique


def _exact(p: Value) -> Value:
    """In at least 32 bits, of which the numbers next to 0 and 1 are near enough to them."""
    made: Value = ops.cast(p, to=float32) if p.type.dtype.bits < 32 else p
    return made


def _logarithm(p: Value) -> Value:
    p = _exact(p)
    made: Value = ops.log(ops.maximum(p, float(np.finfo(p.type.dtype.numpy).tiny)))
    return made


def _logit(p: Value) -> Value:
    p = _exact(p)
    info = np.finfo(p.type.dtype.numpy)
    p = ops.minimum(ops.maximum(p, float(info.tiny)), 1.0 - float(info.epsneg))
    made: Value = ops.sub(ops.log(p), ops.log(ops.sub(1.0, p)))
    return made
