"""Which layers get adapters: patterns over the names of weights and modules."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from ..errors import InputError
from ..host import checks
from ..ir.graph import Graph, Node
from ..ir.value import Value
from ..ops.dynamic_shape import deferred
from .layers import WEIGHT_AT, Layer

_log = logging.getLogger("dataflow")


def chosen(
    graph: Graph, layers: Sequence[Layer], targets: Sequence[str] | str | None, option: str = "targets"
) -> list[Layer]:
    """The layers that patterns choose, in the order of the graph.

    Args:
        graph: of the layers.
        layers: all.
        targets: globs over the names of weights, their aliases and modules; the last names of a module's path match
            too, as PEFT's do: ``q_proj`` is ``encoder.0.q_proj``. ``"!pattern"`` leaves out. None: the layers that
            compute queries, keys and values of attention.
        option: what the user calls ``targets``, for messages.

    Raises:
        InputError: a pattern matches nothing, or there is no attention; lists candidates.
    """
    given = () if targets is None else checks.texts(option, targets)
    if not layers and any(node.op is deferred for node in graph.nodes):
        raise InputError(
            f"{option}: the model is converted anew for each form of its inputs, so that its layers aren't known "
            "before; export it with sizes that can be followed, or with fixed ones"
        )
    if targets is None:
        found = {layer.weight.name for layer in attention_layers(graph, layers)}
        if not found:
            raise InputError(f"no attention was found; name the layers with {option}=; candidates: {_listed(layers)}")
    else:
        found = set()
        wanted = [pattern for pattern in given if not pattern.startswith("!")]
        for pattern in wanted or ["*"]:
            found |= _matching(graph, layers, pattern, option)
        for pattern in given:
            if pattern.startswith("!"):
                found -= _matching(graph, layers, pattern[1:], option)
        if not found:
            raise InputError(f"{option}={list(given)} leave no layer; candidates: {_listed(layers)}")
    inside = _read_by_bodies(graph)
    if inside:
        _log.info(
            "%s: layers in bodies of branches and loops stay as they are; stored matrices that they read: %d, first %s",
            option, len(inside), inside[0],
        )  # fmt: skip
    return [layer for layer in layers if layer.weight.name in found]


def _read_by_bodies(graph: Graph) -> list[str]:
    """Names of trained matrices that nodes with bodies read."""
    trained = {value for value, data in graph.initializers.items() if data.trainable and value.type.rank > 1}
    read = [value for node in graph.nodes if node.bodies for value in node.inputs]
    return list(dict.fromkeys(value.name for value in read if value is not None and value in trained))


def _matching(graph: Graph, layers: Sequence[Layer], pattern: str, option: str) -> set[str]:
    found = {layer.weight.name for layer in layers if any(_matches(name, pattern) for name in layer.names)}
    if not found:
        stored = next((v.name for v in graph.initializers if v.type.rank > 1 and _matches(v.name, pattern)), None)
        if stored is not None:
            raise InputError(
                f"{option}: {pattern!r} is the stored tensor {stored!r}, which no product, convolution or look-up "
                f"reads as one matrix; candidates: {_listed(layers)}"
            )
        near = difflib.get_close_matches(pattern, [name for layer in layers for name in layer.names], 3, cutoff=0.3)
        nearest = f"; nearest names: {', '.join(map(repr, near))}" if near else ""
        raise InputError(f"{option}: {pattern!r} matches no layer{nearest}; candidates: {_listed(layers)}")
    return found


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.endswith("." + pattern)


def _listed(layers: Sequence[Layer]) -> str:
    shown = ", ".join(f"{layer.path!r} ({layer.kind})" for layer in layers[:12])
    more = f" and {len(layers) - 12} more" if len(layers) > 12 else ""
    return f"{shown}{more}" if layers else "none: no product, convolution or look-up has a constant weight"


def attention_layers(graph: Graph, layers: Sequence[Layer]) -> list[Layer]:
    """The linear layers that compute queries, keys and values of attention, however it is written."""
    of = {use.node: layer for layer in layers if layer.kind == "linear" for use in layer.uses}
    makers, readers = graph.producers(), graph.readers()
    found: dict[str, Layer] = {}

    def projections(value: Value | None) -> None:
        """Adds the layers that a value comes from, through nodes that are no products."""
        queue, seen = [value], set[Value]()
        while queue:
            current = queue.pop()
            node = None if current is None else makers.get(current)
            if current is None or node is None or current in seen:
                continue
            seen.add(current)
            if node in of:
                found.setdefault(of[node].weight.name, of[node])
            elif node.op.name not in (*WEIGHT_AT, "softmax"):
                queue += node.inputs

    for node in graph.nodes:
        if node.op.name == "softmax":
            scores = _product_before(node.inputs[0], makers)
            values = _product_after(node.outputs[0], readers)
            if scores is not None and values is not None and scores not in of:
                product, position = values
                for operand in (*scores.inputs[:2], product.inputs[1 - position]):
                    projections(operand)
        elif "attention" in node.op.name:
            for operand in node.inputs[:3]:
                projections(operand)
    return [layer for layer in layers if layer.weight.name in found]


def _product_before(value: Value | None, makers: Mapping[Value, Node]) -> Node | None:
    """The product that a value comes from, through nodes with one computed operand or a mask beside it."""
    for _ in range(8):  # scale, mask, casts
        node = None if value is None else makers.get(value)
        if node is None or node.op.name == "matmul":
            return node
        result = node.outputs[0]
        computed = [v for v in node.inputs if v is not None and v in makers]
        value = next((v for v in computed if result is not None and v.type.shape == result.type.shape), None)
    return None


def _product_after(value: Value | None, readers: Mapping[Value, Sequence[Node]]) -> tuple[Node, int] | None:
    """The product that reads a value, through nodes of one reader, and as which operand."""
    for _ in range(8):  # dropout, casts, a mask
        for node in () if value is None else readers.get(value, ()):
            if node.op.name == "matmul":
                return node, node.inputs.index(value)
        following = [] if value is None else readers.get(value, [])
        value = following[-1].outputs[0] if following else None
    return None
