"""Curves of a run: as text, and as a picture through matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 40
Table = Mapping[str, Sequence[float]]


def sparkline(numbers: Sequence[float], width: int = _WIDTH) -> str:
    """A curve of block characters, at most ``width`` of them: each is the mean of as many numbers; nan is a space."""
    count = min(width, len(numbers))
    groups = [numbers[i * len(numbers) // count : (i + 1) * len(numbers) // count] for i in range(count)]
    means = [_mean([n for n in group if math.isfinite(n)]) for group in groups]
    known = [mean for mean in means if not math.isnan(mean)]
    least, most = min(known, default=0.0), max(known, default=0.0)
    scale = (len(_BLOCKS) - 1) / (most - least) if most > least else 0.0
    return "".join(" " if math.isnan(m) else _BLOCKS[round((m - least) * scale)] for m in means)


def text(table: Table, names: Sequence[str]) -> str:
    """A line per figure: its name, its curve, its first and last number."""
    longest = max(map(len, names), default=0)
    return "\n".join(
        f"{name:{longest}}  {sparkline(table[name])}  {table[name][0]:.4g} → {table[name][-1]:.4g}"
        for name in names
        if len(table[name])
    )


def require_matplotlib(path: str | Path) -> None:
    """Raises InputError where there is no matplotlib to draw ``path`` with."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise InputError(
            f"{path}: needs matplotlib to draw; pip install dataflow-engine[plot], or history.text() (--plot -) for "
            "curves as text"
        )


def picture(table: Table, names: Sequence[str], across: str) -> Any:
    """A figure of matplotlib with a chart per name; ``val_`` figures are in that of their name.

    Args:
        table: columns.
        names: of those that are drawn.
        across: name of the horizontal axis, which may be a column.
    """
    from matplotlib.figure import Figure

    charts = list(dict.fromkeys(name.removeprefix("val_") for name in names))
    figure = Figure(figsize=(6, 2.4 * max(1, len(charts))), layout="constrained")
    axes = figure.subplots(max(1, len(charts)), 1, squeeze=False)[:, 0]
    for name, axis in zip(charts, axes, strict=False):
        for label in (name, f"val_{name}"):
            if label in names:
                column = table[label]
                positions = table.get(across, range(1, len(column) + 1))
                axis.plot(positions, column, label=label, marker="." if len(column) < 30 else "")
                errors = table.get(f"{label}_error")
                if errors is not None and len(column) < 100:
                    low, high = ([c + sign * e for c, e in zip(column, errors, strict=True)] for sign in (-1, 1))
                    axis.fill_between(positions, low, high, alpha=0.2)
        axis.set_xlabel(across)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.legend()
        axis.grid(alpha=0.3)
    return figure


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan
