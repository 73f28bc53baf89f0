"""Metrics of all samples at once as formulas in float64, written by themselves."""

from __future__ import annotations

import random as standard
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dataflow import metrics

from .loss_cases import Case, log_softmax, sigmoid
from .making import Array

Metric = tuple[Any, Callable[[Array, Array], Any]]
BINS = 7  # of which no likely confidence is a border
FIGURES: Mapping[str, tuple[Callable[..., Any], Callable[[Array, Array, Array], Array]]] = {
    "precision": (metrics.Precision, lambda right, found, wanted: ratio(right, found)),
    "recall": (metrics.Recall, lambda right, found, wanted: ratio(right, wanted)),
    "f1": (metrics.F1, lambda right, found, wanted: ratio(2 * right, found + wanted)),
    "iou": (metrics.IoU, lambda right, found, wanted: ratio(right, found + wanted - right)),
}


def ratio(upper: Array, lower: Array) -> Array:
    """A quotient, 0 where the divisor is."""
    return np.where(lower == 0, 0.0, upper / np.where(lower == 0, 1.0, lower))


def chosen(case: Case, random: standard.Random) -> list[Metric]:
    """Some metrics that fit a loss, each with its formula of values and labels."""
    if not case.entries or not next(iter(case.entries)).startswith("labels"):
        return []
    z = next(iter(case.outputs.values())).astype(np.float32)
    finite = bool(np.isfinite(z).all())
    apart = (
        finite and np.ptp(z) < 20 and len(np.unique(z)) == z.size
    )  # what is equal in one order may not be in another
    if case.axis is not None:
        found = of_classes(case.axis, case.ignored, random, areas=apart)
    elif case.behind == ("sigmoid",):
        found = of_columns(random) if finite else []
    else:
        found = OF_NUMBERS if case.numbers else []
    return random.sample(found, random.randint(0, len(found)))


# ---- of class numbers ----------------------------------------------------------------------------------


def of_classes(axis: int, ignored: int, random: standard.Random, *, areas: bool) -> list[Metric]:
    """Metrics of logits with classes on an axis."""

    def rows(z: Array, y: Array) -> tuple[Array, Array]:
        z = np.moveaxis(z, axis, -1).reshape(-1, z.shape[axis])
        return z[y.ravel() != ignored], y.ravel()[y.ravel() != ignored].astype(np.int64)

    def of(formula: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Any]:
        return lambda z, y: formula(*rows(z, y))

    name = random.choice([*FIGURES])
    average: Any = random.choice((None, "micro", "macro", "weighted", "each"))
    return [
        (metrics.Accuracy(), of(lambda z, y: _mean(z.argmax(1) == y))),
        (metrics.TopK(2), of(lambda z, y: _mean((np.argsort(-z, 1, kind="stable")[:, :2] == y[:, None]).any(1)))),
        (metrics.Perplexity(), of(lambda z, y: np.exp(-_mean(_own(log_softmax(z, 1), y))))),
        (metrics.Confusion(), of(_confusion)),
        (metrics.Matthews(), of(_matthews)),
        (metrics.CalibrationError(BINS), of(_class_calibration)),
        *(
            [
                (metrics.ROCAUC(), of(lambda z, y: _areas(z, y, _roc))),
                (metrics.PRAUC(), of(lambda z, y: _areas(z, y, _precision_recall))),
            ]
            if areas
            else []
        ),
        (FIGURES[name][0](average), of(lambda z, y: _averaged(_confusion(z, y), name, average or "macro"))),
    ]


def _own(z: Array, y: Array) -> Array:
    return np.take_along_axis(z, y[:, None], 1)


def _mean(a: Array) -> Any:
    return a.mean() if a.size else np.nan


def _confusion(z: Array, y: Array) -> Array:
    found = np.zeros((z.shape[1], z.shape[1]))
    np.add.at(found, (y, z.argmax(1) if len(z) else y), 1)
    return found


def _averaged(matrix: Array, name: str, average: str) -> Any:
    counts = np.diag(matrix), matrix.sum(0), matrix.sum(1)
    figure = FIGURES[name][1]
    each = figure(*counts)
    if average == "micro":
        return figure(*(c.sum() for c in counts))
    if average == "weighted":
        return ratio((each * counts[2]).sum(), counts[2].sum())
    if average == "macro":
        occurs = counts[1] + counts[2] > 0
        return each[occurs].mean() if occurs.any() else 0.0
    return each[min(1, len(each) - 1)] if average == "binary" else each


def _matthews(z: Array, y: Array) -> Any:
    """The correlation of indicators of classes."""
    if not len(y):
        return 0.0
    indicators = [np.eye(z.shape[1])[v] for v in (z.argmax(1), y)]
    a, b = (v - v.mean(0) for v in indicators)
    lower = np.sqrt((a * a).sum() * (b * b).sum())
    return (a * b).sum() / lower if lower > 1e-9 else 0.0


def _calibration(confidence: Array, right: Array) -> Any:
    at = np.minimum(np.floor(confidence * BINS), BINS - 1)
    gaps = [abs((1.0 * right[at == b] - confidence[at == b]).sum()) for b in range(BINS)]
    return sum(gaps) / len(at) if len(at) else 0.0


