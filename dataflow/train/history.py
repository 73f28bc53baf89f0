"""What a training run reported."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Row = Mapping[str, float]


class History(Mapping[str, list[float]]):
    """Figures of a run: a mapping from name to one number per epoch.

    Attributes:
        epochs: dict of lists, one number per epoch; nan where a figure is not known.
        steps: dict of lists, one number per optimizer step.
    """

    def __init__(self) -> None:
        self.epochs: dict[str, list[float]] = {}
        self.steps: dict[str, list[float]] = {}

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


def _length(table: Mapping[str, list[float]]) -> int:
    return max((len(column) for column in table.values()), default=0)


def _append(table: dict[str, list[float]], row: Row) -> None:
    length = _length(table)
    for name in row:
        table.setdefault(name, [math.nan] * length)
    for name, column in table.items():
        column.append(float(row.get(name, math.nan)))
