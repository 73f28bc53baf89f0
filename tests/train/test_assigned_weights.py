"""Weights that are set while a Trainer lives: clipped, tied, of 16 bits, averaged, before the first step and after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops

NAMES = ("a", "b")
LIMIT = 0.3


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def batch(seed: int) -> dict[str, np.ndarray]:
    return {"x": random(32, 8, seed=100 + seed), "sign": np.where(np.arange(32) % 2, 1, -1).astype(np.float32)[:, None]}


def critic(dtype: df.DType = df.float32) -> df.Model:
    """Its score, which is to be small of half of the samples and large of the others."""
    g = df.GraphBuilder("critic")
    x, sign = g.input("x", df.float32, ("batch", 8)), g.input("sign", df.float32, ("batch", 1))
    a, b = (
        g.parameter(name, (random(*shape, seed=i) / 4).astype(dtype.numpy))
        for i, (name, shape) in enumerate({"a": (8, 16), "b": (16, 1)}.items())
    )
    a, b = (w if dtype == df.float32 else ops.cast(w, to=df.float32) for w in (a, b))
    g.output("loss", sign * (ops.tanh(x @ a) @ b))
    g.parameter("beside", random(4))
    return df.Model(g.build())


def trainer(model: df.Model, optimizer: Any = "sgd:lr=0.1,momentum=0.9", **options: Any) -> df.Trainer:
    return df.Trainer(model, df.losses.output("loss"), optimizer, devices=["cpu"], **options)


def clip(model: df.Model, names: tuple[str, ...] = NAMES) -> None:
    for name in names:
        parameter = model.parameters[name]
        parameter.set(parameter.array.clip(-LIMIT, LIMIT))


def slopes(weights: dict[str, np.ndarray], given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The gradients of the loss, in float64."""
    x, sign = (given[key].astype(np.float64) for key in ("x", "sign"))
    h = np.tanh(x @ weights["a"])
    return {"a": x.T @ (sign @ weights["b"].T * (1 - h**2)) / len(x), "b": h.T @ sign / len(x)}


def test_weights_that_are_clipped_after_each_step_are_those_of_the_same_steps_by_hand(tmp_path: Path) -> None:
    """Momentum goes on where it was; evaluation, prediction and a run that is resumed read what was set."""
    model = critic()
    weights = {name: model.parameters[name].array.astype(np.float64) for name in NAMES}
    velocity = dict.fromkeys(NAMES, 0.0)
    with trainer(model) as trained:
        for step in range(10):
            gradients = slopes(weights, batch(step))
            for name in NAMES:
                velocity[name] = 0.9 * velocity[name] + gradients[name]
                weights[name] = (weights[name] - 0.1 * velocity[name]).clip(-LIMIT, LIMIT)
            trained.step(batch(step))
            clip(model)
            for name in NAMES:
                np.testing.assert_allclose(model.parameters[name].array, weights[name], rtol=1e-5, atol=1e-6)
            if step == 4:
                trained.checkpoint(tmp_path)
        clipped = model.parameters["a"].array
        assert 0.1 < (abs(clipped) == np.float32(LIMIT)).mean() < 0.9
        loss = batch(50)["sign"] * (np.tanh(batch(50)["x"] @ weights["a"]) @ weights["b"])
        np.testing.assert_allclose(trained.predict(batch(50))["loss"], loss, rtol=1e-5, atol=1e-6)
        assert trained.evaluate(batch(50))["loss"] == pytest.approx(loss.mean(), rel=1e-5)
    with trainer(again := critic()) as resumed:
        assert resumed.resume(tmp_path) == 5
        for step in range(5, 10):
            resumed.step(batch(step))
            clip(again)
        for name in NAMES:
            np.testing.assert_array_equal(again.parameters[name].array, model.parameters[name].array)
    np.testing.assert_array_equal(model.parameters["a"].array, clipped)  # the Trainer is closed


@pytest.mark.parametrize("evaluates", [False, True])
def test_what_is_set_before_the_first_step_counts_as_if_the_model_had_it(evaluates: bool, tmp_path: Path) -> None:
    """With masters and averages, which begin as the parameters do; in a checkpoint of no steps too."""
    options: dict[str, Any] = {"optimizer": df.optim.AdamW(lr=0.01), "average": df.optim.EMA(0.9)}
    first = critic(df.bfloat16)
    new = {name: 2 * first.parameters[name].array for name in NAMES}
    for name in NAMES:
        first.parameters[name].set(new[name])
    with trainer(first, **options) as trained:
        losses = [trained.step(batch(step)) for step in range(3)]
    second, third = critic(df.bfloat16), critic(df.bfloat16)
    with trainer(second, **options) as trained:
        if evaluates:
            trained.evaluate(batch(9))
        for name in NAMES:
            second.parameters[name].set(new[name])
            np.testing.assert_array_equal(second.parameters[name].array, new[name])
        trained.checkpoint(tmp_path)
        assert [trained.step(batch(step)) for step in range(3)] == losses
    with trainer(third, **options) as trained:
        trained.resume(tmp_path)
        assert [trained.step(batch(step)) for step in range(3)] == losses
    for name in NAMES:
        for model in (second, third):
            np.testing.assert_array_equal(model.parameters[name].array, first.parameters[name].array)


