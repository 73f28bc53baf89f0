"""Areas under curves, exact: over the order of all scores of an evaluation."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ...errors import InputError
from ...ir.types import Array
from ...ir.value import Value
from ..losses.loss import Target
from .rows import probabilities, scores


@dataclass
class Ranking:
    """Keeps all scores and labels; of classes each against the rest, of columns each by itself, then their mean.

    The mean is over those of which there are both kinds of labels, nan where there are none.
    """

    name: ClassVar[str]
    held: list[tuple[Array, Array]] = field(default_factory=list, init=False, repr=False)

    def values(self, target: Target, output: Value, labels: Value) -> tuple[Value, ...]:
        """Logits and labels."""
        return scores(target, output, labels)

    def update(self, logits: Array, labels: Array) -> None:
        """Keeps a batch: 4 bytes per class and label, 8 per label.

        Raises:
            InputError: labels of columns are neither yes nor no, nor shares between.
        """
        if labels.ndim == 2:
            others = labels[(labels != -1) & ((labels < 0) | (labels > 1))]
            if others.size:
                raise InputError(
                    f"metric {self.name!r}: a label is {others[0]:g}; expected 0 to 1 (-1 or 1): an order of scores is "
                    "compared with yes, above a half, and no; name metrics of numbers, e.g. metrics=['mae', 'r2']"
                )
        self.held.append((logits.copy(), labels.copy()))

    def area(self, score: Array, positive: Array) -> float:
        """The area for scores (N,) and whether each is positive."""
        raise NotImplementedError

    def result(self) -> float:
        """The area, or the mean of areas."""
        if not self.held:
            return math.nan
        logits, labels = (np.concatenate(arrays) for arrays in zip(*self.held, strict=True))
        if np.isnan(logits).any():
            return math.nan
        if labels.ndim == 2:
            there = ~np.isnan(labels.T)  # those that count
            columns = [(z[own], t[own] > 0.5) for z, t, own in zip(logits.T, labels.T, there, strict=True)]
        else:
            shares, labels = probabilities(logits[labels >= 0]), labels[labels >= 0]
            last = shares.shape[1] == 2  # then both classes have the same area under ROC; that of class 1 is meant
            columns = [(shares[:, c], labels == c) for c in range(1 if last else 0, shares.shape[1])]
        areas = [self.area(score, positive) for score, positive in columns if positive.any() and not positive.all()]
        return float(np.mean(areas)) if areas else math.nan


@dataclass
class ROCAUC(Ranking):
    """The area under the ROC curve: how likely a positive has a larger score than a negative, ties half."""

    name = "roc_auc"
    mode = "max"

    def area(self, score: Array, positive: Array) -> float:
        """Mann and Whitney's statistic / (positives * negatives)."""
        _, index, counts = np.unique(score, return_inverse=True, return_counts=True)
        ranks = np.cumsum(counts) - (counts - 1) / 2.0  # means where scores are equal
        yes = int(positive.sum())
        return float((ranks[index][positive].sum() - yes * (yes + 1) / 2.0) / (yes * (len(score) - yes)))


@dataclass
class PRAUC(Ranking):
    """Average precision: the area under the curve of precision over recall, in steps as in scikit-learn."""

    name = "pr_auc"
    mode = "max"

    def area(self, score: Array, positive: Array) -> float:
        """The sum of precision times the gain of recall, threshold by threshold."""
        order = np.argsort(-score, kind="stable")
        ordered, hits = score[order], np.cumsum(positive[order])
        ends = np.append(np.flatnonzero(ordered[1:] != ordered[:-1]), len(ordered) - 1)
        gains = np.diff(hits[ends], prepend=0)
        return float((gains * hits[ends] / (ends + 1.0)).sum() / hits[-1])
