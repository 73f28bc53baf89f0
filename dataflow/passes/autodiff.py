"""Reverse-mode differentiation as one pass over a finished forward graph.

A value gets a cotangent when it lies on a path from a value that is differentiated by to one with a seed. Rules
build nodes; what broadcasting did to a shape is undone here, once.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import GradientError, InputError, PluginError, blamed
from ..ir.builder import GraphBuilder
from ..ir.decomposition import check_steps, decomposed
from ..ir.graph import Graph, Node
from ..ir.op import DECOMPOSED
from ..ir.rewrite import rewrite
from ..ir.types import TensorType
from ..ir.value import Builder, Value
from ..ops.arithmetic import add
from ..ops.gather import full
from ..ops.reduce import can_sum_to, sum_to, summed_to
from ..ops.shape import concat, slice_

_OF = "gradient/of"  # no output has such a name


def add_gradients(builder: Builder, seeds: Mapping[Value, Value], wrt: Sequence[Value]) -> dict[Value, Value | None]:
    """The cotangent of each value of ``wrt``; None where no seed depends on it.

    Args:
        builder: has the forward nodes; the gradient's are added to it.
        seeds: a cotangent for each value that is differentiated, of its type (``TensorType.cotangent``).
        wrt: what is differentiated by.

    Raises:
        GradientError: nodes between have no gradient; names them all.
    """
    return _through(builder, builder.nodes(), seeds, wrt)


def _through(
    builder: Builder, forward: Sequence[Node], seeds: Mapping[Value, Value], wrt: Sequence[Value], steps: int = 0
) -> dict[Value, Value | None]:
    """As ``add_gradients``, along these nodes alone, which stand for a node after so many decompositions."""
    active = _reachable(forward, wrt)
    summands: dict[Value, list[Value]] = {value: [seed] for value, seed in seeds.items()}
    totals: dict[Value, Value] = {}
    slices: dict[Value, tuple[Node, Value]] = {}  # what a slice's rule gave -> the slice, and its own cotangent
    problems: list[str] = []

    def total(value: Value | None) -> Value | None:
        if value is None or value not in summands:
            return None
        if value not in totals:
            summed = _concatenated([slices.get(summand) for summand in summands[value]], value.type)
            if summed is None:
                summed = summands[value][0]
                for summand in summands[value][1:]:
                    summed = add(summed, summand)
            totals[value] = summed
        return totals[value]

    for node in reversed(forward):
        if not any(v in active and v in summands for v in node.outputs if v is not None):
            continue
        if not any(v in active for v in node.inputs if v is not None):
            continue
        if not steps:  # names would grow with each
            builder.origin = f"gradient of {node.name}" + (f", {node.origin}" if node.origin else "")
        with contextlib.nullcontext() if steps else builder.scope(f"grad/{node.name}"):
            try:
                cotangents = [total(v) for v in node.outputs]
                with _named_sizes(node):
                    results = _by_rule(builder, node, cotangents, active, steps)
            except GradientError as error:
                problems.append(str(error))
                results = [filled(builder, v) if v in active else None for v in node.inputs]  # to see the others
            for value, cotangent in zip(node.inputs, results, strict=False):
                if value is None or cotangent is None or value not in active:
                    continue
                if cotangent.type.shape != value.type.shape and can_sum_to(cotangent.type, value.type.shape):
                    cotangent = _summed(cotangent, value.type)
                if cotangent.type != value.type.cotangent:
                    raise GradientError(
                        f"{node.describe()}: its rule gave {cotangent.type} for {value.name!r}, which is {value.type}"
                    )
                summands.setdefault(value, []).append(cotangent)
                given = total(node.outputs[0]) if node.op is slice_ else None
                if given is not None:
                    slices[cotangent] = node, given
    if not steps:
        builder.origin = ""
    if len(problems) > 1:
        raise GradientError(f"{len(problems)} nodes have no gradient:\n  " + "\n  ".join(reversed(problems)))
    if problems:
        raise GradientError(problems[0])
    return {value: total(value) for value in wrt}


@contextlib.contextmanager
def _named_sizes(node: Node) -> Iterator[None]:
    """Says of an error within that it came of sizes which have names, where a node has such.

    Raises:
        GradientError: in place of an InputError.
    """
    try:
        yield
    except InputError as error:
        if all(v is None or v.type.is_bound for v in (*node.inputs, *node.outputs)):
            raise
        raise GradientError(
            f"{node.describe()}: it has no gradient while sizes have names: {error}; give these sizes as numbers, or "
            "have the gradient computed where inputs give them, by df.vjp or df.Trainer"
        ) from None


def _concatenated(summands: Sequence[tuple[Node, Value] | None], type_: TensorType) -> Value | None:
    """The cotangents of slices concatenated, where the slices partition a value along one axis."""
    found: dict[int, tuple[int, Value]] = {}  # by the begin: the end, and what lies between
    along: set[int] = set()
    for summand in summands:
        if summand is None:
            return None
        node, cotangent = summand
        ranges = list(zip(node.attributes["starts"], node.attributes["stops"], type_.shape, strict=True))
        partial = [axis for axis, (start, stop, size) in enumerate(ranges) if (start, stop) != (0, size)]
        if len(partial) != 1 or any(step != 1 for step in node.attributes["steps"]):
            return None
        along.add(partial[0])
        start, stop, size = ranges[partial[0]]
        if not all(isinstance(number, int) for number in (start, stop, size)) or start in found:
            return None
        found[start] = stop, cotangent
    axis, end = along.pop(), 0
    ordered = []
    while not along and end in found:
        end, cotangent = found.pop(end)
        ordered.append(cotangent)
    if along or found or end != type_.shape[axis]:
        return None
    return concat(*ordered, axis=axis)


def _by_rule(
    builder: Builder, node: Node, cotangents: Sequence[Value | None], active: Collection[Value], steps: int
) -> Sequence[Value | None]:
    """The cotangents of a node's inputs by the rule of its op, or by its decomposition where it has none."""
    extra = _extra(node, cotangents)
    before = len(builder.nodes()) if extra else 0
    try:
        found = _apply(node, cotangents, active)
    except (InputError, PluginError):  # e.g. a rule that doesn't expect cotangents of these alone
        if not extra or node.op.decompose is None:
            raise
        found = DECOMPOSED
    if found is DECOMPOSED:
        return _through_decomposition(builder, node, cotangents, steps)
    results = (None,) * len(node.inputs) if found is None else (found,) if isinstance(found, Value) else found
    if not isinstance(results, (tuple, list)) or not all(v is None or isinstance(v, Value) for v in results):
        raise PluginError(f"{node.describe()}: its gradient rule gave {found!r}; expected a value or None per input")
    most = max(len(node.inputs), len(node.op.inputs))  # optional ones may be left out at the end
    if len(results) > most or any(v in active for v in node.inputs[len(results) :] if v is not None):
        raise GradientError(
            f"{node.describe()}: its rule gave {len(results)} gradients; expected one, or None, "
            f"for each of {most} inputs"
        )
    unread = next(_unread(extra, builder.nodes()[before:], results), None) if extra else None
    if unread is None:
        return results
    if node.op.decompose is not None:
        return _through_decomposition(builder, node, cotangents, steps)
    raise GradientError(
        f"{node.describe()}: its gradient rule doesn't read the cotangent of the extra output {unread!r}, on which "
        "what is differentiated depends; the op needs a decomposition, or a rule that takes it"
    )


