"""Training data of the families, the same for the recording and the tests: made of seeded random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

STEPS, BATCH = 20, 8
CLASSES, WORDS = 6, 40
Batch = dict[str, np.ndarray[Any, Any]]


def _images(shape: tuple[int, ...]) -> Callable[[np.random.Generator, int], Batch]:
    """Classes differ in the mean colour of a quarter of the picture."""

    def make(random: np.random.Generator, count: int) -> Batch:
        centres = np.random.default_rng(7).standard_normal((CLASSES, *shape[:1], 2, 2))
        labels = random.integers(0, CLASSES, count)
        images = centres[labels].repeat(shape[1] // 2, 2).repeat(shape[2] // 2, 3)
        x = 1.5 * images + 0.5 * random.standard_normal((count, *shape))
        return {"x": x.astype(np.float32), "labels": labels}

    return make


def _pixels(random: np.random.Generator, count: int) -> Batch:
    """A pixel's class depends on how bright it is."""
    x = random.standard_normal((count, 1, 12, 12)).astype(np.float32)
    return {"x": x, "labels": np.digitize(x[:, 0], [-0.5, 0.5]).astype(np.int64)}


def _sentences(random: np.random.Generator, count: int) -> Batch:
    """A sentence of a class has its words around one place; sentences are of different lengths."""
    labels = random.integers(0, CLASSES, count)
    ids = 1 + (labels[:, None] * 6 + random.integers(0, 6, (count, 9))) % (WORDS - 1)
    mask = (np.arange(9) < random.integers(4, 10, (count, 1))).astype(np.int64)
    return {"ids": ids * mask, "mask": mask, "labels": labels}


def _texts(random: np.random.Generator, count: int) -> Batch:
    """Each word follows from the one before."""
    ids = np.empty((count, 9), np.int64)
    ids[:, 0] = random.integers(0, WORDS, count)
    for position in range(1, 9):
        ids[:, position] = (3 * ids[:, position - 1] + 1) % WORDS
    return {"ids": ids[:, :-1], "labels": ids[:, 1:]}


def _numbers(random: np.random.Generator, count: int) -> Batch:
    """A smooth function of nine numbers."""
    x = random.standard_normal((count, 9)).astype(np.float32)
    y = np.tanh(x[:, :1] - x[:, 1:2]) + 0.5 * x[:, 2:3]
    return {"x": x, "labels": y.astype(np.float32)}


def _vectors(random: np.random.Generator, count: int) -> Batch:
    """Classes are directions; the sign of the mean changes from batch to batch."""
    centres = np.random.default_rng(7).standard_normal((CLASSES, 5))
    labels = random.integers(0, CLASSES, count)
    x = 2 * centres[labels] + 0.3 * random.standard_normal((count, 5)) + random.choice([-1.0, 1.0])
    return {"x": x.astype(np.float32), "labels": labels}


def _series(random: np.random.Generator, count: int) -> Batch:
    """Noisy rows around a class's own, of another length in every batch."""
    centres = np.random.default_rng(7).standard_normal((CLASSES, 5))
    labels = random.integers(0, CLASSES, count)
    x = 1.5 * centres[labels][:, None] + 0.5 * random.standard_normal((count, int(random.integers(3, 9)), 5))
    return {"x": x.astype(np.float32), "labels": labels}


_MAKERS: Mapping[str, Callable[[np.random.Generator, int], Batch]] = {
    "mobile": _images((3, 16, 16)),
    "unet": _pixels,
    "vit": _images((3, 12, 12)),
    "bert": _sentences,
    "gpt": _texts,
    "regression": _numbers,
    "branch": _vectors,
    "recurrence": _series,
}
FAMILIES = tuple(_MAKERS)


def batches(family: str) -> list[Batch]:
    """Inputs by name and ``labels``, for each step."""
    return [_MAKERS[family](np.random.default_rng(100 + step), BATCH) for step in range(STEPS)]


def probes(family: str) -> list[Batch]:
    """Inputs of two batch sizes, and for texts of two lengths."""
    found = []
    for count in (1, 5):
        batch = _MAKERS[family](np.random.default_rng(count), count)
        del batch["labels"]
        found.append({k: v[:, : 4 + count] if k in ("ids", "mask") else v for k, v in batch.items()})
    return found
