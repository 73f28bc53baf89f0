"""Models of float64: their losses and metrics are reported as exactly as they are computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import losses, ops

RANDOM = np.random.default_rng(0)
X, NUMBERS, LABELS = RANDOM.normal(size=(21, 4)), RANDOM.normal(size=(21, 3)), np.arange(21) % 3
W = RANDOM.normal(size=(4, 3))
WEIGHT = RANDOM.uniform(0.1, 2.0, 21).astype(np.float32)


def model() -> df.Model:
    g = df.GraphBuilder("wide")
    g.output("y", g.input("x", df.float64, ("batch", 4)) @ g.parameter("w", W))
    return df.Model(g.build())


def log_losses(y: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.log(np.exp(y).sum(1)) - y[np.arange(len(y)), LABELS]
    return found


def squares(y: np.ndarray) -> np.ndarray:
    found: np.ndarray = ((y - NUMBERS) ** 2).mean(1)
    return found


def batch_mean(g: df.GraphBuilder, outputs: Mapping[str, Any], batch: Mapping[str, Any]) -> Any:
    return ops.reduce_mean(outputs["y"] ** 2, axes=(0, 1), keepdims=0)


Expected = Callable[[np.ndarray], np.ndarray]
CASES: dict[str, tuple[Any, dict[str, np.ndarray], Expected]] = {
    "cross_entropy": ("cross_entropy", {"labels": LABELS}, log_losses),
    "mse": ("mse", {"labels": NUMBERS}, squares),
    "mae": ("mae", {"labels": NUMBERS}, lambda y: abs(y - NUMBERS).mean(1)),
    "a function": (batch_mean, {}, lambda y: (y**2).mean(1)),
    "two": (
        {"a": (losses.MSE(), "numbers", 0.3), "b": (losses.CrossEntropy(), "labels", 1.0)},
        {"labels": LABELS, "numbers": NUMBERS},
        lambda y: 0.3 * squares(y) + log_losses(y),
    ),
}


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_losses_of_steps_and_evaluations(name: str, weighted: bool) -> None:
    loss, data, expected = CASES[name]
    if weighted and name == "a function":
        return
    data = {"x": X, **data, **({"sample_weight": WEIGHT} if weighted else {})}
    weight = WEIGHT.astype(np.float64) if weighted else np.ones(21)
    g = df.GraphBuilder("wide")
    g.output("y", g.input("x", df.float64, ("batch", 4)) @ g.parameter("w", W))
    if isinstance(loss, dict):
        g.output("a", g.outputs()["y"] * 1.0)
        g.output("b", g.outputs()["y"] * 1.0)
    wanted = float((expected(X @ W) * weight).sum() / weight.sum())
    with df.Trainer(df.Model(g.build()), loss, "sgd:lr=0,momentum=0", metrics=[], devices=["cpu"]) as trainer:
        assert trainer.step(data) == pytest.approx(wanted, rel=1e-13)
        assert trainer.evaluate(data, batch_size=8)["loss"] == pytest.approx(wanted, rel=1e-13)
        trainer.forward(data)
        trainer.backward()
        assert trainer.update()["loss"] == pytest.approx(wanted, rel=1e-13)
        history = trainer.fit(data, epochs=1, batch_size=21, progress=False)
        assert history["loss"][-1] == pytest.approx(wanted, rel=1e-13)


def test_metrics() -> None:
    found = df.evaluate(model(), {"x": X, "labels": NUMBERS}, "mse", ["mae", "rmse"], devices="cpu", batch_size=8)
    difference = X @ W - NUMBERS
    assert found["mae"] == pytest.approx(abs(difference).mean(), rel=1e-13)
    assert found["rmse"] == pytest.approx(np.sqrt((difference**2).mean()), rel=1e-13)
    found = df.evaluate(model(), {"x": X, "labels": LABELS}, "cross_entropy", ["perplexity"], devices="cpu")
    assert found["perplexity"] == pytest.approx(np.exp(log_losses(X @ W).mean()), rel=1e-13)


def test_a_line_search_sees_more_than_float32_does() -> None:
    """L-BFGS comes to the least square's solution; before, differences of losses were lost beside their size."""
    target = X @ RANDOM.normal(size=(4, 3)) + 1e3
    solution = np.linalg.lstsq(X, target, rcond=None)[0]
    made = model()
    with df.Trainer(made, "mse", df.optim.LBFGS(lr=1.0), devices=["cpu"]) as trainer:
        for _ in range(5):
            trainer.step({"x": X, "labels": target})
    np.testing.assert_allclose(made.parameters["w"].array, solution, rtol=1e-6)


