"""The graphs of training: forward with loss, and its joint graph with the gradients."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np

from .. import ops
from ..errors import GradientError, InputError
from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.types import TensorType, float32
from ..ir.value import Value
from ..passes.autodiff import add_gradients, decompose_for_gradient
from .optimizers.masters import master_type

_log = logging.getLogger("dataflow")

Terms = Mapping[str, Value]
"""Results of a loss or metric by name: sums and weights over the micro-batch, rank 0, float32 or wider."""
Build = Callable[[GraphBuilder, Mapping[str, Value], Mapping[str, Value]], Terms]
"""``build(g, outputs, batch)``: adds a loss and metrics; ``loss`` and ``weight`` are among the results."""

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"  # the programs of a training step
ACCUMULATOR = "gradients/"
VALUES = "values/"  # before the names of inner values that the forward program returns
PENDING = "pending/"  # statistics as the micro-batches since the last optimizer step left them
# No parameter has such a name: "weight" alone some have.
HYPER, WEIGHT, SQUARES = "optimizer/hyper", "optimizer/weight", "optimizer/squares"
GATE = "optimizer/gate"
SCALE = "loss/scale"


@dataclass(frozen=True, slots=True)
class Joint:
    """Forward and backward in one graph.

    Attributes:
        graph: outputs are the terms, and SQUARES: the sum of the accumulators' squares, which is finite only where all
            of them are; states are the accumulators and updated statistics.
        reached: names of the trained parameters that the loss depends on.
    """

    graph: Graph
    reached: tuple[str, ...]


def with_values(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph that returns these outputs and inner values too, by names that begin with ``VALUES``.

    Raises:
        ModelError: there is no such value.
    """
    found = {VALUES + name: graph.outputs[name] if name in graph.outputs else graph.find(name) for name in names}
    return dataclasses.replace(graph, outputs={**graph.outputs, **found})


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
    model: Graph,
    entries: Mapping[str, TensorType],
    build: Build,
    trained: Sequence[str],
    *,
    add: bool,
    scaled: bool = False,
    passing: bool = False,
    always: Mapping[str, TensorType] = MappingProxyType({}),
) -> Joint:
    """Forward and backward in one graph, whose gradients go to accumulators.

    Args:
        model: bound.
        entries: as in ``forward_graph``.
        build: as in ``forward_graph``.
        trained: names of parameters.
        add: the gradients are added to the accumulators; otherwise they replace what is there.
        scaled: gradients are those of the loss times the input SCALE, float32 of rank 0.
        passing: the accumulators lie in scratch memory.
        always: types of parameters, in ``model`` or not: gradients are zeros where the loss doesn't depend on them.

    Raises:
        GradientError: an op between a trained parameter and the loss has no gradient.
    """
    wrt = [v for v in model.initializers if v.name in set(trained)]
    rounds = any(node.op is ops.quantize for node in model.nodes)
    model = decompose_for_gradient(model, wrt)
    builder, terms = _with_terms(model, entries, build)
    forward = {*builder.outputs(), *(state.name for state in model.states)}
    loss = terms["loss"]
    values = {v.name: v for v in builder.initializers() if v.name in set(trained)}
    if scaled:
        seed = builder.input(SCALE, float32, ())
        seed = seed if loss.type.dtype == float32 else ops.cast(seed, to=loss.type.dtype)
    else:
        seed = builder.constant(np.ones((), loss.type.dtype.numpy), "seed")
    cotangents = add_gradients(builder, {loss: seed}, list(values.values()))
    found = {name: gradient for name, value in values.items() if (gradient := cotangents.get(value)) is not None}
    for name, type_ in always.items():
        if name not in found:
            attributes = {"shape": type_.shape, "value": 0.0, "dtype": type_.dtype.cotangent}
            (zeros,) = builder.add(ops.full, (), attributes).outputs
            assert zeros is not None
            found[name] = zeros
    reached = tuple(found)
    if not reached:
        named = ", ".join(list(trained)[:5])
        hint = "; values are quantized on the way: df.straight_through(model) trains through that" if rounds else ""
        raise GradientError(f"the loss depends on none of the trained parameters: {named}{hint}")
    nodes = builder.nodes()
    behind = len(nodes)
    while nodes[behind - 1].op in (ops.add, ops.concat):  # of the gradients of what is read several times
        behind -= 1
    squares: Value | None = None
    indices = {value: index for index, node in enumerate(builder.nodes()) for value in node.outputs}
    for name in sorted(reached, key=lambda name: indices.get(found[name], -1)):
        gradient = _exact(builder, found[name])
        held = stored_zeros(builder, ACCUMULATOR + name, gradient.type, "passing" if passing else "statistic")
        gathered = ops.add(held, gradient) if add else gradient
        builder.state(ACCUMULATOR + name, held, gathered)
        squares = ops.square_sum(gathered, squares)
    assert squares is not None
    builder.output(SQUARES, squares)
    backward = {SQUARES, *(ACCUMULATOR + name for name in reached)}
    graph = builder.build({FORWARD: frozenset(forward), BACKWARD: frozenset(backward)})
    return Joint(_sooner(graph, behind), reached)


