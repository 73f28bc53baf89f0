"""Metrics of sequences of class numbers: shares of edits, of labels or of words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import ops
from ...errors import InputError
from ...host.numbers import integer
from ...ir.types import Array
from ...ir.value import Value
from ..losses.loss import Target
from ..losses.terms import class_numbers, filled, number


@dataclass
class CharacterErrorRate:
    """Insertions, deletions and replacements that make what was found the labels, by the number of labels.

    What is found is the likeliest class of each step; of CTC without repetitions and blanks. Of other losses, whose
    labels say the class of each step, steps whose label doesn't count are left out.
    """

    edits: int = field(default=0, init=False, repr=False)
    length: int = field(default=0, init=False, repr=False)

    name, compares = "cer", "classes"
    mode = "min"

    def values(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """Classes found (B, T) and labels (B, L); negative where there is none."""
        axis = 2 if target.blank is not None else target.axis
        if axis is None or output.type.rank != 3 or labels.type.rank != 2:
            raise InputError(
                f"metric {self.name!r} compares sequences of classes, labels (B, L); it fits the loss ctc, and "
                f"losses of the class of each step; got {labels.type}"
            )
        found, labels = ops.argmax(output, axis=axis, keepdims=0), class_numbers(labels)
        if target.blank is None:
            counts = ops.logical_not(ops.equal(labels, target.ignored))
            return ops.where(counts, found, number(found, -1)), ops.where(counts, labels, number(labels, -1))
        size, steps = found.type.shape
        first = filled(ops.slice(found, starts=(0, 0), stops=(size, 1), steps=(1, 1)), -1)
        before = ops.concat(first, ops.slice(found, starts=(0, 0), stops=(size, steps - 1), steps=(1, 1)), axis=1)
        left_out = ops.logical_or(ops.equal(found, before), ops.equal(found, number(found, target.blank)))
        return ops.where(left_out, number(found, -1), found), labels

    def update(self, found: Array, labels: Array) -> None:
        """Counts a batch in."""
        for row, wanted in zip(found, labels, strict=True):
            made, wished = (self._units(ids[ids >= 0].tolist()) for ids in (row, wanted))
            self.edits += edit_distance(made, wished)
            self.length += len(wished)

    def result(self) -> float:
        """Edits by labels; nan where there are no labels. It exceeds 1 where much is found that isn't there."""
        return self.edits / self.length if self.length else math.nan

    def _units(self, ids: list[int]) -> Sequence[Any]:
        return ids


@dataclass
class WordErrorRate(CharacterErrorRate):
    """The same of words by the number of words.

    Attributes:
        separator: the class between words; None where each class is a word.
    """

    separator: int | None = None

    name = "wer"

    def __post_init__(self) -> None:
        if self.separator is not None:
            integer("wer: separator", self.separator, 0)

    def _units(self, ids: list[int]) -> Sequence[Any]:
        if self.separator is None:
            return ids
        words: list[tuple[int, ...]] = []
        begin = 0
        for stop in (*(i for i, one in enumerate(ids) if one == self.separator), len(ids)):
            if stop > begin:
                words.append(tuple(ids[begin:stop]))
            begin = stop + 1
        return words


def edit_distance(found: Sequence[Any], wanted: Sequence[Any]) -> int:
    """The least number of insertions, deletions and replacements that make one sequence the other (Levenshtein)."""
    numbers: dict[Any, int] = {}
    row, column = (np.array([numbers.setdefault(one, len(numbers)) for one in s], np.int64) for s in (wanted, found))
    offsets = np.arange(len(row) + 1)
    costs = offsets.copy()  # of making the first elements of ``wanted`` of those of ``found`` so far
    for one in column:
        changed = np.minimum(costs[1:] + 1, costs[:-1] + (row != one))
        costs = np.concatenate([costs[:1] + 1, changed])
        costs = np.minimum.accumulate(costs - offsets) + offsets  # insertions behind
    return int(costs[-1])
