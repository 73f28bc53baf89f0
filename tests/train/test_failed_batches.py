"""A logical batch that fails leaves nothing behind: training goes on as if it had not been."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.train import checkpoint
from dataflow.train.nonfinite import NonFiniteLoss
from dataflow.train.trainer import Trainer

QUIET: dict[str, Any] = {"progress": False}


def normalized(seed: int = 0) -> df.Model:
    """A product after batch norm, and sqrt(x w): finite where x w is 0, but of infinite slope."""
    rng = np.random.default_rng(seed)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 3))
    ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
    stored = {"mean": zeros, "variance": ones}
    running = [g.initializer(name, data, role="statistic") for name, data in stored.items()]
    y = ops.batch_norm(x, g.parameter("scale", ones), g.parameter("bias", zeros + 0.1), *running, epsilon=1e-5)
    w = g.parameter("w", rng.random((3, 2)).astype(np.float32))
    g.output("y", ops.add(ops.matmul(y, w), ops.sqrt(ops.matmul(x, w))))
    return df.Model(g.build())


def batches(count: int, seed: int = 1) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.random((4, 3), np.float32) + 0.5, "labels": rng.random((4, 2), np.float32)} for _ in range(count)]


def trainer_of(**options: Any) -> Trainer:
    options = {"optimizer": df.optim.AdamW(lr=0.01), "batch_norm": "update", "devices": ["cpu"], **options}
    return Trainer(normalized(), "mse", **options)


def state(trainer: Trainer) -> dict[str, np.ndarray]:
    return {**trainer.programs.state(), **{f"model/{k}": v.array for k, v in trainer.model.parameters.items()}}


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


BAD = {"loss": (np.nan, None), "gradient": (0.0, "w")}


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_logical_batch_without_finite_loss_or_gradient_leaves_no_trace(
    bad: str, before: int, clip_norm: float | None
) -> None:
    """``before`` micro-batches of the logical batch were fine; then one is not."""
    value, parameter = BAD[bad]
    fine = batches(9)
    spoiled = {**fine[8], "x": fine[8]["x"] * np.float32(value)}
    trainer, other = trainer_of(accumulate=3, clip_norm=clip_norm), trainer_of(accumulate=3, clip_norm=clip_norm)
    for batch in fine[:3]:
        trainer.step(batch)
        other.step(batch)
    at = state(trainer)
    for batch in fine[6 : 6 + before]:
        trainer.step(batch)
    with pytest.raises(NonFiniteLoss, match="the batch was discarded") as error:
        trainer.step(spoiled)
    assert (error.value.step, error.value.parameter and error.value.parameter.strip("'")) == (1, parameter)
    assert (trainer.pending, trainer.steps) == (0, 1)
    assert_equal(state(trainer), at)
    for batch in fine[3:6]:
        trainer.step(batch)
        other.step(batch)
    assert_equal(state(trainer), state(other))
    assert all(np.isfinite(array).all() for array in state(trainer).values())


def test_statistics_of_micro_batches_last_with_the_optimizer_step() -> None:
    """Against batch norm's own formula: each micro-batch moves the running mean by a tenth."""
    trainer = trainer_of(accumulate=2)
    first, second = batches(2)
    trainer.step(first)
    np.testing.assert_array_equal(trainer.model.parameters["mean"].array, np.zeros(3))
    trainer.step(second)
    expected = 0.9 * (0.1 * first["x"].mean(0)) + 0.1 * second["x"].mean(0)
    np.testing.assert_allclose(trainer.model.parameters["mean"].array, expected, rtol=1e-5)


def test_nothing_changes_where_no_sample_counts() -> None:
    trainer = trainer_of()
    batch = batches(1)[0]
    trainer.step(batch)
    at = state(trainer)
    assert math.isnan(trainer.step({**batch, "sample_weight": np.zeros(4)}))
    assert_equal(state(trainer), at)


def test_a_label_out_of_range_discards_the_logical_batch() -> None:
    g = df.GraphBuilder()
    w = g.parameter("w", np.eye(3, dtype=np.float32))
    g.output("y", ops.matmul(g.input("x", df.float32, ("batch", 3)), w))
    trainer = Trainer(df.Model(g.build()), accumulate=2, devices=["cpu"])
    batch = {"x": np.ones((2, 3), np.float32), "labels": np.array([0, 2])}
    trainer.step(batch)
    with pytest.raises(df.InputError, match="label"):
        trainer.step({**batch, "labels": np.array([0, 3])})
    assert trainer.pending == 0
    with pytest.raises(df.InputError, match="missing: 'labels'"):
        trainer.step({"x": batch["x"]})
    trainer.step(batch)
    with pytest.raises(df.InputError, match="missing: 'labels'"):  # refused before anything ran: changes nothing
        trainer.step({"x": batch["x"]})
    assert trainer.pending == 1


