"""Branches, loops, scans and maps, run body by body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from dataflow import TensorType
from dataflow.errors import InputError
from dataflow.plugin import poll

from ..file.records import Array, GraphRecord, NodeRecord, shapes_of_progress
from .frames import Item
from .sequence_ops import made, number, tensor


class Bodies(Protocol):
    """Runs bodies of the node."""

    def run(self, body: GraphRecord, given: Sequence[Item], *, loop: bool) -> list[Item]:
        """The outputs of a body; ``loop``: it is run several times."""

    def type_of(self, body: GraphRecord, given: Sequence[Item], name: str) -> TensorType | None:
        """The type that a result would have, where that is known before the body runs."""


def branch(node: NodeRecord, inputs: Sequence[Item], bodies: Bodies) -> list[Item]:
    """``If``."""
    chosen = "then_branch" if bool(number(inputs[0])) else "else_branch"
    return bodies.run(node.attributes[chosen], (), loop=False)


def loop(node: NodeRecord, inputs: Sequence[Item], bodies: Bodies) -> list[Item]:
    """``Loop``."""
    body: GraphRecord = node.attributes["body"]
    padded: list[Item] = [*inputs, *[None] * (2 - len(inputs))]
    limit, condition, carried = padded[0], padded[1], padded[2:]
    most = None if limit is None else int(number(limit))
    goes_on = condition is None or bool(number(condition))
    stacked: list[list[Array]] = [[] for _ in body.outputs[1 + len(carried) :]]
    index, (at, on) = 0, shapes_of_progress(body)
    true = np.full(on, True)
    while goes_on and (most is None or index < most):
        poll(node)
        first, *results = bodies.run(body, [np.full(at, index, np.int64), true, *carried], loop=True)
        goes_on, carried = bool(number(first)), results[: len(carried)]
        for rows, row in zip(stacked, results[len(carried) :], strict=True):
            rows.append(tensor(row))
        index += 1
    names = body.outputs[1 + len(carried) :]
    if not index:
        given = [np.full(at, 0, np.int64), true, *carried]
        return [*carried, *(_none(bodies, body, given, name) for name in names)]
    return [*carried, *(_stack(rows, name) for rows, name in zip(stacked, names, strict=True))]


def scan(node: NodeRecord, inputs: Sequence[Item], bodies: Bodies) -> list[Item]:
    """``Scan``, of opset 9 and newer."""
    attributes, body = node.attributes, node.attributes["body"]
    count = attributes["num_scan_inputs"]
    carried: list[Item] = list(inputs[: len(inputs) - count])
    scanned = [tensor(item) for item in inputs[len(inputs) - count :]]
    names = body.outputs[len(carried) :]
    axes = _listed(attributes, "scan_input_axes", count)
    back = _listed(attributes, "scan_input_directions", count)
    xs = [np.moveaxis(x, axis, 0) for x, axis in zip(scanned, axes, strict=True)]
    xs = [x[::-1] if reverse else x for x, reverse in zip(xs, back, strict=True)]
    lengths = sorted({len(x) for x in xs})
    if len(lengths) != 1:
        raise InputError(f"what it scans has {lengths} entries; expected as many of each")
    stacked: list[list[Array]] = [[] for _ in names]
    for rows in zip(*xs, strict=True):
        poll(node)
        results = bodies.run(body, [*carried, *(np.array(row, order="C") for row in rows)], loop=True)
        carried = results[: len(carried)]
        for found, row in zip(stacked, results[len(carried) :], strict=True):
            found.append(tensor(row))
    axes = _listed(attributes, "scan_output_axes", len(names))
    back = _listed(attributes, "scan_output_directions", len(names))
    if lengths[0]:
        made_rows = [_stack(rows[::-1] if r else rows, n) for rows, n, r in zip(stacked, names, back, strict=True)]
    else:
        given = [*carried, *(np.zeros(x.shape[1:], x.dtype) for x in xs)]
        made_rows = [_none(bodies, body, given, name) for name in names]
    moved = (np.array(np.moveaxis(y, 0, axis), order="C") for y, axis in zip(made_rows, axes, strict=True))
    return [*carried, *moved]


def sequence_map(node: NodeRecord, inputs: Sequence[Item], bodies: Bodies) -> list[Item]:
    """``SequenceMap``."""
    body: GraphRecord = node.attributes["body"]
    lengths = {len(item) for item in inputs if isinstance(item, list)}
    if len(lengths) != 1 or not isinstance(inputs[0], list):
        raise InputError(f"its sequences have {sorted(lengths)} elements; expected as many in each")
    mapped: list[list[Array]] = [[] for _ in body.outputs]
    for index in range(len(inputs[0])):
        poll(node)
        given = [item[index] if isinstance(item, list) else item for item in inputs]
        for found, result in zip(mapped, bodies.run(body, given, loop=True), strict=True):
            found.append(tensor(result))
    return [made(found) for found in mapped]


OPERATORS = {"If": branch, "Loop": loop, "Scan": scan, "SequenceMap": sequence_map}


def _listed(attributes: Any, name: str, count: int) -> Sequence[int]:
    found: Sequence[int] = attributes.get(name) or [0] * count
    if len(found) != count:
        raise InputError(f"{name} is {list(found)}; expected {count}")
    return found


def _stack(rows: Sequence[Array], name: str) -> Array:
    """Results of iterations along a new first axis."""
    shapes = list(dict.fromkeys(row.shape for row in rows))
    if len(shapes) > 1:
        raise InputError(f"the result {name!r} has shapes {shapes[0]} and {shapes[1]}; expected one shape")
    return np.ascontiguousarray(np.stack(rows))


def _none(bodies: Bodies, body: GraphRecord, given: Sequence[Item], name: str) -> Array:
    """The stacked results of no iteration; sizes that only an iteration would tell are 0."""
    inferred, declared = bodies.type_of(body, given, name), body.declared.get(name)
    type_ = inferred or declared
    if type_ is None:
        raise InputError(f"it makes no iteration, so the shape of what it stacks, {name!r}, is not known")
    others = declared.shape if declared is not None and declared.rank == type_.rank else type_.shape
    pairs = zip(type_.shape, others, strict=True)
    shape = (next((size for size in pair if isinstance(size, int)), 0) for pair in pairs)
    return np.zeros((0, *shape), type_.dtype.numpy)
