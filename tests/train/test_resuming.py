"""Loops by hand that are interrupted: ``trainer.checkpoint`` and ``trainer.resume`` between two optimizer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops

BATCH = 8


def adversaries() -> df.Model:
    """A generator of noise and its critic, with a batch norm's running statistics."""
    random = np.random.default_rng(0)
    g = df.GraphBuilder("gan")
    x, phase = g.input("x", df.float32, ("batch", 3)), g.input("phase", df.float32, ("batch",))
    made = df.nn.normal(g, (BATCH, 2)) @ g.parameter("make.w", random.standard_normal((2, 3)).astype(np.float32))
    made = made + g.parameter("make.b", np.zeros(3, np.float32))
    ones, zeros = np.ones(4, np.float32), np.zeros(4, np.float32)
    w, v = (
        g.parameter(f"critic.{n}", random.standard_normal(s).astype(np.float32))
        for n, s in (("w", (3, 4)), ("v", (4, 1)))
    )
    scale, bias = g.parameter("critic.s", ones), g.parameter("critic.b", zeros)
    mean, variance = (g.initializer(n, a, role="statistic") for n, a in (("mean", zeros), ("variance", ones)))

    def critic(x: df.Value) -> df.Value:
        return (ops.tanh(x @ w) @ v).reshape(-1)

    normed = ops.batch_norm(x @ w, scale, bias, mean, variance)
    real = critic(x) + 0.1 * normed.sum(1)
    fake = critic(made)
    judged = ops.softplus(-real) + ops.softplus(fake)
    g.output("loss", ops.where(ops.greater(phase, 0.5), judged, ops.softplus(-fake)))
    return df.Model(g.build())


def trainer_of(model: df.Model, **options: Any) -> df.Trainer:
    settings: dict[str, Any] = {"optimizer": df.optim.AdamW(lr=0.02), "average": df.optim.EMA(0.8), "seed": 3}
    settings |= {"clip_norm": 1.0, "batch_norm": "update", "devices": ["cpu"]}
    return df.Trainer(model, df.losses.output("loss"), **(settings | options))


def alternate(trainer: df.Trainer, start: int, stop: int) -> list[float]:
    """Steps of critic and generator in turn, and the loss of each."""
    losses = []
    for step in range(start, stop):
        x = np.random.default_rng(step).standard_normal((BATCH, 3)).astype(np.float32)
        critic = step % 3 != 2
        trainer.unfreeze("critic*" if critic else "make*")
        trainer.freeze("make*" if critic else "critic*")
        trainer.lr_factor = 0.9**step
        losses.append(trainer.step({"x": x, "phase": np.full(BATCH, critic, np.float32)}))
    return losses


def arrays(model: df.Model) -> dict[str, np.ndarray]:
    return {name: parameter.array for name, parameter in model.parameters.items()}


@pytest.mark.parametrize("at", [1, 4, 5])
def test_alternating_networks_go_on_with_the_same_bits(tmp_path: Path, at: int) -> None:
    with trainer_of(adversaries()) as trainer:
        losses = alternate(trainer, 0, 9)
        expected, state = arrays(trainer.model), trainer.state()
    with trainer_of(adversaries()) as trainer:
        assert trainer.resume(tmp_path / "none") == 0
        first = alternate(trainer, 0, at)
        path = trainer.checkpoint(tmp_path, keep=1)
        alternate(trainer, at, 8)  # what comes after doesn't change the file
    assert path.name == f"step-{at:09d}.safetensors"
    with trainer_of(adversaries()) as trainer:
        assert trainer.resume(tmp_path) == trainer.steps == at
        assert first + alternate(trainer, at, 9) == losses
        found = arrays(trainer.model)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
        for name, array in trainer.state().items():
            np.testing.assert_array_equal(array, state[name])


def line() -> df.Model:
    g = df.GraphBuilder()
    g.output("y", g.input("x", df.float32, ("batch",)) * g.parameter("w", np.float32(1)))
    return df.Model(g.build())


DATA = {"x": np.arange(1, 9, dtype=np.float32), "labels": np.zeros(8, np.float32)}


def test_checkpoints_of_fit_and_of_loops_by_hand_are_one(tmp_path: Path) -> None:
    """Momentum of SGD: after one step of gradient g the second one moves by lr (0.9 g + g')."""
    options: dict[str, Any] = {"loss": "mse", "optimizer": "sgd:lr=0.001,momentum=0.9", "devices": ["cpu"]}
    slope = 2 * (DATA["x"] ** 2).mean()
    once = 1 - 0.001 * slope
    twice = once - 0.001 * (0.9 * slope + slope * once)
    with df.Trainer(line(), **options) as trainer:
        trainer.step(DATA)
        trainer.checkpoint(tmp_path / "hand")
    with df.Trainer(line(), **options) as trainer:
        history = trainer.fit(
            DATA, batch_size=8, resume=tmp_path / "hand" / "step-000000001.safetensors", progress=False
        )
        assert len(history["loss"]) == 1
        assert trainer.model.parameters["w"].array == pytest.approx(twice, rel=1e-6)
    with df.Trainer(line(), **options) as trainer:
        trainer.fit(DATA, batch_size=8, checkpoint=tmp_path / "fit", progress=False)
    with df.Trainer(line(), **options) as trainer:
        assert trainer.resume(tmp_path / "fit") == 1
        trainer.step(DATA)
        assert trainer.model.parameters["w"].array == pytest.approx(twice, rel=1e-6)