def test_a_loss_beyond_float32_is_finite() -> None:
    with df.Trainer(model(), "mae", "sgd:lr=0,momentum=0", devices=["cpu"]) as trainer:
        assert trainer.step({"x": X * 1e20 / X, "labels": NUMBERS * 0 + 1e39}) == pytest.approx(1e39, rel=1e-12)


def sgd(w: np.ndarray, gradient: np.ndarray, state: dict[str, Any]) -> np.ndarray:
    """torch.optim.SGD(lr=0.013, momentum=0.9, weight_decay=0.017)."""
    state["v"] = 0.9 * state.get("v", 0.0) + gradient + 0.017 * w
    return np.asarray(w - 0.013 * state["v"])


def adamw(w: np.ndarray, gradient: np.ndarray, state: dict[str, Any]) -> np.ndarray:
    """torch.optim.AdamW(lr=0.013, weight_decay=0.017)."""
    state["t"] = state.get("t", 0) + 1
    state["m"] = 0.9 * state.get("m", 0.0) + 0.1 * gradient
    state["v"] = 0.999 * state.get("v", 0.0) + 0.001 * gradient**2
    m, v = state["m"] / (1 - 0.9 ** state["t"]), state["v"] / (1 - 0.999 ** state["t"])
    return np.asarray(w * (1 - 0.013 * 0.017) - 0.013 * m / (np.sqrt(v) + 1e-8))


@pytest.mark.parametrize("clip", [None, 0.31])
@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("rule", [sgd, adamw])
def test_steps(rule: Any, grouped: bool, clip: float | None) -> None:
    """Rates, decays, factors of clipping and weights of batches are of float64 too: they were rounded to float32."""
    groups = [df.optim.Group("w", lr=0.013)] if grouped else ()
    settings: dict[str, Any] = {"lr": 0.013, "weight_decay": 0.017, "no_decay": (), "groups": groups}
    optimizer = df.optim.SGD(momentum=0.9, **settings) if rule is sgd else df.optim.AdamW(**settings)
    w, state, made = W.copy(), dict[str, Any](), model()
    with df.Trainer(made, "mse", optimizer, clip_norm=clip, metrics=[], devices=["cpu"]) as trainer:
        for step in range(20):
            rows = np.arange(step % 3, 21, 1 + step % 2)
            weight = WEIGHT[rows].astype(np.float64)
            error = X[rows] @ w - NUMBERS[rows]
            loss = trainer.step({"x": X[rows], "labels": NUMBERS[rows], "sample_weight": WEIGHT[rows]})
            assert loss == pytest.approx(float((error**2).mean(1) @ weight / weight.sum()), rel=1e-13)
            gradient = X[rows].T @ (2 / 3 * error * weight[:, None]) / weight.sum()
            norm = float(np.sqrt((gradient**2).sum()))
            w = rule(w, gradient * min(1.0, (clip or np.inf) / (norm + 1e-6)), state)
    np.testing.assert_allclose(made.parameters["w"].array, w, rtol=1e-13)


def test_gradients_whose_norm_only_float64_holds_are_clipped() -> None:
    made = model()
    with df.Trainer(made, "mae", "sgd:lr=1,momentum=0", clip_norm=1e-3, metrics=[], devices=["cpu"]) as trainer:
        trainer.step({"x": X * 1e25, "labels": NUMBERS})
    gradient = (X * 1e25).T @ np.sign(X @ W * 1e25 - NUMBERS) / 63
    expected = W - gradient * (1e-3 / np.sqrt((gradient**2).sum()))
    np.testing.assert_allclose(made.parameters["w"].array, expected, rtol=1e-13)


def test_a_model_of_both() -> None:
    """Parameters of float32 beside those of float64 read the hyperparameters in float32."""
    g = df.GraphBuilder("both")
    y = ops.cast(g.input("x", df.float64, ("batch", 4)), to=df.float32) @ g.parameter("v", W.astype(np.float32))
    g.output("y", ops.cast(y, to=df.float64) + g.parameter("b", np.array([0.5, -1.0, 2.0])))
    made = df.Model(g.build())
    with df.Trainer(made, "mse", "adamw", clip_norm=1e3, metrics=[], devices=["cpu"]) as trainer:
        losses_ = [trainer.step({"x": X, "labels": NUMBERS}) for _ in range(3)]
    assert losses_[-1] < losses_[0]
    assert made.parameters["v"].array.dtype == np.float32
    assert made.parameters["b"].array.dtype == np.float64
