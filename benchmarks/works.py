"""What is trained by the benchmarks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Work:
    """What is trained.

    Attributes:
        shape: of a sample; of words when ``words``.
        classes: of the labels; one per word where there are words.
        goal: the ratio to reach.
        steps: in one turn.
        near: how close the losses of the first turn must be, relatively.
        batch_norm: as for Trainer.
        jax: whether jax_worker.py has it.
    """

    batch: int
    shape: tuple[int, ...]
    classes: int
    goal: float
    steps: int
    words: int = 0
    near: float = 1e-4
    batch_norm: str = "fixed"
    jax: bool = False

    def batch_of(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Inputs and labels."""
        shape = (self.batch, *self.shape)
        if self.words:
            return {"x": random.integers(0, self.words, shape), "labels": random.integers(0, self.classes, shape)}
        x = random.standard_normal(shape).astype(np.float32)
        return {"x": x, "labels": random.integers(0, self.classes, self.batch)}


WORKS = {
    "mlp": Work(500, (784,), 10, 0.85, 10, jax=True),
    "cnn": Work(500, (1, 28, 28), 10, 0.4, 10, jax=True),
    # AdamW's first steps amplify what is zero but for rounding.
    "encoder": Work(8, (128,), 1000, 0.5, 3, words=1000, near=1e-3, jax=True),
    "lstm": Work(16, (512, 128), 10, 0.8, 2, near=1e-3),
    # After its first update PyTorch's own float32 and float64 losses are 1.4% apart.
    "resnet50": Work(8, (3, 224, 224), 1000, 0.6, 1, near=5e-2, batch_norm="update"),
    "small": Work(2, (4,), 10, 1.0, 1),  # to see what a process takes that trains next to nothing
}
# Whose memory alone is of interest: their steps are timed as parts of others.
LARGE = {
    "gpt": Work(8, (128,), 2000, 1.0, 1, words=2000),
    "vit": Work(8, (3, 224, 224), 100, 1.0, 1),
    "unet": Work(4, (3, 128, 128), 10, 1.0, 1, batch_norm="update"),
}
