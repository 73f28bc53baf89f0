"""A sweep of learning rates (Smith 2017): the loss at exponentially growing ones, and which one falls most steeply.

Training stays where it was: parameters, the optimizer's state and statistics come back.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..host import checks
from ..host.numbers import integer
from .changing import Changing
from .data.batch import Batch
from .data.dataset import Dataset
from .interrupts import InterruptsHeld
from .metrics import RunningMean
from .nonfinite import NonFiniteLoss

_SMOOTHING = 0.9  # share of the running mean that stays; corrected for the first steps as Adam's means are
_DIVERGED = 4.0  # times the least mean loss


@dataclass(frozen=True, slots=True)
class RateCurve:
    """What a sweep found.

    Attributes:
        rates: learning rates, growing.
        losses: before the step at each rate.
        smoothed: means of neighbouring losses.
        suggestion: the rate at which the mean loss falls most steeply before it is least; None where it never falls.
    """

    rates: Sequence[float]
    losses: Sequence[float]
    smoothed: Sequence[float]
    suggestion: float | None

    def __str__(self) -> str:
        return "\n".join([*_plotted(self.rates, self.smoothed), _described(self)])


def find_rate(
    trainer: Changing, data: Dataset, lowest: float, highest: float, steps: int, batch_size: int
) -> RateCurve:
    """The losses of ``steps`` optimizer steps at rates from ``lowest`` to ``highest``.

    It ends sooner where the mean loss is four times the least, or a loss isn't finite.

    Args:
        trainer: whose parameters; afterwards as before.
        data: gives the batches, epoch after epoch.
        lowest: the first rate, above 0.
        highest: the last one.
        steps: number of optimizer steps, at least 10.
        batch_size: samples per micro-batch.

    Raises:
        InputError: arguments that don't fit, or micro-batches wait for the optimizer.
    """
    lowest, highest = checks.number("find_lr: lowest", lowest), checks.number("find_lr: highest", highest)
    integer("find_lr: steps", steps, 10)
    if not 0.0 < lowest < highest:
        raise InputError(f"find_lr: rates go from {lowest:g} to {highest:g}; expected 0 < lowest < highest")
    if trainer.optimizer.lr == 0.0:
        raise InputError("find_lr: the optimizer's lr is 0; rates of groups are relative to it, so give one above 0")
    trainer.check_idle("find_lr")
    if trainer.pending:
        raise InputError(f"find_lr: {trainer.pending} micro-batches of step() wait for the optimizer; call update()")
    growth = math.log(highest / lowest) / (steps - 1)
    with trainer.model.lock, _restored(trainer):
        begun = trainer.steps
        base = trainer.optimizer.lr * trainer.lr_factor
        trainer.schedule = lambda step: lowest * math.exp(growth * (step - begun)) / base
        losses = _losses(trainer, data, steps, batch_size)
    return _curve([lowest * math.exp(growth * step) for step in range(len(losses))], losses)


@contextlib.contextmanager
def _restored(trainer: Changing) -> Iterator[None]:
    """A context after which training stands where it stood."""
    state, steps, schedule = trainer.programs.state(), trainer.steps, trainer.schedule
    scale = {} if trainer.scaling is None else trainer.scaling.state()
    try:
        yield
    finally:
        with InterruptsHeld():
            trainer.discard()
            trainer.programs.load_state(state)
            trainer.steps, trainer.schedule = steps, schedule
            if trainer.scaling is not None:
                trainer.scaling.load_state(scale)


def _losses(trainer: Changing, data: Dataset, steps: int, batch_size: int) -> list[float]:
    losses: list[float] = []
    mean, least = 0.0, math.inf
    with contextlib.closing(_batches(trainer, data, batch_size)) as batches:
        for batch in batches:
            try:
                with trainer.model.lock:
                    trainer.micro_batch(batch, {"loss": RunningMean()})
                    row = trainer.update() if trainer.pending >= trainer.accumulate else {}
            except NonFiniteLoss:
                break
            if not row:
                continue
            losses.append(row["loss"])
            mean = _SMOOTHING * mean + (1.0 - _SMOOTHING) * row["loss"]
            corrected = mean / (1.0 - _SMOOTHING ** len(losses))
            least = min(least, corrected)
            if len(losses) == steps or (len(losses) >= 10 and corrected > _DIVERGED * least > 0.0):
                break
    return losses


def _batches(trainer: Changing, data: Dataset, batch_size: int) -> Generator[Batch]:
    """Batches of epoch after epoch."""
    for epoch in range(1 << 62):
        count = 0
        made = data.batches(batch_size, seed=trainer.seed, epoch=epoch, shuffle=True, training=True)
        with contextlib.closing(made):
            for batch in made:
                count += 1
                yield batch
        if not count:
            raise InputError(f"find_lr: epoch {epoch + 1} of the data had no batches")


def _curve(rates: Sequence[float], losses: Sequence[float]) -> RateCurve:
    # Means over as many steps before as behind: a running mean would shift the slope toward larger rates.
    reach = max(1, len(losses) // 20)
    smoothed = []
    for index in range(len(losses)):
        near = min(reach, index, len(losses) - 1 - index)
        smoothed.append(float(np.mean(losses[index - near : index + near + 1])))
    suggestion = None
    least = int(np.argmin(smoothed)) if smoothed else 0
    if least > 2 * reach:  # at both ends few losses are averaged, and behind the least one it has begun to diverge
        slopes = np.gradient(np.array(smoothed[: least + 1]))[reach:-1]
        steepest = int(np.argmin(slopes))
        suggestion = rates[reach + steepest] if slopes[steepest] < 0.0 else None
    return RateCurve(rates, list(losses), smoothed, suggestion)


def _described(curve: RateCurve) -> str:
    if curve.suggestion is None:
        return "no rate suggested: the loss never falls; look at the data and the loss, or sweep other rates"
    return f"suggested learning rate: {curve.suggestion:.2g} (the loss falls most steeply there)"


def _plotted(rates: Sequence[float], losses: Sequence[float], rows: int = 12, columns: int = 60) -> list[str]:
    """The lines of a drawing: losses upward, rates to the right on a scale of powers."""
    if not losses:
        return ["no loss was finite"]
    low, high = min(losses), max(losses)
    columns = min(columns, len(losses))
    grid = [[" "] * columns for _ in range(rows)]
    for column in range(columns):
        loss = losses[round(column * (len(losses) - 1) / max(1, columns - 1))]
        grid[round((high - loss) / (high - low) * (rows - 1)) if high > low else rows - 1][column] = "•"
    labels = [f"{high:.4g}", *[""] * (rows - 2), f"{low:.4g}"]
    width = max(map(len, labels))
    lines = [f"{label:>{width}} │{''.join(cells)}" for label, cells in zip(labels, grid, strict=True)]
    first, last = f"{rates[0]:.1e}", f"{rates[-1]:.1e}"
    return [*lines, f"{'':>{width}} └{'─' * columns}", f"{'':>{width}}  {first}{last:>{max(1, columns - len(first))}}"]
