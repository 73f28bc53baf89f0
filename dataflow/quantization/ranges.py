"""The ranges in which values of a graph lie for samples of data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np

from .. import ops
from ..errors import InputError
from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.value import Value
from ..passes.dead_code import eliminate_dead_code
from ..session import Session
from ..train.data.dataset import Dataset
from ..train.prediction import input_batches

Range = tuple[float, float]
SHARES = tuple(1 - step / 20 for step in range(16))  # of a range, among which ``closest`` looks for the least error
_Observe = Callable[[Value, Value], Sequence[Value]]  # numbers of a value, given too as a copy of the graph has it


@dataclasses.dataclass(frozen=True, slots=True)
class Samples:
    """Data to run a graph on: the dataset, bound to its inputs, the samples per run, and whether a bar is shown."""

    dataset: Dataset
    batch_size: int | None
    progress: bool | None


def steps_of(low: float, high: float) -> tuple[np.float32, np.uint8]:
    """The scale and zero point by which the bytes 0 to 255 stand for a range and for 0."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = np.float32((high - low) / 255)
    if not scale > np.finfo(np.float32).tiny * 1024:  # all is 0, or so near that a quotient would overflow
        return np.float32(1), np.uint8(0)
    return scale, np.uint8(np.clip(np.rint(-low / float(scale)), 0, 255))


def extremes(
    graph: Graph, groups: Sequence[tuple[Value, ...]], samples: Samples, options: Mapping[str, Any]
) -> list[Range]:
    """The least and the largest element of the values of each group, over all samples.

    Raises:
        InputError: an element is not finite, or there are no samples.
    """

    def observe(_: Value, copy: Value) -> Sequence[Value]:
        axes = tuple(range(copy.type.rank))
        return tuple(op(copy, axes=axes, keepdims=False) for op in (ops.reduce_min, ops.reduce_max))

    found: dict[Value, Range] = {}
    values, any_samples = [value for group in groups for value in group], False
    with closing(_observed(graph, values, observe, samples, options)) as batches:
        for value, (low, high) in (pair for batch in batches for pair in zip(values, batch, strict=True)):
            any_samples = True
            if low > high:
                continue  # of no elements, as where a detector found nothing
            if not (np.isfinite(low) and np.isfinite(high)):
                raise InputError(
                    f"data: the value {value.name!r} of the model has elements that are not finite for a sample"
                )
            before = found.get(value, (low, high))
            found[value] = min(float(low), before[0]), max(float(high), before[1])
    if not any_samples:
        raise InputError("data has no samples; expected some for which the model is run to see its values")
    unseen = 0.0, 0.0
    return [
        (min(found.get(v, unseen)[0] for v in group), max(found.get(v, unseen)[1] for v in group)) for group in groups
    ]


def closest(
    graph: Graph,
    groups: Sequence[tuple[Value, ...]],
    ranges: Sequence[Range],
    samples: Samples,
    options: Mapping[str, Any],
) -> list[Range]:
    """Of each group the share of its range for which the squares of what rounding changes sum to the least."""
    of = {value: index for index, group in enumerate(groups) for value in group}

    def observe(value: Value, copy: Value) -> Sequence[Value]:
        low, high = ranges[of[value]]
        assert copy.builder is not None
        constant = copy.builder.constant
        axes = tuple(range(value.type.rank))
        errors = []
        for share in SHARES:
            scale, zero = (constant(np.asarray(n)) for n in steps_of(low * share, high * share))
            rounded = ops.dequantize(ops.quantize(copy, scale, zero, axis=0), scale, zero, axis=0)
            off = ops.sub(copy, rounded)
            errors.append(ops.reduce_sum(ops.mul(off, off), axes=axes, keepdims=False))
        return errors

    sums = np.zeros((len(groups), len(SHARES)))
    values = list(of)
    for batch in _observed(graph, values, observe, samples, options):
        for value, errors in zip(values, batch, strict=True):
            sums[of[value]] += errors
    shares = [SHARES[index] for index in sums.argmin(axis=1)]
    return [(low * share, high * share) for (low, high), share in zip(ranges, shares, strict=True)]


def _observed(
    graph: Graph, values: Sequence[Value], observe: _Observe, samples: Samples, options: Mapping[str, Any]
) -> Generator[list[list[Any]], None, None]:
    """For each batch of the data, of each value the numbers that ``observe`` has of it."""
    watched, names = _watching(graph, values, observe)
    batches = input_batches(samples.dataset, graph.inputs, samples.batch_size, samples.progress)
    with Session(watched, **options) as session, closing(batches):
        for _, arrays, _ in batches:
            numbers = session.run(arrays)
            yield [[numbers[name] for name in names[value]] for value in values]


def _watching(graph: Graph, values: Sequence[Value], observe: _Observe) -> tuple[Graph, Mapping[Value, Sequence[str]]]:
    """The graph that gives the numbers ``observe`` computes of values, and their names by value."""
    left, names, numbers = set(values), dict[Value, list[str]](), dict[str, Value]()

    def note(olds: Sequence[Value | None], news: Sequence[Value | None]) -> None:
        for old, new in zip(olds, news, strict=True):
            if old in left and old is not None and new is not None:
                left.discard(old)
                made = {f"{old.name}/{index}": number for index, number in enumerate(observe(old, new))}
                names[old] = list(made)
                numbers.update(made)

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None]:
        note(node.inputs, inputs)  # inputs of the graph
        outputs = builder.again(node, inputs).outputs
        note(node.outputs, outputs)
        return outputs

    watching = rewrite(graph, replace)
    return eliminate_dead_code(dataclasses.replace(watching, outputs=numbers), extras=False), names
