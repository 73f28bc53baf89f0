"""Callbacks that write what a run says to files: TensorBoard, CSV, lines of JSON."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from ...host import checks
from ...host.numbers import integer
from ..callbacks import Event
from .event_file import EventFile, Histogram
from .tensors import tensor_statistics

_FLOAT_MAX = float(np.finfo(np.float32).max)


class TensorBoard:
    """Writes event files that TensorBoard shows: figures of steps under ``step/``, of epochs under ``epoch/``.

    Args:
        folder: of the run; each ``fit`` adds a file.
        every: optimizer steps between the steps that are written.
        histograms: of the trained parameters and their last gradients after each epoch, too.
    """

    def __init__(self, folder: str | Path, *, every: int = 1, histograms: bool = False) -> None:
        self._folder = checks.writable_folder("TensorBoard: folder", folder)
        self._every = integer("TensorBoard: every", every)
        self._histograms = bool(checks.instance("TensorBoard: histograms", histograms, bool))
        self._file: EventFile | None = None

    @property
    def reads_gradients(self) -> bool:
        """Whether it reads the gradients of the last step after an epoch."""
        return self._histograms

    def __call__(self, event: Event) -> None:
        """Writes an event."""
        if self._file is None:
            with checks.writing("TensorBoard: folder", self._folder):
                self._file = EventFile(self._folder)
        if event.kind == "end":
            self._file = None
        elif event.kind == "epoch" or event.step % self._every == 0:
            # A float of 32 bits holds no more.
            numbers = {f"{event.kind}/{k}": v for k, v in event.metrics.items() if not _FLOAT_MAX < abs(v) < math.inf}
            found: dict[str, Histogram] = {}
            if self._histograms and event.kind == "epoch":
                for of in ("parameters", "gradients"):
                    made = tensor_statistics(event.trainer, of, "*", None)
                    found |= {f"{of}/{name}": statistics.histogram() for name, statistics in made.items()}
            self._file.add(event.step, numbers, found)


class CSV:
    """Writes a line per epoch, or per optimizer step, below the names.

    Args:
        path: of the file.
        every: ``epoch`` or ``step``.
        append: goes on with the file that is there, as a run that is resumed does.
    """

    def __init__(self, path: str | Path, *, every: Literal["epoch", "step"] = "epoch", append: bool = False) -> None:
        self._every = checks.text("CSV: every", every, ("epoch", "step"))
        self._path = checks.writable_file("CSV: path", path)
        self._names: list[str] = []
        if append and self._path.exists():
            with self._path.open(newline="", encoding="utf-8") as file:
                self._names = next(csv.reader(file), [])
        else:
            with checks.writing("CSV: path", self._path):
                self._path.write_text("")

    def __call__(self, event: Event) -> None:
        """Writes a line where the event is of the kind."""
        if event.kind != self._every:
            return
        row = {"step": event.step, "epoch": event.epoch, **event.metrics}
        new = [name for name in row if name not in self._names]
        if new:
            with self._path.open(newline="", encoding="utf-8") as file:
                before = list(csv.DictReader(file))
            self._names += new
            self._write("w", before, header=True)
        self._write("a", [row], header=False)

    def _write(self, mode: str, rows: Sequence[Mapping[str, object]], *, header: bool) -> None:
        with self._path.open(mode, newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._names)
            if header:
                writer.writeheader()
            writer.writerows(rows)


class JSONLines:
    """Writes a line of JSON per event.

    Args:
        path: of the file.
        append: goes on with the file that is there, as a run that is resumed does.
    """

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self._path = checks.writable_file("JSONLines: path", path)
        if not append:
            with checks.writing("JSONLines: path", self._path):
                self._path.write_text("")

    def __call__(self, event: Event) -> None:
        """Writes a line."""
        figures = {k: v if math.isfinite(v) else None for k, v in event.metrics.items()}
        line = {"kind": event.kind, "step": event.step, "epoch": event.epoch, **figures}
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
