"""What a training run reported."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..host import checks
from .watch import charts
from .watch.clock import FIGURES

Row = Mapping[str, float]
_NOT_DRAWN = ("epoch", "step", *FIGURES)


class History(Mapping[str, list[float]]):
    """Figures of a run: a mapping from name to one number per epoch.

    Attributes:
        epochs: dict of lists, one number per epoch; nan where a figure is not known.
        steps: dict of lists, one number per optimizer step.
        kept: the position of the epoch whose weights the model has: the last, or the best where an early stop
            restored it.
    """

    def __init__(self) -> None:
        self.epochs: dict[str, list[float]] = {}
        self.steps: dict[str, list[float]] = {}
        self.kept = -1

    def __getitem__(self, name: str) -> list[float]:
        return self.epochs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.epochs)

    def __len__(self) -> int:
        return len(self.epochs)

    def __repr__(self) -> str:
        return f"<History of {_length(self.epochs)} epochs: {', '.join(self.epochs)}>"

    def add_epoch(self, row: Row) -> None:
        """Appends an epoch's figures."""
        _append(self.epochs, row)

    def add_step(self, row: Row) -> None:
        """Appends an optimizer step's figures."""
        _append(self.steps, row)

    def save_csv(self, path: str | Path, *, steps: bool = False) -> None:
        """Writes a line per epoch, or per optimizer step, below the names."""
        table = self.steps if steps else self.epochs
        with Path(path).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))

    def text(self, *, steps: bool = False, names: Sequence[str] | None = None) -> str:
        """Curves of block characters, a line per figure; those of ``names``, or all that are no errors or times."""
        table = self.steps if steps else self.epochs
        return charts.text(table, _drawn(table, names))

    def plot(self, path: str | Path | None = None, *, steps: bool = False, names: Sequence[str] | None = None) -> Any:
        """A figure of matplotlib with a chart per figure of the run.

        Args:
            path: of a picture that is written; its suffix says the format.
            steps: figures of optimizer steps, not of epochs.
            names: which ones; by default all that are no errors or times.

        Raises:
            InputError: matplotlib isn't installed, or there is no figure of a name.
        """
        charts.require_matplotlib("a chart" if path is None else path)
        table = self.steps if steps else self.epochs
        found = charts.picture(table, _drawn(table, names), "step" if steps else "epoch")
        if path is not None:
            found.savefig(path)
        return found

    def state(self) -> dict[str, Any]:
        """What JSON can hold of it."""
        return {"epochs": self.epochs, "steps": self.steps}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> History:
        """The history that ``state`` was made from."""
        history = cls()
        history.epochs = {name: list(column) for name, column in state["epochs"].items()}
        history.steps = {name: list(column) for name, column in state["steps"].items()}
        return history


def _drawn(table: Mapping[str, list[float]], names: Sequence[str] | None) -> list[str]:
    """The names of the figures that are drawn."""
    if names is None:
        return [name for name in table if not name.endswith("_error") and name not in _NOT_DRAWN]
    unknown = [name for name in checks.texts("names", names) if name not in table]
    if unknown:
        raise InputError(f"there is no figure {unknown[0]!r}; there are {', '.join(table)}")
    return list(checks.texts("names", names))


def _length(table: Mapping[str, list[float]]) -> int:
    return max((len(column) for column in table.values()), default=0)


def _append(table: dict[str, list[float]], row: Row) -> None:
    length = _length(table)
    for name in row:
        table.setdefault(name, [math.nan] * length)
    for name, column in table.items():
        column.append(float(row.get(name, math.nan)))