def test_the_newest_files_stay(tmp_path: Path) -> None:
    with df.Trainer(line(), "mse", "sgd:lr=0.001", devices=["cpu"]) as trainer:
        for _ in range(4):
            trainer.step(DATA)
            trainer.checkpoint(tmp_path, keep=2)
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"step-00000000{n}.safetensors" for n in (3, 4)]


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    with df.Trainer(line(), "mse", "sgd:lr=0.001", devices=["cpu"], accumulate=2) as trainer:
        trainer.step(DATA)
        for call in (trainer.checkpoint, trainer.resume):
            with pytest.raises(df.InputError, match=rf"{call.__name__}: 1 micro-batches wait for the optimizer"):
                call(tmp_path)
        trainer.step(DATA)
        trainer.forward(DATA)
        with pytest.raises(df.InputError, match=r"checkpoint: a forward\(\) waits for its backward\(\)"):
            trainer.checkpoint(tmp_path)
        trainer.backward()
        trainer.discard()
        with pytest.raises(df.InputError, match=r"resume: there is no file .*none\.safetensors"):
            trainer.resume(tmp_path / "none.safetensors")
        for call in (trainer.checkpoint, trainer.resume):
            with pytest.raises(df.InputError, match=rf"{call.__name__}: \w+ is None; expected the path"):
                call(None)  # type: ignore[arg-type]
        trainer.checkpoint(tmp_path)
        trainer.programs.load_state(trainer.state() | {"parameters/w": np.float32(np.nan)})
        with pytest.raises(df.DataflowError, match="parameters/w not finite"):
            trainer.checkpoint(tmp_path)
    with (
        df.Trainer(line(), "mse", "adamw:lr=0.001", devices=["cpu"]) as trainer,
        pytest.raises(df.InputError, match="optimizer"),
    ):
        trainer.resume(tmp_path)


def test_a_checkpoint_of_a_later_step_is_not_taken_for_the_newest(tmp_path: Path) -> None:
    """As where a loop begins anew in a folder that an earlier one has filled."""
    with df.Trainer(line(), "mse", "sgd:lr=0.001", devices=["cpu"]) as trainer:
        for _ in range(3):
            trainer.step(DATA)
        trainer.checkpoint(tmp_path)
    with df.Trainer(line(), "mse", "sgd:lr=0.001", devices=["cpu"]) as trainer:
        trainer.step(DATA)
        with pytest.raises(df.InputError, match=r"step-000000003\.safetensors is of a later step than 1, where"):
            trainer.checkpoint(tmp_path)
        assert trainer.resume(tmp_path) == 3
        trainer.step(DATA)
        newest = trainer.checkpoint(tmp_path)
    newest.write_bytes(newest.read_bytes()[:-1])  # damaged, so that an earlier one counts
    with df.Trainer(line(), "mse", "sgd:lr=0.001", devices=["cpu"]) as trainer:
        assert trainer.resume(tmp_path) == 3
        trainer.checkpoint(tmp_path)


def test_what_changes_bits_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for threads, expected in ((1, []), (1, []), (2, ["threads"])):
        caplog.clear()
        with df.Trainer(line(), "mse", "sgd:lr=0.001", devices=["cpu"], threads=threads) as trainer:
            trainer.resume(tmp_path)
            trainer.step(DATA)
            trainer.checkpoint(tmp_path)
        found = [record.getMessage() for record in caplog.records]
        assert [one.split("not bit for bit, since these changed: ")[1] for one in found] == expected


@pytest.mark.parametrize("draws", [False, True])
def test_another_seed_is_said_where_numbers_are_drawn(draws: bool, tmp_path: Path, caplog: Any) -> None:
    """Dropout or noise is other then, in loops by hand too; without any a seed is the order of the data alone."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 2))
    noise = df.nn.normal(g, x.shape) if draws else x
    g.output("y", (x + noise) @ g.parameter("w", np.ones((2, 1), np.float32)))
    data = {"x": np.ones((4, 2), np.float32), "labels": np.zeros((4, 1), np.float32)}
    for seed, expected in ((1, []), (1, []), (2, ["seed"] if draws else [])):
        caplog.clear()
        with df.Trainer(df.Model(g.build()), "mse", "sgd:lr=0.001", devices=["cpu"], seed=seed) as trainer:
            trainer.resume(tmp_path)
            trainer.step(data)
            trainer.checkpoint(tmp_path)
        found = [record.getMessage() for record in caplog.records if "bit for bit" in record.getMessage()]
        assert [one.split("not bit for bit, since these changed: ")[1] for one in found] == expected
