"""What a training run tells its callbacks, and stopping early."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import InputError
from ..host.checks import number, text
from ..host.numbers import integer
from .changing import Changing


@dataclass(slots=True)
class Event:
    """Something that happened.

    Attributes:
        kind: ``step`` after an optimizer step, ``epoch`` after a pass over the data and its validation, ``end``.
        trainer: whose run it is; its weights may be read, its ``lr_factor`` set, parameters frozen and unfrozen.
        step: optimizer steps done.
        epoch: passes done, from 1 at the first ``epoch`` event.
        metrics: figures by name: of the step, or of the epoch with ``val_`` before those of the validation.
        stopping: whether somebody called ``stop``.
        batch_size: what somebody gave ``use_batch_size``.
    """

    kind: Literal["step", "epoch", "end"]
    trainer: Changing
    step: int
    epoch: int
    metrics: Mapping[str, float]
    stopping: bool = field(default=False, init=False)
    batch_size: int | None = field(default=None, init=False)

    def stop(self) -> None:
        """Ends the run after this event."""
        self.stopping = True

    def use_batch_size(self, batch_size: int) -> None:
        """From the next epoch on micro-batches have so many samples; schedules still count optimizer steps."""
        self.batch_size = integer("use_batch_size", batch_size)


Callback = Callable[[Event], Any]


@dataclass(frozen=True)
class EarlyStop:
    """Ends a run when a figure has not become better for some epochs.

    Attributes:
        monitor: name of the figure.
        patience: epochs without a better one before the run ends.
        min_delta: what counts as better.
        mode: ``min`` or ``max``; found from the name when None (max for accuracy and top-k).
        restore_best: end with the weights of the best epoch.
    """

    monitor: str = "val_loss"
    patience: int = 3
    min_delta: float = 0.0
    mode: Literal["min", "max"] | None = None
    restore_best: bool = True

    def __post_init__(self) -> None:
        integer("EarlyStop: patience", self.patience)
        number("EarlyStop: min_delta", self.min_delta)
        text("EarlyStop: monitor", self.monitor)

    def better(self, new: float, best: float | None) -> bool:
        """Whether ``new`` is better than ``best``; the first one is."""
        if math.isnan(new):
            return False
        if best is None:
            return True
        name = self.monitor.removeprefix("val_")
        largest = self.mode == "max" or (self.mode is None and (name == "accuracy" or name.startswith("top")))
        return new > best + self.min_delta if largest else new < best - self.min_delta

    def figure(self, metrics: Mapping[str, float]) -> float:
        """The monitored one; raises InputError with the known names."""
        if self.monitor not in metrics:
            hint = "; give validation= or val_split=" if self.monitor.startswith("val_") else ""
            raise InputError(f"EarlyStop: there is no figure {self.monitor!r}; there are {', '.join(metrics)}{hint}")
        return metrics[self.monitor]