def _exact(builder: GraphBuilder, gradient: Value) -> Value:
    """A gradient in float32 at least: of one rounded to 16 bits, also before a sum or a view, what was rounded."""
    if gradient.type.dtype.bits >= 32:
        return gradient
    node = builder.producer(gradient)
    if node is not None and node.op is ops.cast:
        (read,) = node.inputs
        if read is not None and read.type.dtype == float32:
            return read
    elif node is not None and (node.op.view is not None or node.op is ops.add):
        operands = [v if v is None or not v.type.dtype.is_float else _exact(builder, v) for v in node.inputs]
        (found,) = builder.add(node.op, operands, node.attributes).outputs
        assert found is not None
        return found
    exact: Value = ops.cast(gradient, to=float32)
    return exact


def _sooner(graph: Graph, start: int) -> Graph:
    """The graph whose nodes from ``start`` on stand right behind what they read, and behind the forward program.

    Accumulating and checking a gradient then finds it in the cache, and its memory is free sooner.
    """
    last = graph.stage_stops()[0] - 1  # of the forward program
    order: dict[Node, tuple[int, int]] = {}
    producers = graph.producers()
    for index, node in enumerate(graph.nodes):
        read = [order[producers[value]][0] for value in node.inputs if value in producers]
        order[node] = (index, -1) if index < start else (max([last, *read]), index)
    return dataclasses.replace(graph, nodes=tuple(sorted(graph.nodes, key=order.__getitem__)))


def with_batch_statistics(graph: Graph, *, first: bool) -> Graph:
    """The graph whose batch norms use the batch's statistics and update the running ones, in tensors that wait.

    A batch norm whose statistics aren't initializers stays as it is, as does one of a graph that was exported in
    training mode where something reads the statistics that it gives. A network that is applied several times updates
    its statistics with each batch in turn, as modules do that are called so.

    Args:
        graph: any.
        first: of a logical batch: reads the running statistics; later micro-batches go on from those that wait. Either
            writes the latter only, so that a logical batch that fails leaves no trace.

    Raises:
        InputError: a statistic is read by something else too, which updating it would change.
    """
    readers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                readers.setdefault(value, []).append(node)
    read_after = {*readers, *graph.outputs.values(), *(state.after for state in graph.states)}

    def is_updating(node: Node) -> bool:
        if node.op not in (ops.batch_norm, ops.batch_norm_train) or len(node.inputs) > 5:
            return False
        return {*node.inputs[3:5]} <= graph.initializers.keys() and read_after.isdisjoint(node.outputs[1:])

    waits: dict[Value, Value] = {}  # by statistic, the tensor that waits
    latest: dict[Value, Value] = {}  # and what the batch norms so far made of it
    left = {value: len(found) for value, found in readers.items()}

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if not is_updating(node):
            return None
        attributes = {name: node.attributes[name] for name in ("epsilon", "momentum")}
        statistics = [value for value in node.inputs[3:5] if value is not None]
        for index, value in enumerate(statistics, 3):
            if not all(is_updating(other) and _reads_at(other, value) == [index] for other in readers[value]):
                others = ", ".join(repr(reader.name) for reader in readers[value][:4])
                raise InputError(
                    f"batch_norm='update': {value.name!r}, a running statistic of {node.describe()}, is stored once "
                    f"for several uses ({others}); export the model so that equal tensors are stored apart, or leave "
                    "batch_norm='fixed'"
                )
        for value, running in zip(statistics, inputs[3:5], strict=True):
            if value not in waits:
                waits[value] = stored_zeros(builder, PENDING + value.name, value.type)
                assert running is not None
                latest[value] = running if first else waits[value]
        read = [latest[value] for value in statistics]
        made = builder.add(ops.batch_norm_train, (*inputs[:3], *read), attributes, name=node.name)
        for value, after in zip(statistics, made.outputs[1:3], strict=True):
            assert after is not None
            latest[value] = after
            left[value] -= 1
            if not left[value]:
                builder.state(waits[value].name, waits[value], after)
        return made.outputs[:1]

    return rewrite(graph, replace)


