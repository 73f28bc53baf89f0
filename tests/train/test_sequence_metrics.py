"""Error rates of sequences, against decoding and dynamic programming in plain Python."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import losses, metrics, ops
from dataflow.train.metrics.sequences import edit_distance

CLASSES, STEPS, LABELS, SAMPLES = 5, 12, 6, 14


def distance(a: Sequence[Any], b: Sequence[Any]) -> int:
    """By its definition, as a recursion."""

    @functools.cache
    def of(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(of(i - 1, j) + 1, of(i, j - 1) + 1, of(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return of(len(a), len(b))


def decoded(scores: np.ndarray, blank: int) -> list[int]:
    """Greedy: the best class of each step, runs of one class once, without blanks."""
    return [one for one, _ in itertools.groupby(scores.argmax(-1).tolist()) if one != blank]


def words(ids: Sequence[int], separator: int) -> list[tuple[int, ...]]:
    text = " ".join("|" if one == separator else str(one) for one in ids)
    return [tuple(map(int, word.split())) for word in text.split("|") if word.strip()]


def model(time_major: bool = False) -> df.Model:
    shape = (STEPS, "n", CLASSES) if time_major else ("n", STEPS, CLASSES)
    g = df.GraphBuilder("scores")
    x = g.input("x", df.float32, ("n", STEPS, CLASSES))
    x = ops.transpose(x, perm=(1, 0, 2)) if time_major else x
    assert len(x.type.shape) == len(shape)
    g.output("z", ops.mul(x, g.parameter("scale", np.ones(CLASSES, np.float32))))
    return df.Model(g.build())


def data() -> tuple[dict[str, np.ndarray], list[list[int]]]:
    """Scores with lengths, labels padded by anything, and what the labels are."""
    random = np.random.default_rng(0)
    counts, times = random.integers(0, LABELS + 1, SAMPLES), random.integers(0, STEPS + 1, SAMPLES)
    times = np.maximum(times, 2 * counts)  # so that the loss is finite
    labels = random.integers(1, CLASSES, (SAMPLES, LABELS))
    x = random.normal(size=(SAMPLES, STEPS, CLASSES)).astype(np.float32)
    given = {"x": x, "labels": labels, "times": times, "counts": counts}
    return given, [row[:count].tolist() for row, count in zip(labels, counts, strict=True)]


@pytest.mark.parametrize("device", ["numpy", "cpu"])
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("batch_size", [1, 5])
def test_rates_of_ctc(device: str, time_major: bool, batch_size: int) -> None:
    given, wanted = data()
    found = [decoded(x[:time], 0) for x, time in zip(given["x"], given["times"], strict=True)]
    loss = losses.CTC(input_lengths="times", label_lengths="counts", time_major=time_major)
    chosen = ["cer", metrics.WordErrorRate(separator=4)]
    if time_major and batch_size == 1:
        batch_size = 3
    figures = df.evaluate(model(time_major), given, loss, chosen, devices=device, batch_size=batch_size)
    edits = sum(map(distance, found, wanted))
    assert figures["cer"] == edits / sum(map(len, wanted))
    made, wished = ([words(ids, 4) for ids in each] for each in (found, wanted))
    assert figures["wer"] == sum(map(distance, made, wished)) / sum(map(len, wished))


def test_labels_that_are_filled_up_and_another_blank() -> None:
    given, wanted = data()
    wanted = [[one - 1 for one in row] for row in wanted]
    labels = np.full((SAMPLES, LABELS), -1)
    for row, ids in zip(labels, wanted, strict=True):
        row[: len(ids)] = ids
    figures = df.evaluate(model(), {"x": given["x"], "labels": labels}, losses.CTC(blank=4), ["cer", "wer"])
    found = [decoded(x, 4) for x in given["x"]]
    assert figures["cer"] == figures["wer"] == sum(map(distance, found, wanted)) / sum(map(len, wanted))


def test_rates_of_classes_at_steps() -> None:
    given, _ = data()
    labels = np.random.default_rng(1).integers(0, CLASSES, (SAMPLES, STEPS))
    ignored = np.arange(STEPS) >= given["times"][:, None]
    figures = df.evaluate(model(), {"x": given["x"], "labels": np.where(ignored, -100, labels)}, metrics=["cer"])
    found, kept = given["x"].argmax(-1), ~ignored
    pairs = [(f[k].tolist(), w[k].tolist()) for f, w, k in zip(found, labels, kept, strict=True)]
    assert figures["cer"] == sum(distance(*pair) for pair in pairs) / kept.sum()


def test_distances() -> None:
    random = np.random.default_rng(2)
    for _ in range(200):
        a, b = (random.integers(0, 3, random.integers(0, 9)).tolist() for _ in range(2))
        assert edit_distance(a, b) == distance(a, b)
    assert edit_distance("kitten", "sitting") == 3


def test_what_is_no_sequence_is_refused_and_no_labels_have_no_rate() -> None:
    g = df.GraphBuilder("flat")
    g.output("z", ops.mul(g.input("x", df.float32, ("n", 3)), g.parameter("scale", np.ones(3, np.float32))))
    flat = {"x": np.ones((4, 3), np.float32), "labels": np.zeros(4, np.int64)}
    made = df.Model(g.build())
    for labels in (flat["labels"], np.full((4, 3), 1 / 3, np.float32)):
        with pytest.raises(df.InputError, match="metric 'wer' compares sequences of classes"):
            df.evaluate(made, {**flat, "labels": labels}, metrics=["wer"])
    assert math.isnan(metrics.CharacterErrorRate().result())
    with pytest.raises(df.InputError, match="wer: separator is -1"):
        metrics.WordErrorRate(separator=-1)
