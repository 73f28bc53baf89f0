"""The optimizer's program as a graph: clipping, every parameter's update, and statistics that become final."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

import numpy as np

from ... import ops
from ...errors import PluginError, blamed
from ...ir.builder import GraphBuilder
from ...ir.graph import Graph
from ...ir.types import Array, TensorType
from ...ir.value import Value
from ..joint import ACCUMULATOR, GATE, HYPER, OPTIMIZER, PENDING, SQUARES, WEIGHT, stored_zeros
from .masters import is_narrow, master_type
from .terms import as_dtype, in_dtype, scaled, span
from .updates import Updates


def update_graph(
    parameters: Mapping[str, TensorType],
    updates: Updates,
    frozen: frozenset[int] = frozenset(),
    statistics: Mapping[str, TensorType] = MappingProxyType({}),
) -> Graph:
    """One update of every parameter from its accumulator, and of every statistic from what waits for it.

    Its inputs, of ``updates.dtype``, are HYPER, (K,); WEIGHT, rank 0: by which the accumulated sums are divided; and
    where ``updates.reads_squares`` SQUARES, rank 0: the sum of the accumulators' squares.
    Its output is ``norm``: of the averaged gradient over all parameters, before clipping.

    Args:
        parameters: name to type of what is trained.
        updates: what is done to each.
        frozen: indices of the kinds of parameters that stay as they are.
        statistics: name to type of what micro-batches update and only an optimizer step makes last.

    Raises:
        PluginError: an optimizer doesn't give one new tensor per slot.
    """
    builder = GraphBuilder("optimizer")
    add_updates(builder, {}, parameters, updates, frozen, statistics)
    return builder.build({OPTIMIZER: frozenset(builder.outputs())})


def update_arguments(updates: Updates, hyper: Array, weight: float, squares: float | None = None) -> dict[str, Array]:
    """What ``update_graph`` reads beside stored tensors; SQUARES too where they are given."""
    found = {HYPER: hyper, WEIGHT: weight} if squares is None else {HYPER: hyper, WEIGHT: weight, SQUARES: squares}
    return {name: np.array(value, updates.dtype.numpy) for name, value in found.items()}


def add_updates(
    builder: GraphBuilder,
    known: Mapping[str, Value],
    parameters: Mapping[str, TensorType],
    updates: Updates,
    frozen: frozenset[int],
    statistics: Mapping[str, TensorType],
    factor: Value | None = None,
) -> None:
    """Adds what ``update_graph`` describes.

    Args:
        builder: of the graph.
        known: by name the newest values of stored tensors, and SQUARES, where nodes of the graph have them.
        parameters: as for ``update_graph``.
        updates: likewise.
        frozen: likewise.
        statistics: likewise.
        factor: by which the accumulated sums are multiplied; None: one by the input WEIGHT.
    """

    def stored(name: str, type_: TensorType, role: Literal["parameter", "statistic"] = "statistic") -> Value:
        found = known.get(name)
        return stored_zeros(builder, name, type_, role) if found is None else found

    hypers = builder.input(HYPER, updates.dtype, (updates.hyper_size,))
    mean = ops.reciprocal(builder.input(WEIGHT, updates.dtype, ())) if factor is None else factor
    moving = {name: type_ for name, type_ in parameters.items() if updates.kind_of[name] not in frozen}
    before = {name: stored(name, type_, "parameter") for name, type_ in moving.items()}
    gradients = {name: stored(ACCUMULATOR + name, master_type(type_)) for name, type_ in moving.items()}
    scales = _scales(builder, updates, gradients, mean, known.get(SQUARES))
    for name in moving:
        kind = updates.kinds[updates.kind_of[name]]
        gradient, scale = gradients[name], scales[kind.norm]
        if kind.clip_value is not None:
            gradient = ops.maximum(ops.minimum(scaled(gradient, scale), kind.clip_value), -kind.clip_value)
            scale = builder.scalar(1.0, gradient.type.dtype)
        held = [stored(slot, tensor.type) for slot, tensor in updates.slots[name].items()]
        hyper = hypers if len(updates.kinds) == 1 else span(hypers, kind.start, kind.stop)
        narrow = is_narrow(before[name].type)
        changed, own = (held[-1], held[:-1]) if narrow else (before[name], held)
        with blamed(f"optimizer {type(kind.rule).__name__}: build() for {name!r}"):
            given = (in_dtype(hyper, changed), in_dtype(scale, changed))
            results = kind.rule.build(builder, changed, gradient, tuple(own), *given)
        if not isinstance(results, (tuple, list)) or len(results) != 1 + len(own):
            gave = f"{len(results)} values" if isinstance(results, (tuple, list)) else repr(results)
            raise PluginError(
                f"optimizer {type(kind.rule).__name__}: build() gave {gave} for {name!r}; expected a tuple of the new "
                f"parameter and {len(own)} slots"
            )
        for what, held_as, new in zip(("parameter", *updates.slots[name]), (changed, *own), results, strict=False):
            if not isinstance(new, Value) or new.type != held_as.type:
                gave = str(new.type) if isinstance(new, Value) else repr(new)
                raise PluginError(
                    f"optimizer {type(kind.rule).__name__}: build() gave {gave} for {name!r} as the new {what}; "
                    f"expected {held_as.type}"
                )
        if narrow:
            results = (ops.cast(results[0], to=before[name].type.dtype), *results[1:], results[0])
        builder.state(name, before[name], results[0])
        for slot, old, new in zip(updates.slots[name], held, results[1:], strict=True):
            builder.state(slot, old, new)
    for name, type_ in statistics.items():
        builder.state(name, stored(name, type_), ops.copy(stored(PENDING + name, type_)))


def _scales(
    builder: GraphBuilder, updates: Updates, gradients: Mapping[str, Value], mean: Value, square_sum: Value | None
) -> list[Value]:
    """For each set of parameters with a common norm, what their gradients are multiplied by; rank 0."""
    if not updates.clips:
        if GATE not in builder.outputs():  # a result that is there twice would be copied
            builder.output("scale", mean)
        return [mean]
    if updates.reads_squares:
        squares: list[Value | None] = [builder.input(SQUARES, updates.dtype, ()) if square_sum is None else square_sum]
    else:
        squares = [None for _ in updates.norms]
        for name, gradient in gradients.items():
            number = updates.kinds[updates.kind_of[name]].norm
            squares[number] = ops.square_sum(gradient, squares[number])
        squares = [None if square is None else as_dtype(square, updates.dtype) for square in squares]
    scales, total = [], None
    for limit, square in zip(updates.norms, squares, strict=True):
        if square is None:  # all of the set are frozen
            scales.append(mean)
            continue
        total = square if total is None else ops.add(total, square)
        if limit is None:
            scales.append(mean)
            continue
        # As torch.nn.utils.clip_grad_norm_: the factor is limit / (norm + 1e-6), at most 1.
        norm = ops.mul(ops.sqrt(square), mean)
        factor = ops.minimum(ops.div(builder.scalar(limit, updates.dtype), ops.add(norm, 1e-6)), 1.0)
        scales.append(ops.mul(mean, factor))
    assert total is not None
    builder.output("norm", ops.mul(ops.sqrt(total), mean))
    return scales
