"""Records fifty steps of PyTorch's optimizers on a small network, in float64; run by hand, see README.md.

The network and data are those of tests/train/test_training.py. Muon's iteration is computed in float64 too: PyTorch
rounds it to bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.train.test_training import data, model

STEPS = 50
O = torch.optim
EPSILON = float(np.finfo(np.float32).eps)  # what Adafactor uses for parameters of float32


def muon(parameters: dict[str, torch.Tensor]) -> list[Any]:
    """Matrices by Muon, vectors by AdamW."""
    torch.Tensor.bfloat16 = lambda self: self.clone()
    matrices = [p for p in parameters.values() if p.ndim == 2]
    vectors = [p for p in parameters.values() if p.ndim < 2]
    first = O.Muon(matrices, lr=0.05, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    return [first, O.AdamW(vectors, lr=0.02, weight_decay=0.0)]


OPTIMIZERS = {
    "adamw": lambda p: O.AdamW(p, lr=0.05, weight_decay=0.1),
    "amsgrad": lambda p: O.Adam(p, lr=0.05, weight_decay=0.01, amsgrad=True),
    "adam": lambda p: O.Adam(p, lr=0.05, weight_decay=0.01),
    "adamax": lambda p: O.Adamax(p, lr=0.05, weight_decay=0.01),
    "nadam": lambda p: O.NAdam(p, lr=0.05, weight_decay=0.01),
    "radam": lambda p: O.RAdam(p, lr=0.05, weight_decay=0.01),
    "rmsprop": lambda p: O.RMSprop(p, lr=0.005, weight_decay=0.01),
    "rmsprop_centered": lambda p: O.RMSprop(p, lr=0.002, momentum=0.9, centered=True),
    "adagrad": lambda p: O.Adagrad(p, lr=0.05, weight_decay=0.01, lr_decay=0.01, initial_accumulator_value=0.1),
    "adadelta": lambda p: O.Adadelta(p, lr=2.0, weight_decay=0.01),
    "adafactor": lambda p: O.Adafactor(p, lr=0.2, weight_decay=0.01, eps=(EPSILON, 1e-3)),
}


class Grouped:
    """AdamW with groups: w1 and b1 slowly and clipped by their own norm, b2 without decay and frozen for ten steps."""

    def __init__(self, parameters: dict[str, torch.Tensor]) -> None:
        self.parameters = parameters
        slow = [parameters[name] for name in ("w1", "b1")]
        groups = [
            {"params": slow, "lr": 0.01},
            {"params": [parameters["w2"]]},
            {"params": [parameters["b2"]], "weight_decay": 0.0},
        ]
        self.optimizer, self.slow, self.count = O.AdamW(groups, lr=0.05, weight_decay=0.1), slow, 0

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        self.optimizer.zero_grad()

    def step(self) -> None:
        """Clips and steps."""
        fast = [self.parameters["w2"], self.parameters["b2"]]
        if self.count < 10:
            fast.pop().grad = None
        self.count += 1
        torch.nn.utils.clip_grad_norm_(self.slow, 0.05)
        torch.nn.utils.clip_grad_norm_(fast, 0.1)
        torch.nn.utils.clip_grad_value_([self.parameters["w2"]], 0.03)
        self.optimizer.step()


class Averaging:
    """Gradient descent, whose parameters are averaged."""

    def __init__(self, parameters: dict[str, torch.Tensor], start: int, every: int, **how: Any) -> None:
        self.module = torch.nn.ParameterDict({name: torch.nn.Parameter(p.detach()) for name, p in parameters.items()})
        self.parameters, self.start, self.every, self.count = parameters, start, every, 0
        self.mean = O.swa_utils.AveragedModel(self.module, **how)
        self.optimizer = O.SGD(list(parameters.values()), lr=0.3, momentum=0.9)

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        self.optimizer.zero_grad()

    def step(self) -> None:
        """Steps, and averages where this step counts."""
        self.optimizer.step()
        self.count += 1
        if self.count > self.start and (self.count - self.start - 1) % self.every == 0:
            for name, p in self.parameters.items():
                self.module[name].data = p.detach().clone()
            self.mean.update_parameters(self.module)


AVERAGES = {
    "ema": lambda p: Averaging(p, 5, 1, multi_avg_fn=O.swa_utils.get_ema_multi_avg_fn(0.9)),
    "swa": lambda p: Averaging(p, 20, 5),
}


def problem() -> tuple[dict[str, torch.Tensor], Callable[[], torch.Tensor]]:
    """Parameters, and what computes their loss."""
    parameters = {
        n: torch.tensor(p.array.astype(np.float64), requires_grad=True) for n, p in model().parameters.items()
    }
    arrays = data()
    x, labels = torch.tensor(arrays["x"].astype(np.float64)), torch.tensor(arrays["labels"])

    def loss_of() -> torch.Tensor:
        hidden = torch.relu(x @ parameters["w1"] + parameters["b1"])
        logits = hidden @ parameters["w2"] + parameters["b2"]
        return torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100)

    return parameters, loss_of


def lbfgs() -> dict[str, np.ndarray]:
    """Seven steps of L-BFGS, with a line search and with a fixed length: losses before each, and evaluations."""
    found: dict[str, np.ndarray] = {}
    for name, search in (("lbfgs", "strong_wolfe"), ("lbfgs_fixed", None)):
        parameters, loss_of = problem()
        made = O.LBFGS(
            parameters.values(), lr=1.0 if search else 0.3, max_iter=4, history_size=5, line_search_fn=search
        )
        losses, counts = [], []

        def closure(made: Any = made, loss_of: Any = loss_of, counts: list[int] = counts) -> torch.Tensor:
            made.zero_grad()
            loss = loss_of()
            loss.backward()
            counts[-1] += 1
            return loss

        for _ in range(7):
            counts.append(0)
            losses.append(made.step(closure).item())
        found |= {f"{name}/losses": np.array(losses), f"{name}/evaluations": np.array(counts)}
        found |= {f"{name}/{key}": p.detach().numpy() for key, p in parameters.items()}
    return found | rosenbrock()


def rosenbrock() -> dict[str, np.ndarray]:
    """Seven steps of L-BFGS on Rosenbrock's function of four numbers, where searches divide brackets."""
    x = torch.tensor([-1.2, 1.0, 0.5, -0.7], dtype=torch.float64, requires_grad=True)
    made = O.LBFGS([x], max_iter=4, history_size=5, line_search_fn="strong_wolfe")
    losses, counts = [], []

    def closure() -> torch.Tensor:
        made.zero_grad()
        loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
        loss.backward()
        counts[-1] += 1
        return loss

    for _ in range(7):
        counts.append(0)
        losses.append(made.step(closure).item())
    return {"rosenbrock/losses": np.array(losses), "rosenbrock/evaluations": np.array(counts)}


def steps(name: str, optimizers: Any) -> dict[str, np.ndarray]:
    """Losses before each step, and the parameters after the last; in place of them their averages."""
    parameters, loss_of = problem()
    made = optimizers(parameters)
    losses = []
    for _ in range(STEPS):
        loss = loss_of()
        losses.append(loss.item())
        for optimizer in made:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in made:
            optimizer.step()
    ends = made[0].mean.module if isinstance(made[0], Averaging) else parameters
    found = {f"{name}/losses": np.array(losses)}
    return found | {f"{name}/{n}": ends[n].detach().numpy() for n in parameters}


def main() -> None:
    """Records all optimizers."""
    found = lbfgs()
    made = {name: lambda p, make=make: [make(list(p.values()))] for name, make in OPTIMIZERS.items()}
    made |= {name: lambda p, make=make: [make(p)] for name, make in {"groups": Grouped, **AVERAGES}.items()}
    for name, make in {**made, "muon": muon}.items():
        found |= steps(name, make)
    np.savez_compressed(Path(__file__).parent / "optimizers.npz", **found)


if __name__ == "__main__":
    main()
