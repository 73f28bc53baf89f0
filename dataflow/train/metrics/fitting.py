"""Which metrics a loss's labels have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...errors import InputError
from ..losses.loss import Loss, compares_numbers
from . import METRICS


def fits(metric: Any, loss: Loss) -> bool:
    """Whether a metric compares what a loss does: classes, of which yes or no are two, or numbers. Most say which."""
    compares = getattr(metric, "compares", None)
    classes = any(getattr(METRICS.get(str(name)), "compares", None) == "classes" for name in loss.metrics)
    if compares == "classes":
        return classes or not compares_numbers(loss)
    return compares != "numbers" or not classes or compares_numbers(loss)


def refuse_unfit(metrics: Iterable[Any], used: Iterable[Any]) -> None:
    """Raises InputError where a metric is none of those that fit a loss."""
    known = {id(metric) for metric in used}
    for metric in metrics:
        if id(metric) not in known:
            if metric.compares == "classes":
                raise InputError(
                    f"metric {metric.name!r} needs classes, or yes and no; with a loss of numbers use 'mae', 'r2' or "
                    "'rmse', of yes and no the loss 'binary_cross_entropy'"
                )
            raise InputError(f"metric {metric.name!r} compares numbers; with class labels use 'accuracy' or 'top5'")