def _reads_at(node: Node, value: Value) -> list[int]:
    """Which operands of a node a value is."""
    return [index for index, operand in enumerate(node.inputs) if operand is value]


def check_batch_statistics(graph: Graph, update: bool) -> None:
    """Says where batch norms don't do what is expected of them; with ``update`` whether ``with_batch_statistics`` can.

    Raises:
        InputError: a batch norm within a body would keep its statistics.
    """
    norms = [node for node in graph.nodes if node.op in (ops.batch_norm, ops.batch_norm_train)]
    norms = [node for node in norms if {*node.inputs[3:5]} <= graph.initializers.keys()]
    read: set[Value | None] = {*graph.inputs}
    for node in graph.nodes:
        read |= {*node.outputs} - {None} if not read.isdisjoint(node.inputs) else set()
    training = [node for node in norms if node.op is ops.batch_norm_train and node.inputs[0] in read]
    if training:
        _log.warning(
            "%d batch norms are in training mode in the file, first %s: each run, of evaluations and of the saved file "
            "too, takes the statistics of its own batch, as ONNX Runtime does; for the running ones load the file with "
            "df.load(path, mode='inference'), --mode inference",
            len(training), training[0].describe(),
        )  # fmt: skip
    if not update:
        return
    hidden = next((node for node in graph.nodes if any(map(_has_batch_norm, node.bodies))), None)
    if hidden is not None:
        raise InputError(
            f"batch_norm='update': {hidden.describe()} has a batch norm in its body, whose statistics would stay as "
            "they are; leave batch_norm='fixed'"
        )
    if not norms:
        _log.warning(
            "batch_norm='update': the model has no batch norm with stored statistics; exporters fold it into the layer "
            "before it, but not torch.onnx.export(..., dynamo=True, optimize=False), nor dynamo=False with "
            "training=TrainingMode.PRESERVE and do_constant_folding=False, both of a network in eval()"
        )


def _has_batch_norm(body: Graph) -> bool:
    return any(node.op is ops.batch_norm or any(map(_has_batch_norm, node.bodies)) for node in body.nodes)


def reading(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph that reads other stored tensors in place of those by these names: of their types, or masters' types."""
    if not names:
        return graph
    made: dict[str, Value] = {}

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> None:
        for position, value in enumerate(node.inputs):
            if value is None or value.name not in names or value not in graph.initializers:
                continue
            if value.name not in made:
                kept = stored_zeros(builder, names[value.name], master_type(value.type))
                made[value.name] = kept if kept.type == value.type else ops.cast(kept, to=value.type.dtype)
            inputs[position] = made[value.name]

    return rewrite(graph, replace)


def stored_zeros(
    builder: GraphBuilder,
    name: str,
    type_: TensorType,
    role: Literal["parameter", "statistic", "passing"] = "statistic",
) -> Value:
    """A stored tensor whose data is zeros, or what the trainer has by that name."""
    zeros = np.broadcast_to(np.zeros((), type_.dtype.numpy), type_.sizes)
    return builder.initializer(name, zeros, role=role)


def _with_terms(model: Graph, entries: Mapping[str, TensorType], build: Build) -> tuple[GraphBuilder, dict[str, Value]]:
    builder = GraphBuilder(model.name)
    builder.reserve(entries)  # of the data: what a node of the model gives may be called as labels are
    new = builder.adopt(model)
    known = {v.name: new[v] for v in model.inputs}
    batch = dict(known)
    for name, type_ in entries.items():
        if name not in known:
            batch[name] = builder.input(name, type_.dtype, type_.shape)
    builder.origin = "loss"
    outputs = {name: new[v] for name, v in model.outputs.items()}
    returned = {name: value for name, value in outputs.items() if name.startswith(VALUES)}
    terms = dict(build(builder, {name: v for name, v in outputs.items() if name not in returned}, batch))
    builder.origin = ""
    for name, value in (terms | returned).items():
        builder.output(name, value)
    return builder, terms
