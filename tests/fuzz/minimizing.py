"""Shrinks a failing graph, model or string of bytes while it still fails, and writes it as a test or a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from typing import Any, TypeVar

import numpy as np

import dataflow as df
from dataflow.ir.graph import Node
from dataflow.ir.value import Value
from dataflow.passes.dead_code import eliminate_dead_code

from .making import Array

T = TypeVar("T")
Feeds = Mapping[str, Array]
Fails = Callable[[df.Graph, Feeds], bool]
BUDGET = 300  # tries


def shrink_graph(graph: df.Graph, feeds: Feeds, fails: Fails, budget: int = BUDGET) -> tuple[df.Graph, Feeds]:
    """A smaller graph and its inputs that still fail.

    Tries in turn: one output alone; a value as an input, with the data that it has; a node replaced by an operand of
    the type of its result; an input's data all ones.
    """
    tries = 0
    progress = True
    while progress and tries < budget:
        progress = False
        for smaller, data in _smaller(graph, feeds):
            tries += 1
            if tries > budget:
                break
            try:
                failing = fails(smaller, data)
            except Exception:
                failing = False
            if failing:
                graph, feeds, progress = smaller, data, True
                break
    return graph, feeds


def _smaller(graph: df.Graph, feeds: Feeds) -> Iterator[tuple[df.Graph, Feeds]]:
    """Candidates, the smallest first."""
    known = _all_values(graph, feeds)
    if len(graph.outputs) > 1:
        for value in graph.outputs.values():
            yield _rebuilt(graph, feeds, known, set(), {}, [value])
    results = list(dict.fromkeys(graph.outputs.values()))
    made = [v for node in graph.nodes for v in node.outputs if v is not None]
    if not known:
        return
    for count in sorted({len(made) // 2, len(made) * 3 // 4}, reverse=True):
        if 0 < count < len(made):
            yield _rebuilt(graph, feeds, known, set(made[:count]) - set(results), {}, results)
    for value in reversed(made):
        if value not in results and value.type.dtype != df.uint64:
            yield _rebuilt(graph, feeds, known, {value}, {}, results)
    for node in graph.nodes:
        first = node.outputs[0]
        for operand in node.inputs:
            if first is not None and operand is not None and operand.type == first.type:
                yield _rebuilt(graph, feeds, known, set(), {first: operand}, results)
    for node in graph.nodes:
        for value in node.outputs:
            if value is not None and value not in results and len(results) == 1:
                yield _rebuilt(graph, feeds, known, set(), {}, [value])
    for value in graph.inputs:
        array = feeds[value.name]
        if array.dtype.kind == "f" and (array != 1).any():
            yield graph, {**feeds, value.name: np.ones_like(array)}


def _all_values(graph: df.Graph, feeds: Feeds) -> dict[Value, Array]:
    """The data of every value, by the reference."""
    from dataflow.plugin import call_kernel
    from dataflow_numpy.kernels import KERNELS

    known: dict[Value, Any] = {v: feeds[v.name] for v in graph.inputs}
    known.update({v: d.array for v, d in graph.initializers.items()})
    try:
        for node in graph.nodes:
            results = call_kernel(KERNELS[node.op.name], node, [None if v is None else known[v] for v in node.inputs])
            for value, array in zip(node.outputs, results, strict=False):
                if value is not None:
                    known[value] = np.asarray(array).astype(value.type.dtype.numpy)
    except Exception:
        return {}
    return known


def _rebuilt(
    graph: df.Graph,
    feeds: Feeds,
    known: Mapping[Value, Array],
    as_inputs: set[Value],
    instead: Mapping[Value, Value],
    results: Sequence[Value],
) -> tuple[df.Graph, Feeds]:
    """The graph with these results; values of ``as_inputs`` are inputs, keys of ``instead`` are replaced."""
    g = df.GraphBuilder(graph.name)
    given = {f"x{index}": v for index, v in enumerate(graph.inputs)}
    new: dict[Value, Value] = {v: g.input(name, v.type.dtype, v.type.shape) for name, v in given.items()}
    new.update({v: g.keep(f"w{index}", data) for index, (v, data) in enumerate(graph.initializers.items())})
    data = {name: feeds[v.name] for name, v in given.items()}
    for node in graph.nodes:
        for value in node.outputs:
            if value in as_inputs:
                name = f"input{len(data)}"
                new[value] = g.input(name, value.type.dtype, value.type.shape)
                data[name] = known[value]
        if all(v is None or v in as_inputs for v in node.outputs):
            continue
        outputs = _again(g, node, new)
        for old, made in zip(node.outputs, outputs, strict=True):
            if old is not None and made is not None and old not in as_inputs:
                new[old] = new[instead[old]] if old in instead else made
    for index, value in enumerate(results):
        g.output(f"y{index}", new[value])
    found = eliminate_dead_code(g.build())
    read = {v for node in found.nodes for v in node.inputs} | set(found.outputs.values())
    found = _without_inputs(found, read)
    return found, {v.name: data[v.name] for v in found.inputs}


def _again(g: df.GraphBuilder, node: Node, new: Mapping[Value, Value]) -> Sequence[Value | None]:
    inputs = [None if v is None else new[v] for v in node.inputs]
    return g.add(node.op, inputs, node.attributes, bodies=node.bodies).outputs


def _without_inputs(graph: df.Graph, read: set[Any]) -> df.Graph:
    import dataclasses

    return dataclasses.replace(graph, inputs=tuple(v for v in graph.inputs if v in read))


# ---- anything made of parts ----------------------------------------------------------------------------


def shrink_list(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """The items without what can be left out while it still fails: halves first, then ever smaller runs."""
    found = list(items)
    size = max(len(found) // 2, 1)
    while size and found:
        at = 0
        while at < len(found):
            fewer = found[:at] + found[at + size :]
            if fails(fewer):
                found = fewer
            else:
                at += size
        size //= 2
    return found


def shrink_message(message: Any, fails: Callable[[Any], bool]) -> Any:
    """A protobuf message without the entries and fields that can be left out while it still fails."""
    found = type(message)()
    found.CopyFrom(message)
    at = 0
    while at < len(fields := list(message_fields(found))):  # anew each time: what is put back is another object
        if not _shrunk(found, *fields[at], fails):
            at += 1
    return found


def message_fields(message: Any) -> Iterator[tuple[Any, Any]]:
    """Every set field of a message and of those in it, the outer ones first."""
    for descriptor, value in message.ListFields():
        yield message, descriptor
        if descriptor.type == descriptor.TYPE_MESSAGE:
            for inner in value if isinstance(value, MutableSequence) or hasattr(value, "add") else (value,):
                yield from message_fields(inner)


def _shrunk(message: Any, parent: Any, descriptor: Any, fails: Callable[[Any], bool]) -> bool:
    """Leaves out a field, or entries of a repeated one; True when something went."""
    name = descriptor.name
    before = type(parent)()
    before.CopyFrom(parent)
    parent.ClearField(name)
    if fails(message):
        return True
    parent.CopyFrom(before)
    value = getattr(parent, name)
    if not hasattr(value, "__len__") or isinstance(value, (str, bytes)) or len(value) < 2:
        return False
    entries = list(getattr(before, name))

    def without(kept: Sequence[Any]) -> bool:
        parent.ClearField(name)
        getattr(parent, name).extend(kept)
        return fails(message)

    kept = shrink_list(entries, without)
    parent.ClearField(name)
    getattr(parent, name).extend(kept)
    return len(kept) < len(entries)
