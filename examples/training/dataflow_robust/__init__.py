"""By name: loss ``fair``, metric ``within``, optimizer ``signum``, schedule ``harmonic``, callback ``best``."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dataflow import GraphBuilder, InputError, TensorType, Value, ops
from dataflow.plugin import Event, Named, Schedule, Target, hookimpl, pair, scalars, scaled, summed, toward


@dataclass(frozen=True)
class Fair:
    """Squares of small differences, absolute values of large ones: c^2 (|d| / c - log(1 + |d| / c)) (Fair 1974).

    Attributes:
        c: where the one passes into the other.
    """

    c: float = 1.0

    skips = ()  # ops at the model's end whose input the loss would read instead of their result
    metrics = ("within",)

    def target(self, output: TensorType, labels: TensorType) -> Target:
        """Values and labels of one shape."""
        if output.rank != labels.rank:
            raise InputError(f"fair: labels {labels} don't fit the output {output}; they must have its shape")
        return Target(output, TensorType(output.dtype, output.shape))

    def elements(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """The loss of each element, and its weight; sums of both over the batch give the mean."""
        y, t = pair(output, labels)
        distance = ops.mul(ops.abs(ops.sub(y, t)), 1.0 / self.c)
        loss = ops.mul(ops.sub(distance, ops.log(ops.add(distance, 1.0))), self.c**2)
        return loss, _ones(loss)


@dataclass(frozen=True)
class Within:
    """The fraction of outputs that are not further than ``distance`` from their labels."""

    distance: float = 0.5
    name = "within"
    fraction = True

    def sums(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """The number of such outputs, and of all."""
        y, t = pair(output, labels)
        return summed(ops.logical_not(ops.greater(ops.abs(ops.sub(y, t)), self.distance))), summed(_ones(y))


@dataclass(frozen=True)
class Signum:
    """Steps of one size along the sign of the mean gradient (Bernstein et al. 2018).

    Attributes:
        lr: the size of a step.
        weight_decay: fraction of a parameter taken off per step, times the rate.
        beta: share of the last mean in the next one.
        schedule: factor on ``lr`` by optimizer step.
    """

    lr: float = 1e-4
    weight_decay: float = 0.0
    beta: float = 0.9
    schedule: Schedule | str | None = None

    slots = ("mean",)  # a tensor of the parameter's shape, zero at first
    hyper_size = 2

    def hyper(self, step: int, lr: float) -> np.ndarray[Any, Any]:
        """What may differ from step to step: [lr, lr * weight_decay]."""
        return np.array([lr, lr * self.weight_decay])

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter and mean; the gradient is ``grad * scale``."""
        mean = toward(slots[0], scaled(grad, scale), 1.0 - self.beta)
        lr, decay = scalars(hyper, param)
        new = ops.sub(param, ops.add(ops.mul(ops.sign(mean), lr), ops.mul(param, decay)))
        return new, mean


def harmonic(step: int) -> float:
    """The factor 10 / (10 + t) after t steps."""
    return 10.0 / (10 + step)


@dataclass
class Best:
    """Logs every epoch that is better than all before it."""

    loss: float = field(default=math.inf)

    def __call__(self, event: Event) -> None:
        """Looks at the figures of an epoch."""
        loss = event.metrics.get("val_loss", event.metrics.get("loss", math.inf))
        if event.kind == "epoch" and loss < self.loss:
            self.loss = loss
            logging.getLogger("dataflow").info("epoch %d is the best so far: loss %.4g", event.epoch, loss)


def _ones(like: Value) -> Value:
    return ops.cast(ops.equal(like, like), to=like.type.dtype)


@hookimpl
def dataflow_losses() -> Iterable[Named]:
    """``df.Trainer(model, "fair")``, ``--loss fair``."""
    return [Named("fair", Fair)]


@hookimpl
def dataflow_metrics() -> Iterable[Named]:
    """``df.Trainer(model, metrics=["within"])``, ``--metric within``."""
    return [Named("within", Within)]


@hookimpl
def dataflow_optimizers() -> Iterable[Named]:
    """``df.Trainer(model, optimizer="signum")``, ``--optimizer signum --lr 1e-4``."""
    return [Named("signum", Signum)]


@hookimpl
def dataflow_schedules() -> Iterable[Named]:
    """``Signum(schedule="harmonic")``, ``--schedule harmonic``."""
    return [Named("harmonic", harmonic)]


@hookimpl
def dataflow_callbacks() -> Iterable[Named]:
    """``trainer.fit(data, callbacks=["best"])``, ``--callback best``."""
    return [Named("best", Best)]
