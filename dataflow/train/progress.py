"""What a person sees of a running fit: a live bar, or a line now and then; always on stderr."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol

_QUIET_SECONDS = 60.0


class Progress(Protocol):
    """Shows how far a run is."""

    def begin(self, epochs: int, batches: int | None, epoch: int, batch: int) -> None:
        """A run of so many epochs of so many batches starts at ``epoch`` and ``batch``."""

    def batch(self, epoch: int, batch: int, figures: Mapping[str, float]) -> None:
        """A batch is done; ``figures`` are those of the epoch so far."""

    def epoch(self, epoch: int, figures: Mapping[str, float]) -> None:
        """An epoch and its validation are done."""

    def end(self) -> None:
        """The run is over."""


def progress(shown: bool | None) -> Progress:
    """A bar in terminals and notebooks, lines elsewhere; nothing for False, a bar for True."""
    if shown is False:
        return Silent()
    if shown or sys.stderr.isatty() or _in_notebook():
        return Bar()
    return Lines()


def described(figures: Mapping[str, float], *, errors: bool = True) -> str:
    """Figures for people, each with its standard error where known: ``loss 0.4213 ± 0.0090``."""
    texts = []
    for name, figure in figures.items():
        if name.endswith("_error") or name in ("epoch", "lr", "seconds", "step"):
            continue
        error = figures.get(f"{name}_error", math.nan)
        if errors and math.isfinite(error):
            digits = min(max(0, 1 - math.floor(math.log10(error))), 9) if error else 4  # two digits of the error
            texts.append(f"{name} {figure:.{digits}f} ± {error:.{digits}f}")
        else:
            texts.append(f"{name} {figure:.4g}")
    return ", ".join(texts)


class Silent:
    """Shows nothing."""

    def begin(self, epochs: int, batches: int | None, epoch: int, batch: int) -> None:
        """Nothing."""

    def batch(self, epoch: int, batch: int, figures: Mapping[str, float]) -> None:
        """Nothing."""

    def epoch(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Lines:
    """A line per epoch, and between them at most one a minute."""

    def __init__(self) -> None:
        self._epochs, self._batches = 0, ""
        self._begun = self._said = time.monotonic()

    def begin(self, epochs: int, batches: int | None, epoch: int, batch: int) -> None:
        """Remembers how much there is to do."""
        self._epochs, self._batches = epochs, "" if batches is None else f"/{batches}"
        self._begun = self._said = time.monotonic()

    def batch(self, epoch: int, batch: int, figures: Mapping[str, float]) -> None:
        """A line, when the last was long ago."""
        if time.monotonic() - self._said >= _QUIET_SECONDS:
            self._say(f"epoch {epoch + 1}/{self._epochs} batch {batch}{self._batches}: {described(figures)}")

    def epoch(self, epoch: int, figures: Mapping[str, float]) -> None:
        """A line."""
        self._say(f"epoch {epoch}/{self._epochs}: {described(figures)}")

    def end(self) -> None:
        """Nothing more."""

    def _say(self, text: str) -> None:
        self._said = time.monotonic()
        sys.stderr.write(f"{text}, {_duration(self._said - self._begun)}\n")
        sys.stderr.flush()


class Bar:
    """A live bar with the figures, the time spent and the time left; a line above it per epoch."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Live

        columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}")]
        self._live = Live(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=Console(stderr=True))
        self._task: Any = None
        self._epochs, self._batches = 0, 0

    def begin(self, epochs: int, batches: int | None, epoch: int, batch: int) -> None:
        """Draws the bar."""
        self._epochs, self._batches = epochs, batches or 0
        total = epochs * batches if batches is not None else None
        done = epoch * self._batches + batch
        self._task = self._live.add_task(f"epoch {epoch + 1}/{epochs}", total=total, completed=done, figures="")
        self._live.start()

    def batch(self, epoch: int, batch: int, figures: Mapping[str, float]) -> None:
        """Moves the bar."""
        self._live.update(
            self._task,
            description=f"epoch {epoch + 1}/{self._epochs}",
            completed=epoch * self._batches + batch,
            figures=described(figures),
        )

    def epoch(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Prints the epoch's figures above the bar."""
        self._live.console.print(f"epoch {epoch}/{self._epochs}: {described(figures)}", highlight=False)

    def end(self) -> None:
        """Leaves the last state of the bar on the screen."""
        self._live.stop()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _in_notebook() -> bool:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