def _apply(node: Node, cotangents: Sequence[Value | None], active: Collection[Value]) -> Any:
    """What the node's rule gives; raises GradientError where it has neither one nor a decomposition."""
    if node.op.gradient is None and node.op.decompose is not None:
        return DECOMPOSED
    if node.op.gradient is None:
        raise GradientError(
            f"{node.describe()}: this op has no gradient, and it lies between the loss and "
            f"{_names(v for v in node.inputs if v in active)}; leave what it depends on out of what is trained"
        )
    with blamed(f"{node.describe()}: its gradient rule"):
        if not node.op.bodies:
            return node.op.gradient(node, *cotangents)
        bodies = tuple(decompose_for_gradient(body, body.inputs) for body in node.bodies)
        return node.op.gradient(dataclasses.replace(node, bodies=bodies), *cotangents, differentiate=add_gradients)


def _extra(node: Node, cotangents: Sequence[Value | None]) -> dict[Value, str]:
    """The cotangents of what a node keeps for its gradient, with names: there are where that is differentiated again.

    What is drawn depends on no operand, so none of a random op counts.
    """
    if node.op.effects == "random" or not any(name.startswith("+") for name in node.op.outputs):
        return {}
    named = zip(node.op.output_names(node), cotangents, strict=True)
    return {cotangent: name[1:] for name, cotangent in named if cotangent is not None and name.startswith("+")}


def _unread(extra: Mapping[Value, str], made: Sequence[Node], results: Sequence[Value | None]) -> Iterator[str]:
    """The names of those cotangents on which no gradient depends, which is computed by the nodes ``made``."""
    known: set[Value | None] = set(results)
    for node in reversed(made):
        if not known.isdisjoint(node.outputs):
            known.update(node.inputs)
    return (name for cotangent, name in extra.items() if cotangent not in known)


def _through_decomposition(
    builder: Builder, node: Node, cotangents: Sequence[Value | None], steps: int
) -> Sequence[Value | None]:
    """The cotangents of a node's inputs by its decomposition, which is added to the builder."""
    check_steps(steps, [node])
    before = len(builder.nodes())
    seeds: dict[Value, Value] = {}
    for value, cotangent in zip(decomposed(node, node.inputs), cotangents, strict=False):
        if value is not None and cotangent is not None:
            seeds[value] = add(seeds[value], cotangent) if value in seeds else cotangent
    found = _through(builder, builder.nodes()[before:], seeds, [v for v in node.inputs if v is not None], steps + 1)
    return [None if v is None else found.pop(v, None) for v in node.inputs]  # of a value that is read twice once


