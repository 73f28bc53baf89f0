"""Distillation: a model follows the softened probabilities of a teacher, which runs in the same program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ... import ops
from ...errors import InputError
from ...execute.arguments import sizes_of_shapes
from ...host import checks
from ...ir.graph import Graph
from ...ir.types import TensorType
from ...ir.value import Value
from ...model import Model
from ...model_files import load
from ...ops.rules.subgraph import inline
from ...passes.bind_shapes import bind
from ...passes.dead_code import eliminate_dead_code
from ...plugin.registry import registry_of
from .before import before
from .class_axis import axis_of_probabilities, beside
from .cross_entropy import CrossEntropy
from .distributions import divergence
from .loss import Loss, Target, at_class_axis, compared, keys_of
from .terms import alike, as_dtype, ones, upcast, zero

_LOGITS = "logits"


@dataclass(frozen=True, eq=False)
class Distill:
    """alpha T^2 KL(softmax(teacher / T), softmax(output / T)) + (1 - alpha) hard loss (Hinton, Vinyals, Dean 2015).

    The teacher is in inference mode, its weights are constants of the moment when the loss is made; it reads entries of
    the batch, usually the model's own inputs. What doesn't count in the hard loss doesn't count at all.

    Attributes:
        teacher: a Model, or the path of one.
        temperature: T, which softens both.
        alpha: the share of the teacher; 1: there are no labels.
        output: the teacher's value that is followed; needed where it has several outputs. Of a softmax its input is
            taken.
        inputs: the teacher's input to the key of the entry that it reads, where they have other names.
        hard: the loss of the labels.
        axis: the class axis, where the shapes leave a choice.
    """

    teacher: Model | str | Path
    temperature: float = 2.0
    alpha: float = 0.5
    output: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    hard: Loss = field(default_factory=CrossEntropy)
    axis: int | None = None

    skips = ("softmax", "log_softmax")

    def __post_init__(self) -> None:
        if checks.number("distill: temperature", self.temperature) == 0.0:
            raise InputError("distill: temperature is 0; expected more")
        if checks.number("distill: alpha", self.alpha) > 1.0:
            raise InputError(f"distill: alpha is {self.alpha}; expected a number from 0 to 1")
        checks.optional("distill: output", self.output, str)
        checks.instance("distill: hard", self.hard, Loss)
        model = self.teacher if isinstance(self.teacher, Model) else load(checks.path("distill: teacher", self.teacher))
        unknown = [name for name in checks.mapping("distill: inputs", self.inputs) if name not in model.inputs]
        if unknown or model.forms:
            raise InputError(
                f"distill: the teacher's inputs are {', '.join(model.inputs)}, of which {unknown} is none"
                if unknown
                else "distill: a teacher with sequences or optionals can't run within a loss"
            )
        object.__setattr__(self, "teacher", model)
        _ = self._graph  # says now what doesn't fit

    @property
    def _teacher(self) -> Model:
        assert isinstance(self.teacher, Model)
        return self.teacher

    @property
    def _hard(self) -> Loss:
        """The loss of the labels, at the class axis that was found."""
        return at_class_axis(self.hard, self.axis)

    @property
    def _labels(self) -> tuple[str, ...]:
        return keys_of(self.hard) if self.alpha < 1.0 else ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those of the hard loss."""
        return self.hard.metrics if self._labels else ()

    @property
    def keys(self) -> tuple[str, ...]:
        """What the hard loss reads, and what the teacher does."""
        return (*self._labels, *(self.inputs.get(name, name) for name in self._teacher.inputs))

    def target(self, output: TensorType, *read: TensorType) -> Target:
        """That of the hard loss, with the teacher's inputs behind."""
        labels, given = read[: len(self._labels)], read[len(self._labels) :]
        declared = self._teacher.inputs.values()
        inputs = tuple(TensorType(d.dtype, t.shape) for d, t in zip(declared, given, strict=True))
        if not labels:
            axis = axis_of_probabilities("distill", self.axis, output, output)
            return Target(output, inputs[0], axis, entries=inputs[1:])
        found: Target = self._hard.target(output, *labels)
        if found.axis is None:
            raise InputError("distill: the hard loss has no classes; the teacher's probabilities are those of classes")
        entries = (*found.entries, *inputs)
        return Target(output, found.labels, found.axis, found.ignored, found.allowed, entries)

    def compared(self, target: Target, output: Value, *read: Value) -> tuple[Value, Value]:
        """What the hard loss compares."""
        return compared(self._hard, target, (output,), read[: len(self._labels)])

    def elements(self, target: Target, output: Value, *read: Value) -> tuple[Value, Value]:
        """The loss of each distribution, times its weight in the hard loss, and that weight."""
        labels, inputs = read[: len(self._labels)], read[len(self._labels) :]
        z, axis = upcast(output), target.axis or 0
        followed = as_dtype(self._followed(inputs, output), z.type.dtype)
        if not labels:
            loss = self._soft(z, followed, axis)
            return loss, ones(loss)
        hard, weight = self._hard.elements(target, output, *labels)
        counted = beside(ops.logical_not(ops.equal(weight, 0.0)), z.type, axis)
        z, followed = (ops.where(counted, v, zero(v)) for v in (z, followed))  # the rest may be infinite or NaN
        soft = ops.mul(ops.mul(self._soft(z, followed, axis), weight), self.alpha)
        return ops.add(soft, ops.mul(hard, 1.0 - self.alpha)), weight

    def _soft(self, z: Value, followed: Value, axis: int) -> Value:
        z, followed = (ops.log_softmax(ops.div(v, self.temperature), axis=axis) for v in (z, followed))
        loss: Value = ops.mul(divergence(followed, z, axis, logarithms=True), self.temperature**2)
        return loss

    def _followed(self, inputs: tuple[Value, ...], output: Value) -> Value:
        """The teacher's logits for these inputs; its nodes are added to the graph."""
        graph = self._graph
        declared = self._teacher.inputs.values()
        given = [as_dtype(value, type_.dtype) for value, type_ in zip(inputs, declared, strict=True)]
        sizes = sizes_of_shapes(graph.inputs, [v.type.sizes for v in given])
        bound = bind(graph, sizes, registry_of(None).reference_kernels)
        assert output.builder is not None
        found = inline(output.builder, bound, given)[bound.outputs[_LOGITS]]
        if not alike(found.type.shape, output.type.shape):
            raise InputError(f"distill: the teacher gives {found.type} and the model {output.type}; expected one shape")
        return found

    @functools.cached_property
    def _graph(self) -> Graph:
        """The teacher's graph up to what is followed, with its data."""
        graph = self._teacher.graph_with_data()
        if self.output is None and len(graph.outputs) > 1:
            raise InputError(
                f"distill: the teacher has several outputs, {', '.join(graph.outputs)}; choose with output="
            )
        name = self.output or next(iter(graph.outputs))
        value = graph.outputs[name] if name in graph.outputs else graph.find(name)
        inner = before(graph, value, self.skips)
        return eliminate_dead_code(dataclasses.replace(graph, outputs={_LOGITS: inner[1] if inner else value}))
