"""Freezing in mid-training, and changes of the rate and the batch size by callbacks, against formulas of PyTorch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.train.binding.phases import Phases


def model() -> df.Model:
    """y = (x a) b + c."""
    rng = np.random.default_rng(0)
    g = df.GraphBuilder("two")
    h = ops.matmul(g.input("x", df.float32, ("batch", 3)), g.parameter("a", rng.normal(size=(3, 4)).astype(np.float32)))
    y = ops.matmul(h, g.parameter("b", rng.normal(size=(4, 1)).astype(np.float32)))
    g.output("y", ops.add(y, g.parameter("c", np.zeros(1, np.float32))))
    return df.Model(g.build())


def data(n: int = 24) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(n, 3)).astype(np.float32)
    return {"x": x, "labels": (x @ np.array([[1.0], [-2.0], [0.5]]) + 1).astype(np.float32)}


class Adam:
    """As torch.optim.Adam on the model above, in float64: a parameter without gradient is left out of a step."""

    def __init__(self, made: df.Model, lr: float, betas: tuple[float, float], eps: float) -> None:
        self.p = {name: np.array(made.parameters[name].array, np.float64) for name in "abc"}
        self.m = {name: np.zeros_like(p) for name, p in self.p.items()}
        self.v = {name: np.zeros_like(p) for name, p in self.p.items()}
        self.t = dict.fromkeys("abc", 0)
        self.lr, self.betas, self.eps = lr, betas, eps

    def step(self, x: np.ndarray, y: np.ndarray, frozen: str = "", factor: float = 1.0) -> float:
        h = x @ self.p["a"]
        error = h @ self.p["b"] + self.p["c"] - y
        d = 2 * error / error.size
        gradients = {"a": x.T @ (d @ self.p["b"].T), "b": h.T @ d, "c": d.sum(0)}
        moving = {name: g for name, g in gradients.items() if name not in frozen}
        for name, g in moving.items():
            b1, b2 = self.betas
            self.t[name] += 1
            self.m[name] = b1 * self.m[name] + (1 - b1) * g
            self.v[name] = b2 * self.v[name] + (1 - b2) * g * g
            m, v = self.m[name] / (1 - b1 ** self.t[name]), self.v[name] / (1 - b2 ** self.t[name])
            self.p[name] = self.p[name] - factor * self.lr * m / (np.sqrt(v) + self.eps)
        return float(np.sqrt(sum((g**2).sum() for g in moving.values())))


def adam(**options: Any) -> Any:
    return df.optim.Adam(lr=0.05, betas=(0.8, 0.95), epsilon=1e-6, **options)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 1e9}, {"accumulate": 2}])
@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_frozen_parameters_stay_and_go_on_as_pytorch_s_do(device: str, options: dict[str, Any]) -> None:
    frozen_at = ["", "", "a", "a", "ac", "c", "c", "", "", "b", ""]
    made, given = model(), data(12)
    reference = Adam(made, 0.05, (0.8, 0.95), 1e-6)
    with df.Trainer(made, "mse", adam(), devices=[device], **options) as trainer:
        before = ""
        for frozen in frozen_at:
            for name in set(before) - set(frozen):
                trainer.unfreeze(name)
            for name in set(frozen) - set(before):
                trainer.freeze(name)
            assert set(trainer.frozen) == set(frozen)
            before, halves = frozen, options.get("accumulate", 1)
            norm = reference.step(given["x"].astype(np.float64), given["labels"].astype(np.float64), frozen)
            for half in range(halves - 1):
                trainer.forward({k: v[half * 6 : half * 6 + 6] for k, v in given.items()})
                trainer.backward()
            last = given if halves == 1 else {k: v[6:] for k, v in given.items()}
            trainer.forward(last)
            trainer.backward()
            assert set(trainer.gradients) == set("abc") - set(frozen)
            assert trainer.update()["gradient_norm"] == pytest.approx(norm, rel=1e-4)
            for name in "abc":
                np.testing.assert_allclose(made.parameters[name].array, reference.p[name], rtol=2e-4, atol=1e-5)


def test_a_frozen_layer_costs_no_gradient() -> None:
    with df.Trainer(model(), "mse", adam(), devices=["numpy"]) as trainer:
        trainer.step(data(4))
        all_of_it = sum(len(segment.steps) for segment in trainer.plans()["step"].segments)
        trainer.freeze(["a", "b"])
        trainer.step(data(4))
        assert sum(len(segment.steps) for segment in trainer.plans()["step"].segments) < all_of_it - 4


def test_freezing_before_the_first_step_leaves_the_rest_for_later() -> None:
    made = model()
    with df.Trainer(made, "mse", adam(), devices=["cpu"]) as trainer:
        trainer.freeze(["a", "b"])
        begun = {name: np.array(made.parameters[name].array) for name in "abc"}
        trainer.step(data(6))
        for name in "abc":
            assert np.array_equal(made.parameters[name].array, begun[name]) == (name != "c")
        trainer.unfreeze()
        trainer.step(data(6))
        assert not any(np.array_equal(made.parameters[name].array, begun[name]) for name in "abc")
        assert trainer.evaluate(data(6))["loss"] > 0


def test_what_can_not_be_frozen_is_refused() -> None:
    with df.Trainer(model(), "mse", adam(), trainable=["a", "c"], accumulate=2) as trainer:
        for patterns, says in (
            ("z*", "'z\\*' matches no parameter; nearest names"),
            ("b", "'b' matches only what isn't trained"),
            ("*", "no parameter would be left"),
            (3, "freeze"),
        ):
            with pytest.raises(df.InputError, match=says):
                trainer.freeze(patterns)
        trainer.step(data(4))
        with pytest.raises(df.InputError, match="1 micro-batches wait for update"):
            trainer.freeze("a")
        assert trainer.frozen == ()


def run(folder: Path | None, **options: Any) -> tuple[dict[str, np.ndarray], Any, list[int]]:
    """Two epochs frozen in part, at another rate, and with another batch size, as a callback says."""
    sizes: list[int] = []

    def change(event: df.callbacks.Event) -> None:
        trainer = event.trainer
        if event.kind == "step" and event.step == 3:
            trainer.freeze("a")
        if event.kind == "step" and event.step == 5:
            trainer.lr_factor = 0.5
            event.use_batch_size(4)
        if event.kind == "step" and event.step == 9:
            trainer.unfreeze("a")
        if event.kind == "step" and event.step == options.get("stop"):
            event.stop()

    made = model()
    with df.Trainer(made, "mse", adam(), devices=["cpu"], seed=3) as trainer:
        counted = df.Dataset(data()).map(lambda s: s)
        history = trainer.fit(
            counted,
            epochs=3,
            batch_size=8 if options.get("given") is None else options["given"],
            callbacks=[change],
            checkpoint=folder,
            every=1,
            keep=30,
            resume=options.get("resume"),
            progress=False,
        )
        sizes.append(trainer.steps)
        found = {name: np.array(made.parameters[name].array) for name in "abc"}
    return found, history, sizes


def test_the_rate_and_the_batch_size_follow_callbacks() -> None:
    _, history, (steps,) = run(None)
    assert steps == 3 + 3 + 6  # from the third epoch on batches of four
    assert history.steps["lr"] == pytest.approx([0.05] * 5 + [0.025] * 7)


@pytest.mark.parametrize("stop", [2, 3, 4, 6, 8, 10])
def test_a_run_with_changes_resumes_to_the_same_bits(tmp_path: Path, stop: int) -> None:
    straight, history, _ = run(None)
    run(tmp_path, stop=stop)
    found, again, _ = run(tmp_path, resume="auto")
    for name, array in straight.items():
        np.testing.assert_array_equal(found[name], array)
    assert again.steps == history.steps


def test_the_rate_s_factor_is_checked() -> None:
    with df.Trainer(model(), "mse") as trainer:
        for wrong in (0, -1.0, float("nan"), "half"):
            with pytest.raises(df.InputError, match="lr_factor"):
                trainer.lr_factor = wrong
    with pytest.raises(df.InputError, match="use_batch_size"):
        df.callbacks.Event("step", trainer, 1, 0, {}).use_batch_size(0)


def embedding() -> df.Model:
    """An embedding whose transposed copy is the output layer, and a norm between."""
    rng = np.random.default_rng(0)
    table = rng.normal(size=(7, 5)).astype(np.float32)
    g = df.GraphBuilder("tied")
    h = ops.gather(g.parameter("table", table), g.input("x", df.int64, ("batch",)), axis=0)
    h = ops.mul(h, g.parameter("scale", np.ones(5, np.float32)))
    g.output("logits", ops.matmul(h, g.parameter("out", np.ascontiguousarray(table.T))))
    return df.Model(g.build())


def tokens(n: int = 8) -> dict[str, np.ndarray]:
    return {"x": np.arange(n) % 7, "labels": (np.arange(n) * 3) % 7}


@pytest.mark.parametrize("options", [{}, {"memory": "1x"}, {"average": df.optim.EMA(0.5)}])
def test_tied_parameters_freeze_by_any_of_their_names(options: dict[str, Any]) -> None:
    made = embedding()
    with df.Trainer(made, tie=True, devices=["cpu"], **options) as trainer:
        trainer.step(tokens())
        before = {name: np.array(made.parameters[name].array) for name in ("table", "out", "scale")}
        trainer.freeze("out")
        assert trainer.frozen == ("table",)
        trainer.step(tokens())
        for name, array in before.items():
            assert np.array_equal(made.parameters[name].array, array) == (name != "scale")
        trainer.unfreeze("table")
        trainer.step(tokens())
        assert not np.array_equal(made.parameters["out"].array, before["out"])
        np.testing.assert_array_equal(made.parameters["out"].array, made.parameters["table"].array.T)


def test_groups_that_freeze_at_first_count_steps_once() -> None:
    """A parameter that its group freezes for four steps, and a caller for the first six, begins at the seventh."""

    def weights(freeze: int, by_hand: bool) -> np.ndarray:
        made = model()
        rule = adam(groups=[df.optim.Group("a", freeze=freeze)])
        with df.Trainer(made, "mse", rule, devices=["numpy"]) as trainer:
            for step in range(9):
                if by_hand and step == 0:
                    trainer.freeze("a")
                if by_hand and step == 6:
                    trainer.unfreeze("a")
                trainer.step(data(6))
            return np.array(made.parameters["a"].array)

    np.testing.assert_array_equal(weights(4, True), weights(6, False))


def alternating(count: int) -> tuple[df.Trainer, list[int]]:
    """A training in which two halves train alternately, and how many programs there were after each step."""
    trainer = df.Trainer(model(), "mse", adam(), devices=["cpu"])
    programs = []
    trainer.freeze(["a", "b"])
    trainer.step(data(4))
    for number in range(count):
        trainer.unfreeze("*")
        trainer.freeze(["c"] if number % 2 == 0 else ["a", "b"])
        trainer.step(data(4))
        programs.append(len(trainer.programs.engine.programs))
    return trainer, programs


def test_programs_of_what_alternates_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, programs = alternating(12)
    with trainer:
        kept = {name: np.array(p.array) for name, p in trainer.model.parameters.items()}
    assert programs[6:] == [programs[6]] * 6
    monkeypatch.setattr(Phases, "are_many", True)
    trainer, alone = alternating(12)
    with trainer:
        assert alone[-1] < programs[-1]
        for name, array in kept.items():
            np.testing.assert_array_equal(trainer.model.parameters[name].array, array)


@pytest.mark.parametrize(
    "average", [df.optim.EMA(0.7), df.optim.EMA(0.7, start=2, every=2), df.optim.SWA(0, 1), df.optim.SWA(1, 2)]
)
@pytest.mark.parametrize("by_group", [True, False])
def test_averages_take_in_parameters_that_stand_still(by_group: bool, average: Any) -> None:
    """As torch.optim.swa_utils.AveragedModel: the mean of weights at each counted step, whether they moved or not."""
    groups = [df.optim.Group("a", freeze=3)] if by_group else []
    made, batch = model(), data(8)
    with df.Trainer(made, "mse", adam(groups=groups), average=average) as trainer:
        means: dict[str, np.ndarray] = {}
        counted = 0
        for number in range(7):
            if not by_group and number in (2, 5):
                (trainer.freeze if number == 2 else trainer.unfreeze)("a")
            trainer.step(batch)
            trainer.averaged = False
            weights = {name: np.array(made.parameters[name].array, np.float64) for name in "abc"}
            trainer.averaged = True
            behind = number - average.start
            if behind >= 0 and behind % average.every == 0:
                counted += 1
                share = 0.3 if isinstance(average, df.optim.EMA) else 1 / counted
                means = {n: w if counted == 1 else means[n] + share * (w - means[n]) for n, w in weights.items()}
        for name, mean in means.items():
            np.testing.assert_allclose(made.parameters[name].array, mean, rtol=2e-6, atol=1e-7, err_msg=name)
