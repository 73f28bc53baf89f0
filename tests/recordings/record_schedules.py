"""Records the factors of PyTorch's schedules; run by hand, see README.md."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim import lr_scheduler as s

STEPS = 60


def warm(optimizer: Any) -> Any:
    """A line from 1/8 to 1 in eight steps."""
    return s.LinearLR(optimizer, start_factor=1 / 8, total_iters=7)


SCHEDULES = {
    "step": lambda o: s.StepLR(o, 7, 0.5),
    "multi_step": lambda o: s.MultiStepLR(o, [5, 6, 30], 0.3),
    "exponential": lambda o: s.ExponentialLR(o, 0.9),
    "polynomial": lambda o: s.PolynomialLR(o, 40, 1.7),
    "linear": lambda o: s.LinearLR(o, 1.0, 0.2, 40),
    "cosine": lambda o: s.CosineAnnealingLR(o, 50, 0.1),
    "warm_cosine": lambda o: s.SequentialLR(o, [warm(o), s.CosineAnnealingLR(o, 42)], [8]),
    "warm_step": lambda o: s.SequentialLR(o, [warm(o), s.StepLR(o, 9, 0.5)], [8]),
    "cosine_restarts": lambda o: s.CosineAnnealingWarmRestarts(o, 6, 2, 0.05),
    "one_cycle": lambda o: s.OneCycleLR(o, 1.0, 50, pct_start=0.25),
}
LENGTHS = {"cosine": 51, "warm_cosine": 51, "one_cycle": 50}  # PyTorch's cosine rises again behind its end


def main() -> None:
    """Records all."""
    warnings.simplefilter("ignore")
    found: dict[str, np.ndarray] = {}
    for name, make in SCHEDULES.items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        schedule, rates = make(optimizer), []
        for _ in range(LENGTHS.get(name, STEPS)):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if len(rates) < LENGTHS.get(name, STEPS):
                schedule.step()
        found[name] = np.array(rates)
    figures = 1.0 + np.exp(-np.arange(40) / 6) + 0.02 * np.sin(np.arange(40) * 2.3)
    found["figures"] = figures
    for mode, values in (("min", figures), ("max", 1.0 / figures)):
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        plateau = s.ReduceLROnPlateau(optimizer, mode, 0.5, 2, 0.01, cooldown=2, min_lr=0.05)
        rates = []
        for value in values:
            plateau.step(value)
            rates.append(optimizer.param_groups[0]["lr"])
        found[f"plateau_{mode}"] = np.array(rates)
    np.savez_compressed(Path(__file__).parent / "schedules.npz", **found)


if __name__ == "__main__":
    main()