def _class_calibration(z: Array, y: Array) -> Any:
    if not len(y):
        return 0.0
    return _calibration(np.exp(log_softmax(z, 1)).max(1), z.argmax(1) == y)


def _column_calibration(z: Array, t: Array) -> Any:
    return _calibration(sigmoid(abs(z)).ravel(), ((z > 0) == t).ravel())


def _areas(z: Array, y: Array, area: Callable[[Array, Array], Any]) -> Any:
    p = np.exp(log_softmax(z, 1)) if len(z) else z
    columns = range(1 if z.shape[1] == 2 else 0, z.shape[1])
    found = [area(p[:, c], y == c) for c in columns if 0 < (y == c).sum() < len(y)]
    return np.mean(found) if found else np.nan


def _roc(score: Array, positive: Array) -> Any:
    yes, no = score[positive][:, None], score[~positive]
    return np.mean((yes > no) + 0.5 * (yes == no))


def _precision_recall(score: Array, positive: Array) -> Any:
    found, before = 0.0, 0.0
    for threshold in sorted(set(score), reverse=True):
        shown = score >= threshold
        recall = (shown & positive).sum() / positive.sum()
        found += (recall - before) * (shown & positive).sum() / shown.sum()
        before = recall
    return found


# ---- of yes or no, and of numbers ----------------------------------------------------------------------


def of_columns(random: standard.Random) -> list[Metric]:
    """Metrics of yes-or-no logits: axis 1 has the columns; labels that are NaN don't count."""

    def columns(z: Array, t: Array) -> tuple[Array, Array]:
        z, t = (v.reshape(len(v), v.shape[1] if v.ndim > 1 else 1, -1) for v in (z, t.reshape(z.shape)))
        return tuple(np.moveaxis(v, 1, -1).reshape(-1, v.shape[1]) for v in (z, t))  # type: ignore[return-value]

    def of(formula: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Any]:
        return lambda z, t: formula(*columns(z, t))

    def together(formula: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Any]:
        return of(lambda z, t: formula(z[~np.isnan(t)], t[~np.isnan(t)] > 0.5))

    def averaged(z: Array, t: Array) -> Any:
        shown, t, average = (z > 0) & ~np.isnan(t), t > 0.5, given or ("binary" if z.shape[1] == 1 else "macro")
        counts = [(shown & t).sum(0), shown.sum(0), t.sum(0)]
        if average == "micro":
            return FIGURES[name][1](*(c.sum() for c in counts))
        each = FIGURES[name][1](*counts)
        return each if average == "each" else each[-1] if average == "binary" else each.mean()

    def matthews(z: Array, t: Array) -> Any:
        both = np.stack([-1.0 * (z.ravel() > 0), 1.0 * (z.ravel() > 0)], 1)
        return _matthews(both, t.ravel().astype(np.int64))

    def areas(area: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Any]:
        def of_each(z: Array, t: Array) -> Any:
            there = [(a[~np.isnan(b)], b[~np.isnan(b)] > 0.5) for a, b in zip(z.T, t.T, strict=True)]
            found = [area(a, b) for a, b in there if 0 < b.sum() < len(b)]
            return np.mean(found) if found else np.nan

        return of(of_each)

    name = random.choice([*FIGURES])
    given: Any = random.choice((None, "micro", "macro", "each"))
    return [
        (metrics.Accuracy(), together(lambda z, t: _mean((z > 0) == t))),
        (metrics.Matthews(), together(matthews)),
        (metrics.CalibrationError(BINS), together(_column_calibration)),
        (metrics.ROCAUC(), areas(_roc)),
        (metrics.PRAUC(), areas(_precision_recall)),
        (FIGURES[name][0](given), of(averaged)),
    ]  # fmt: skip


def _r2(y: Array, t: Array) -> Any:
    y, t = (v.reshape(len(y), -1) for v in (y, t))
    columns = [(a[~np.isnan(b)], b[~np.isnan(b)]) for a, b in zip(y.T, t.T, strict=True)]
    return _mean(np.array([_r2_of(a[:, None], b[:, None]) for a, b in columns if len(b) > 1]))


def _r2_of(y: Array, t: Array) -> Any:
    apart, around = ((y - t) ** 2).sum(0), ((t - t.mean(0)) ** 2).sum(0)
    level = (t == t[:1]).all(0)
    return np.mean(np.where(level, np.where(apart == 0, 1.0, 0.0), 1 - apart / np.where(level, 1.0, around)))


def _of_numbers(formula: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Any]:
    return lambda y, t: formula(y, t.reshape(y.shape).astype(np.float64))


def _over_those_that_count(formula: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Any]:
    return _of_numbers(lambda y, t: formula(y[~np.isnan(t)], t[~np.isnan(t)]) if (t == t).any() else np.nan)


OF_NUMBERS: list[Metric] = [
    (metrics.MeanAbsoluteError(), _over_those_that_count(lambda y, t: np.abs(y - t).mean())),
    (metrics.RMSE(), _over_those_that_count(lambda y, t: np.sqrt(((y - t) ** 2).mean()))),
    (metrics.R2(), _of_numbers(_r2)),
]
