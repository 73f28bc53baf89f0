"""A linear model, and programs for it in plain numpy: gradients and updates in closed form."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow.ir.op import Op
from dataflow.ir.types import TensorType
from dataflow.train.joint import SQUARES
from dataflow.train.trainer import Trainer

LINEAR = Op(
    "test_linear", ("x", "w", "b"), lambda x, w, b: TensorType(x.dtype, (x.shape[0], w.shape[1])), doc="x @ w + b"
)


def model(seed: int = 0, inputs: int = 3, hidden: bool = False) -> df.Model:
    rng = np.random.default_rng(seed)
    g = df.GraphBuilder("linear")
    x = g.input("x", df.float32, ("batch", inputs))
    w = g.parameter("w", rng.normal(size=(inputs, 1)).astype(np.float32))
    b = g.parameter("b", np.zeros(1, np.float32))
    y = LINEAR(x, w, b)
    if hidden:
        y = LINEAR(y, g.parameter("v", np.ones((1, 1), np.float32)), b)
    g.output("y", y)
    return df.Model(g.build())


def data(samples: int = 64, seed: int = 1, noise: float = 0.0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [-2.0], [0.5]], np.float32) + 0.25 + noise * rng.normal(size=(samples, 1))
    return {"x": x, "labels": y.astype(np.float32)}


class LinearPrograms:
    """Mean squared error of x @ w + b under SGD with momentum."""

    averaged = True
    passes_gradients = False

    def __init__(self, made: df.Model, optimizer: Any, clip_norm: float | None = None) -> None:
        self.optimizer, self.clip_norm = optimizer, clip_norm
        self.w = np.array(made.parameters["w"].array)
        self.b = np.array(made.parameters["b"].array)
        self.velocity = {"w": np.zeros_like(self.w), "b": np.zeros_like(self.b)}
        self.gathered: dict[str, np.ndarray] = {}
        self.updates: list[tuple[np.ndarray, float]] = []
        self.closed = False

    def _terms(self, batch: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        with np.errstate(all="ignore"):
            error = batch["x"] @ self.w + self.b - batch["labels"]
        weight = np.broadcast_to(batch.get("sample_weight", np.ones(len(error), np.float32))[:, None], error.shape)
        terms = {
            "loss": np.sum(error**2 * weight, dtype=np.float32),
            "weight": np.sum(weight, dtype=np.float32),
            "mae:sum": np.sum(np.abs(error), dtype=np.float32),
            "mae:weight": np.float32(error.size),
        }
        return 2 * error * weight, {k: np.asarray(v) for k, v in terms.items()}

    def forward_backward(self, batch: Mapping[str, np.ndarray], *, first: bool) -> dict[str, np.ndarray]:
        grad, terms = self._terms(batch)
        with np.errstate(all="ignore"):
            found = {"w": batch["x"].T @ grad, "b": grad.sum(0)}
            self.gathered = found if first else {k: self.gathered[k] + found[k] for k in found}
            squares = np.asarray(sum(np.square(g).sum() for g in self.gathered.values()), np.float32)
        return {**terms, SQUARES: squares}

    def prepare_step(self, batch: Mapping[str, np.ndarray], *, frozen: frozenset[int]) -> bool:
        return False

    def begin_step(self, batch: Mapping[str, np.ndarray], *, frozen: frozenset[int]) -> dict[str, np.ndarray]:
        return self.forward_backward(batch, first=True)

    def discard(self) -> None:
        self.gathered = {}

    def squares(self) -> float:
        return float(sum(np.square(g.astype(np.float64)).sum() for g in self.gathered.values()))

    def plans(self) -> dict[str, Any]:
        return {}

    def gradients(self) -> dict[str, np.ndarray]:
        return self.gathered

    def update(self, hyper: np.ndarray, weight: float, frozen: frozenset[int] = frozenset()) -> float:
        self.updates.append((hyper, weight))
        grads = {k: v / np.float32(weight) for k, v in self.gathered.items()}
        norm = float(np.sqrt(sum(float((g**2).sum()) for g in grads.values())))
        scale = 1.0 if self.clip_norm is None else min(1.0, self.clip_norm / (norm + 1e-6))
        for name in ("w", "b"):
            grad = grads[name] * np.float32(scale) + hyper[1] * getattr(self, name)
            self.velocity[name] = np.float32(self.optimizer.momentum) * self.velocity[name] + grad
            setattr(self, name, getattr(self, name) - hyper[0] * self.velocity[name])
        return norm if self.clip_norm is not None else float("nan")

    def evaluate(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._terms(batch)[1]

    def predict(self, inputs: Any) -> dict[str, np.ndarray]:
        return {"y": inputs["x"] @ self.w + self.b}

    def newest(self, name: str) -> np.ndarray | None:
        return getattr(self, name, None)

    def assign(self, name: str, array: np.ndarray) -> None:
        setattr(self, name, array)

    def state(self, without: Collection[str] = (), *, copies: bool = True) -> dict[str, np.ndarray]:
        state = {"parameters/w": self.w.copy(), "parameters/b": self.b.copy()}
        return state | {f"optimizer/velocity/{k}": v.copy() for k, v in self.velocity.items()}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.w, self.b = state["parameters/w"].copy(), state["parameters/b"].copy()
        self.velocity = {k: state[f"optimizer/velocity/{k}"].copy() for k in ("w", "b")}

    def end_steps(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class LinearTrainer(Trainer):
    """A Trainer whose programs are LinearPrograms."""

    programs: LinearPrograms  # type: ignore[assignment]

    def _compile(self) -> Any:
        return LinearPrograms(self.model, self.optimizer, self.updates.norms[0])


def trainer(made: df.Model | None = None, **options: Any) -> LinearTrainer:
    options.setdefault("optimizer", df.optim.SGD(lr=0.05, momentum=0.9))
    return LinearTrainer(made or model(), options.pop("loss", "mse"), **options)


@pytest.fixture
def linear() -> ModuleType:
    return sys.modules[__name__]