def test_finite_gradients_whose_squares_overflow_are_finite() -> None:
    """AdamW takes gradients of 1e20, whose square float32 doesn't hold; a norm to clip by there is none."""
    g = df.GraphBuilder()
    w = g.parameter("w", np.ones((1, 1), np.float32))
    g.output("y", ops.matmul(g.input("x", df.float32, (1, 1)), w))
    model = df.Model(g.build())
    batch = {"x": np.full((1, 1), 1e10, np.float32), "labels": np.zeros((1, 1), np.float32)}
    optimizer = df.optim.SGD(lr=1e-21)
    with Trainer(model.copy(), "mse", optimizer, devices=["cpu"]) as trainer:
        trainer.step(batch)
        np.testing.assert_allclose(trainer.model.parameters["w"].array, 1 - 2e20 * 1e-21, rtol=1e-6)
    with pytest.raises(NonFiniteLoss, match="norm exceeds float32"):
        Trainer(model, "mse", optimizer, devices=["cpu"], clip_norm=1.0).step(batch)


def test_a_run_with_a_bad_gradient_saves_what_was_before_and_resumes(tmp_path: Path) -> None:
    data = {key: np.concatenate([b[key] for b in batches(6)]) for key in ("x", "labels")}
    data["x"][17] = 0.0
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "checkpoint": tmp_path, "every": 1, **QUIET}
    with pytest.raises(NonFiniteLoss, match=r"after 4 optimizer steps, in samples 16, 17, 18, 19"):
        trainer_of().fit(data, **options)
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found[1].counters["steps"] == 4
    assert all(np.isfinite(array).all() for array in found[1].tensors.values())
    data["x"][17] = 1.0
    trainer = trainer_of()
    trainer.fit(data, resume="auto", **options)
    assert trainer.steps == 12


def test_a_schedule_that_gives_no_number_changes_no_weights() -> None:
    trainer = trainer_of(optimizer=df.optim.SGD(lr=0.1, schedule=lambda step: 1.0 if step < 1 else math.nan))
    first, second = batches(2)
    trainer.step(first)
    at = state(trainer)
    with pytest.raises(df.InputError, match="learning rate is nan after 1 optimizer steps"):
        trainer.step(second)
    assert_equal(state(trainer), at)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 1000, 200_003])
def test_the_sum_of_squares(dtype: Any, size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(dtype)
    expected = np.square(x, dtype=np.float64).sum() + 0.5

    def of(array: np.ndarray, **options: Any) -> np.ndarray:
        g = df.GraphBuilder()
        value = g.input("x", {4: df.float32, 8: df.float64}[x.itemsize], (size,))
        g.output("y", ops.square_sum(value, g.scalar(0.5, df.float32)))
        return df.Session(df.Model(g.build()), ["cpu"], **options).run({"x": array})["y"]

    one, two = of(x, threads=1), of(x, threads=2)
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, expected, rtol=1e-6)
    for bad in (np.nan, np.inf, -np.inf):
        for index in {0, size // 2, size - 1} if size else ():
            spoiled = x.copy()
            spoiled[index] = bad
            assert not np.isfinite(of(spoiled)), (bad, index)


@pytest.mark.parametrize("key", ["labels", "sample_weight"])
@pytest.mark.parametrize("call", ["step", "evaluate", "fit"])
def test_numbers_beyond_float32_name_their_sample(key: str, call: str) -> None:
    """NumPy's own conversion warns, which fails a test, and makes them infinite."""
    batch = {"x": np.ones((3, 3), np.float32), "labels": np.ones((3, 1)), "sample_weight": np.ones(3)}
    batch[key][2] = 1e300
    g = df.GraphBuilder("linear")
    g.output("y", df.ops.matmul(g.input("x", df.float32, ("n", 3)), g.parameter("w", np.ones((3, 1), np.float32))))
    with df.Trainer(df.Model(g.build()), "mse", devices=["cpu"]) as trainer:
        options = {"progress": False, "shuffle": False} if call == "fit" else {}
        with pytest.raises(df.InputError, match=rf"'{key}' of sample 2 is 1e\+300, which is beyond .* float32"):
            getattr(trainer, call)(batch, **options)
        assert trainer.steps == 0