@pytest.mark.parametrize("dtype", [df.bfloat16, df.float16], ids=str)
@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_master_of_a_parameter_of_16_bits_is_set_with_it(dtype: df.DType, accumulate: int) -> None:
    model, steps = critic(dtype), 2 * accumulate
    with trainer(model, "sgd:lr=1e-5,momentum=0", accumulate=accumulate, loss_scale=None) as trained:
        for step in range(steps + accumulate // 2):  # in the middle of a logical batch, too
            trained.step(batch(step))
        new = np.ones((8, 16), dtype.numpy)
        model.parameters["a"].set(new)
        for step in range(accumulate - accumulate // 2):
            trained.step(batch(step))
        np.testing.assert_array_equal(model.parameters["a"].array, new)  # changes are too small to show
        master = trained.programs.state()["optimizer/master/a"]
    assert 0 < abs(master - 1).max() < 1e-4


def test_of_tied_weights_either_can_be_set() -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.int64, ("batch",))
    table = random(5, 3)
    h = ops.gather(g.parameter("table", table), x, axis=0)
    g.output("y", h @ g.parameter("head", table.T.copy()))
    model = df.Model(g.build())
    given = {"x": np.arange(4), "labels": np.arange(4)}
    with df.Trainer(model, "cross_entropy", "sgd:lr=0.1", devices=["cpu"], tie=True) as trained:
        trained.step(given)
        for name, new in (("head", random(3, 5, seed=1)), ("table", random(5, 3, seed=2))):
            model.parameters[name].set(new)
            np.testing.assert_array_equal(model.parameters[name].array, new)
            np.testing.assert_array_equal(model.parameters["table"].array, model.parameters["head"].array.T)
            upcast = model.parameters["table"].array.astype(np.float64)
            np.testing.assert_allclose(trained.predict({"x": given["x"]})["y"], (upcast @ upcast.T)[:4], rtol=1e-5)


def test_a_parameter_that_the_loss_does_not_read_is_set_before_the_first_step_or_not_at_all() -> None:
    def model() -> df.Model:
        g = df.GraphBuilder()
        x = g.input("x", df.float32, ("batch", 3))
        g.output("y", x @ g.parameter("w", random(3, 2)))
        g.output("z", x @ g.parameter("v", random(3, 2)))
        return df.Model(g.build())

    given, new = {"x": random(4, 3), "labels": random(4, 2)}, random(3, 2, seed=7)
    for early in (True, False):
        made = model()
        with df.Trainer(made, "mse", "sgd:lr=0.1", output="y", trainable="*", devices=["cpu"]) as trained:
            if early:
                made.parameters["v"].set(random(3, 2, seed=8))
            trained.step(given)
            if not early:
                with pytest.raises(df.InputError, match=r"'v': .*loss doesn't depend on it.* before the first step"):
                    made.parameters["v"].set(new)
                continue
            made.parameters["v"].set(new)
            np.testing.assert_allclose(trained.predict({"x": given["x"]})["z"], given["x"] @ new, rtol=1e-5)
        np.testing.assert_array_equal(made.parameters["v"].array, new)


def test_statistics_that_training_updates_can_be_set() -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 3))
    rows = [g.parameter("scale", np.ones(3, np.float32)), g.parameter("bias", np.zeros(3, np.float32))]
    mean, variance = (g.initializer(n, np.zeros(3, np.float32) + i, role="statistic") for i, n in enumerate("mv"))
    g.output("y", ops.batch_norm(x, *rows, mean, variance, momentum=0.9))
    model, given = df.Model(g.build()), random(16, 3, seed=1)
    data = {"x": given, "labels": random(16, 3)}
    with df.Trainer(model, "mse", "sgd:lr=0", batch_norm="update", devices=["cpu"]) as trained:
        trained.step(data)
        model.parameters["m"].set(np.full(3, 5, np.float32))
        trained.step(data)
        np.testing.assert_allclose(model.parameters["m"].array, 0.9 * 5 + 0.1 * given.mean(0), rtol=1e-5)
    text = r"'m': a Trainer owns .*constant of what was compiled.*of statistics give batch_norm='update'"
    with df.Trainer(model, "mse", "sgd:lr=0", devices=["cpu"]), pytest.raises(df.InputError, match=text):
        model.parameters["m"].set(np.zeros(3, np.float32))


REFUSED: dict[str, tuple[dict[str, Any], Callable[[df.Trainer], None], str]] = {
    "an average": ({"average": df.optim.EMA(0.9)}, lambda t: None, r"read as its average.*averaged = False"),
    "schedule-free": (
        {"optimizer": df.optim.ScheduleFreeAdamW()}, lambda t: None, r"makes it anew at each step.*\(z\)",
    ),
    "forward": ({}, lambda t: t.forward(batch(0)) and None, "'a': a forward.* waits for its backward"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_lost_or_wrong_is_refused(name: str) -> None:
    options, prepare, text = REFUSED[name]
    model = critic()
    with trainer(model, **options) as trained:
        trained.step(batch(0))
        prepare(trained)
        before = model.parameters["a"].array
        with pytest.raises(df.InputError, match=text):
            clip(model)
        np.testing.assert_array_equal(model.parameters["a"].array, before)


def test_what_is_trained_is_set_and_its_average_follows() -> None:
    model = critic()
    with trainer(model, "sgd:lr=0,momentum=0", average=df.optim.EMA(0.5)) as trained:
        trained.step(batch(0))
        first = model.parameters["a"].array.astype(np.float64)
        trained.averaged = False
        model.parameters["a"].set(np.ones((8, 16), np.float32))
        trained.averaged = True
        np.testing.assert_array_equal(model.parameters["a"].array, first)
        trained.step(batch(1))
        np.testing.assert_allclose(model.parameters["a"].array, 0.5 * first + 0.5, rtol=1e-6)
