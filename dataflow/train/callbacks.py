"""What a training run tells its callbacks, and stopping early."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from ..errors import InputError
from ..host.checks import number, text
from ..host.numbers import integer
from .changing import Changing
from .metrics import METRICS
from .metrics.metric import mode_of
from .schedules.plateau import Plateau

_Rule = TypeVar("_Rule")


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
        mode: ``min`` or ``max``; None: as the metric says, and less of a loss.
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
        mode = directed(self, {}, "EarlyStop").mode
        return new > best + self.min_delta if mode == "max" else new < best - self.min_delta

    def figure(self, metrics: Mapping[str, float]) -> float:
        """The monitored one; raises InputError with the known names."""
        if self.monitor not in metrics:
            hint = "; give validation= or val_split=" if self.monitor.startswith("val_") else ""
            raise InputError(f"EarlyStop: there is no figure {self.monitor!r}; there are {', '.join(metrics)}{hint}")
        return metrics[self.monitor]


def directed(rule: _Rule, modes: Mapping[str, Literal["min", "max"] | None], what: str) -> _Rule:
    """An EarlyStop or a Plateau with a ``mode`` where it has None.

    Args:
        rule: anything else is returned as it is.
        modes: by name of a metric whether less or more of it is better; None: it doesn't say. Those that are missing
            are the built-in ones of these names, or losses, of which less is better.
        what: of errors.

    Raises:
        InputError: the metric doesn't say.
    """
    if not isinstance(rule, (EarlyStop, Plateau)) or rule.mode is not None:
        return rule
    monitor = rule.monitor
    name = monitor if monitor in modes else monitor.removeprefix("val_")
    kind = "top5" if name.startswith("top") else name
    found = modes[name] if name in modes else mode_of(METRICS[kind]) if kind in METRICS else "min"
    if found is None:
        raise InputError(
            f"{what}: the metric {name!r} doesn't say whether less or more of it is better; give {what}(mode='min') or "
            "'max', or the metric an attribute mode of one of these"
        )
    twin = copy.copy(rule)  # of a class of one's own too, whatever it is made with
    object.__setattr__(twin, "mode", found)
    return twin