def _summed(cotangent: Value, wanted: TensorType) -> Value:
    """A cotangent summed over the axes that broadcasting added or stretched."""
    if cotangent.type.is_bound and wanted.is_bound:  # the axes are known: decomposed at once
        return summed_to(cotangent, shape=wanted.shape)
    return sum_to(cotangent, shape=wanted.shape)


def filled(builder: Builder, value: Value, number: float = 0.0) -> Value:
    """A cotangent of a value, all of whose elements are ``number``."""
    attributes = {"shape": value.type.shape, "value": number, "dtype": value.type.dtype.cotangent}
    made = builder.add(full, (), attributes).outputs[0]
    assert made is not None
    return made


def decompose_for_gradient(graph: Graph, wrt: Sequence[Value]) -> Graph:
    """The graph where nodes without a gradient of their own, but with a decomposition, are decomposed.

    Only nodes that depend on ``wrt`` change, so the others keep their fused kernels.
    """
    active = _reachable(graph.nodes, wrt)

    def wanted(node: Node) -> bool:
        lacks = node.op.gradient is None and node.op.decompose is not None
        return lacks and any(v in active for v in node.inputs if v is not None)

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if not wanted(node):
            return None
        with builder.scope(node.name), _named_sizes(node):
            return decomposed(node, inputs)

    names, steps = {v.name for v in wrt}, 0
    while found := [node for node in graph.nodes if wanted(node)]:
        check_steps(steps, found)
        steps += 1
        graph = rewrite(graph, replace)
        active = _reachable(graph.nodes, [v for v in (*graph.inputs, *graph.initializers) if v.name in names])
    return graph


def vjp_graph(graph: Graph, wrt: Sequence[Value]) -> Graph:
    """The graph with its vector-Jacobian product.

    Its inputs are the graph's and ``grad.<output>`` for each float output: a cotangent of its type, but float32 for
    floats of fewer than 16 bits. Its outputs are the graph's and ``grad.<name>`` for each value of ``wrt``, inputs or
    initializers; zeros where no output depends on it.

    Raises:
        GradientError: an op between has no gradient, or a value of ``wrt`` is computed.
    """
    computed = [v for v in wrt if v not in graph.inputs and v not in graph.initializers]
    if computed:
        raise GradientError(
            f"vjp by {_names(computed)}: expected inputs or initializers of the graph; for the cotangent of a value "
            "that it computes use add_gradients, or cut the graph there"
        )
    names = [v.name for v in wrt]
    graph = decompose_for_gradient(graph, wrt)
    builder = GraphBuilder(graph.name)
    new = builder.adopt(graph)
    by_name = {v.name: new[v] for v in (*graph.inputs, *graph.initializers)}
    seeds: dict[Value, Value] = {}
    for name, old in graph.outputs.items():
        if old.type.dtype.is_float:
            seed = builder.input(f"grad.{name}", old.type.dtype.cotangent, old.type.shape)
            seeds[new[old]] = add(seeds[new[old]], seed) if new[old] in seeds else seed
        builder.output(name, new[old])
    found = add_gradients(builder, seeds, [by_name[n] for n in names])
    for name in names:
        value = by_name[name]
        gradient = found[value]
        builder.output(f"grad.{name}", filled(builder, value) if gradient is None else gradient)
    return builder.build()


def gradient_graph(graph: Graph, of: Value, wrt: Sequence[Value], prefix: str) -> Graph:
    """The graph with the gradients of a value of one element, as outputs ``prefix`` and the names of ``wrt``.

    Raises:
        GradientError: an op between has no gradient.
    """
    names, value = [v.name for v in wrt], of.name
    graph = decompose_for_gradient(dataclasses.replace(graph, outputs={**graph.outputs, _OF: of}), wrt)
    of = graph.outputs[_OF]
    builder = GraphBuilder(graph.name)
    new = builder.adopt(graph)
    by_name = {v.name: new[v] for v in (*graph.inputs, *graph.initializers)}
    for name, old in graph.outputs.items():
        if name != _OF:
            builder.output(name, new[old])
    seed = builder.constant(np.ones(of.type.sizes, of.type.dtype.cotangent.numpy), f"{value}/seed")
    found = add_gradients(builder, {new[of]: seed}, [by_name[name] for name in names])
    for name in names:
        gradient = found[by_name[name]]
        builder.output(prefix + name, filled(builder, by_name[name]) if gradient is None else gradient)
    return builder.build()


def _reachable(nodes: Iterable[Node], wrt: Iterable[Value]) -> set[Value]:
    """Float values that depend on ``wrt``, with it."""
    active = {v for v in wrt if v.type.dtype.is_float}
    for node in nodes:
        if any(v in active for v in node.inputs if v is not None):
            active.update(v for v in node.outputs if v is not None and v.type.dtype.is_float)
    return active


def _names(values: Iterable[Value | None]) -> str:
    return ", ".join(repr(v.name) for v in values if v is not None)
