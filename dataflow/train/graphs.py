"""The graphs of training: forward with loss, its joint graph with the gradients, and the optimizer's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import ops
from ..autodiff import add_gradients, decompose_for_gradient
from ..builder import GraphBuilder
from ..errors import GradientError
from ..graph import Graph, Node, Value
from ..passes.rewrite import rewrite
from ..types import TensorType, float32

Terms = Mapping[str, Value]
"""Results of a loss or metric by name: sums and weights over the micro-batch, rank 0, float32."""
Build = Callable[[GraphBuilder, Mapping[str, Value], Mapping[str, Value]], Terms]
"""``build(g, outputs, batch)``: adds a loss and metrics; ``loss`` and ``weight`` are among the results."""

ACCUMULATOR = "gradients/"
HYPER, WEIGHT = "optimizer/hyper", "optimizer/weight"  # no parameter has such a name: "weight" alone some have


@dataclass(frozen=True, slots=True)
class Joint:
    """Forward and backward in one graph.

    Attributes:
        graph: outputs are the terms; states are the accumulators and updated statistics.
        reached: names of the trained parameters that the loss depends on.
    """

    graph: Graph
    reached: tuple[str, ...]


def forward_graph(model: Graph, entries: Mapping[str, TensorType], build: Build) -> Graph:
    """The model's graph with a loss and metrics behind it; outputs are the terms.

    Args:
        model: bound.
        entries: what the loss and metrics read from a batch beside the model's inputs.
        build: adds them.
    """
    builder, _ = _with_terms(model, entries, build)
    return builder.build()


def joint_graph(
    model: Graph, entries: Mapping[str, TensorType], build: Build, trained: Sequence[str], *, add: bool
) -> Joint:
    """Forward and backward in one graph, whose gradients go to accumulators.

    Args:
        model: bound.
        entries: as in ``forward_graph``.
        build: as in ``forward_graph``.
        trained: names of parameters.
        add: the gradients are added to the accumulators; otherwise they replace what is there.

    Raises:
        GradientError: an op between a trained parameter and the loss has no gradient.
    """
    wrt = [v for v in model.initializers if v.name in set(trained)]
    model = decompose_for_gradient(model, wrt)
    builder, terms = _with_terms(model, entries, build)
    boundary = len(builder.nodes())
    loss = terms["loss"]
    values = {v.name: v for v in builder.initializers() if v.name in set(trained)}
    seed = builder.constant(np.ones((), loss.type.dtype.numpy), "seed")
    found = add_gradients(builder, {loss: seed}, list(values.values()))
    reached = tuple(name for name, value in values.items() if found.get(value) is not None)
    if not reached:
        raise GradientError("the loss depends on none of the trained parameters: " + ", ".join(list(trained)[:5]))
    for name in reached:
        gradient = found[values[name]]
        assert gradient is not None
        zeros = np.broadcast_to(np.zeros((), gradient.type.dtype.numpy), gradient.type.sizes)
        held = builder.initializer(ACCUMULATOR + name, zeros, role="statistic")
        builder.state(ACCUMULATOR + name, held, ops.add(held, gradient) if add else gradient)
    return Joint(builder.build(boundary), reached)


def optimizer_graph(
    parameters: Mapping[str, TensorType],
    slots: Sequence[str],
    step: Callable[..., Sequence[Value]],
    hyper: int,
    clip_norm: float | None,
) -> Graph:
    """One update of every parameter from its accumulator.

    Its inputs are HYPER, (K,) float32, and WEIGHT, rank 0: by which the accumulated sums are divided.
    Its output is ``norm``: of the averaged gradient over all parameters, before clipping.

    Args:
        parameters: name to type of what is trained.
        slots: names of the optimizer's tensors per parameter.
        step: ``step(g, parameter, gradient, slots, hyper, scale)``: the new parameter and slots.
        hyper: length K of the hyperparameter tensor.
        clip_norm: the largest norm that is let through, or None.
    """
    builder = GraphBuilder("optimizer")
    hypers = builder.input(HYPER, float32, (hyper,))
    weight = builder.input(WEIGHT, float32, ())
    zeros = {name: np.broadcast_to(np.zeros((), t.dtype.numpy), t.sizes) for name, t in parameters.items()}
    before = {name: builder.initializer(name, zeros[name], role="parameter") for name in parameters}
    gradients = {n: builder.initializer(ACCUMULATOR + n, zeros[n], role="statistic") for n in parameters}
    scale = ops.reciprocal(weight)
    if clip_norm is not None:
        squares: Value | None = None
        for name in parameters:
            gradient = gradients[name]
            flat = ops.reshape(gradient, shape=(gradient.type.elements,))
            square = ops.reduce_sum(ops.mul(flat, flat), axes=(0,), keepdims=0)
            squares = square if squares is None else ops.add(squares, square)
        assert squares is not None
        norm = ops.mul(ops.sqrt(squares), scale)
        # As torch.nn.utils.clip_grad_norm_: the factor is clip_norm / (norm + 1e-6), at most 1.
        factor = ops.minimum(ops.div(builder.scalar(clip_norm, float32), ops.add(norm, 1e-6)), 1.0)
        scale = ops.mul(scale, factor)
        builder.output("norm", norm)
    else:
        builder.output("scale", scale)
    for name in parameters:
        held = [builder.initializer(f"optimizer/{slot}/{name}", zeros[name], role="statistic") for slot in slots]
        results = step(builder, before[name], gradients[name], tuple(held), hypers, scale)
        builder.state(name, before[name], results[0])
        for slot, old, new in zip(slots, held, results[1:], strict=True):
            builder.state(f"optimizer/{slot}/{name}", old, new)
    return builder.build()


def with_batch_statistics(graph: Graph, momentum: float = 0.9) -> Graph:
    """The graph whose batch norms use the batch's statistics and update the running ones.

    A batch norm whose statistics aren't initializers stays as it is.
    """

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if node.op.name != "batch_norm" or not {node.inputs[3], node.inputs[4]} <= set(graph.initializers):
            return None
        attributes = {"epsilon": node.attributes["epsilon"], "momentum": node.attributes.get("momentum", momentum)}
        made = builder.add(ops.batch_norm_train, inputs, attributes, name=node.name)
        _, mean, variance, *_ = made.outputs
        assert inputs[3] is not None and inputs[4] is not None and mean is not None and variance is not None
        builder.state(inputs[3].name, inputs[3], mean)
        builder.state(inputs[4].name, inputs[4], variance)
        return made.outputs[:1]

    return rewrite(graph, replace)


def _with_terms(model: Graph, entries: Mapping[str, TensorType], build: Build) -> tuple[GraphBuilder, dict[str, Value]]:
    builder = GraphBuilder(model.name)
    new = builder.adopt(model)
    known = {v.name: new[v] for v in model.inputs}
    batch = dict(known)
    for name, type_ in entries.items():
        if name not in known:
            batch[name] = builder.input(name, type_.dtype, type_.shape)
    builder.origin = "loss"
    terms = dict(build(builder, {name: new[v] for name, v in model.outputs.items()}, batch))
    builder.origin = ""
    for name, value in terms.items():
        builder.output(name, value)
    return builder, terms
