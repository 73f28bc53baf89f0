from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import schedules
from dataflow.train.metrics import RunningMean
from dataflow.train.names import CORE_ONLY
from dataflow.train.progress import described
from dataflow.train.schedules.runs import over, warmed
from tests.support import recorded


def test_cosine_after_warm_up() -> None:
    schedule = schedules.Cosine(steps=110, warmup=10, final=0.1)
    assert schedule(0) == pytest.approx(0.1)
    assert schedule(9) == pytest.approx(1.0)
    assert schedule(10) == pytest.approx(1.0)
    assert schedule(60) == pytest.approx(0.1 + 0.9 * 0.5)
    assert schedule(35) == pytest.approx(0.1 + 0.45 * (1 + math.cos(math.pi / 4)))
    assert schedule(110) == schedule(500) == pytest.approx(0.1)


def test_linear_step_and_constant() -> None:
    linear = schedules.Linear(steps=10)
    assert [linear(s) for s in (0, 5, 10, 20)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
    step = schedules.Step(every=3, factor=0.5)
    assert [step(s) for s in (0, 2, 3, 6)] == pytest.approx([1.0, 1.0, 0.5, 0.25])
    constant = schedules.Constant(warmup=4)
    assert [constant(s) for s in (0, 1, 3, 99)] == pytest.approx([0.25, 0.5, 1.0, 1.0])


RECORDED = {
    "step": schedules.Step(every=7, factor=0.5),
    "multi_step": schedules.MultiStep(at=(5, 6, 30), factor=0.3),
    "exponential": schedules.Exponential(0.9),
    "polynomial": schedules.Polynomial(steps=40, power=1.7),
    "linear": schedules.Linear(steps=40, final=0.2),
    "cosine": schedules.Cosine(steps=50, final=0.1),
    "warm_cosine": schedules.Cosine(steps=50, warmup=8),
    "warm_step": schedules.Warmup(lambda step: 0.5 ** (step // 9), 8),
    "cosine_restarts": schedules.CosineRestarts(6, growth=2, final=0.05),
    "one_cycle": schedules.OneCycle(steps=50, rise=0.25),
}


@pytest.mark.parametrize("name", RECORDED)
def test_factors_are_pytorchs(name: str) -> None:
    wanted = recorded("schedules")[name]
    np.testing.assert_allclose([RECORDED[name](step) for step in range(len(wanted))], wanted, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("mode", ["min", "max"])
def test_plateaus_are_pytorchs(mode: str) -> None:
    data = recorded("schedules")
    figures = list(data["figures"] if mode == "min" else 1.0 / data["figures"])
    plateau = schedules.Plateau(0.5, patience=2, mode=mode, cooldown=2, least=0.05, threshold=0.01, warmup=4)
    found = [plateau.after({"val_loss": figures[: n + 1]})(100) for n in range(len(figures))]
    np.testing.assert_allclose(found, data[f"plateau_{mode}"])
    assert len(set(found)) >= 3
    assert plateau.after({})(1) == 0.5  # the warm-up
    with pytest.raises(df.InputError, match="no figure 'val_loss'; there are loss; give validation="):
        plateau.after({"loss": [1.0]})


def test_a_plateau_acts_in_fit_and_goes_on_when_resumed(linear, tmp_path) -> None:
    rule = schedules.Plateau(0.5, patience=0, mode="max")  # a loss that falls is no better
    options = {"batch_size": 16, "validation": linear.data(seed=2), "progress": False, "checkpoint": tmp_path}
    with pytest.raises(df.InputError, match="depends on 'val_loss', so it needs validation="):
        linear.trainer(optimizer=df.optim.SGD(schedule=rule)).fit(linear.data(), progress=False)
    first = linear.trainer(optimizer=df.optim.SGD(lr=0.01, momentum=0.9, schedule=rule)).fit(
        linear.data(), epochs=2, **options
    )
    rates = first.steps["lr"]
    assert rates == [0.01] * 8
    again = linear.trainer(optimizer=df.optim.SGD(lr=0.01, momentum=0.9, schedule=rule))
    rates = again.fit(linear.data(), epochs=4, resume="auto", **options).steps["lr"]
    assert rates == [0.01] * 8 + [0.005] * 4 + [0.0025] * 4


def test_stable_phase_and_inverse_sqrt() -> None:
    for shape, half in (("linear", 0.5), ("cosine", 0.5), ("sqrt", 1 - math.sqrt(0.5))):
        stable = schedules.WarmupStableDecay(steps=100, warmup=10, decay=0.2, shape=shape, final=0.0)
        assert [stable(s) for s in (0, 9, 50, 80, 90, 100)] == pytest.approx([0.1, 1, 1, 1, half, 0], abs=1e-12)
    inverse = schedules.InverseSqrt(warmup=4)  # min(s / 4, sqrt(4 / s)) of Vaswani et al., for s from 1
    assert [inverse(s) for s in (0, 3, 4, 12)] == pytest.approx([0.25, 1.0, 1.0, math.sqrt(4 / 12)])
    assert schedules.InverseSqrt(scale=9)(27) == pytest.approx(0.5)


def test_a_warm_up_before_any_schedule() -> None:
    assert warmed(schedules.Step(3), 2.0) == schedules.Step(3, warmup=2)
    fraction = over(warmed(CORE_ONLY.schedule("cosine"), 0.1), 40)
    assert fraction == schedules.Cosine(steps=40, warmup=4)
    assert over(warmed(schedules.OneCycle(), 10), 40) == schedules.Warmup(schedules.OneCycle(steps=30), 10)
    own = warmed(lambda step: 3.0, 2)
    assert [own(s) for s in range(3)] == [1.5, 3.0, 3.0]
    with pytest.raises(df.InputError, match="fraction of a run of unknown length"):
        schedules.Constant(warmup=0.5)(0)
    assert CORE_ONLY.schedule("multi_step:at=[2, 5],factor=0.5")(4) == 0.5


@pytest.mark.parametrize(
    "make",
    [
        lambda: schedules.Step(0),
        lambda: schedules.Cosine(steps=0),
        lambda: schedules.Cosine(warmup=1.5),
        lambda: schedules.Linear(warmup=-1),
        lambda: schedules.MultiStep(at=[1.5]),
        lambda: schedules.OneCycle(rise=1.0),
        lambda: schedules.WarmupStableDecay(shape="round"),
        lambda: schedules.Plateau(factor=1.0),
        lambda: schedules.Warmup("cosine", 3),
        lambda: schedules.Warmup(schedules.Plateau(), 3),
    ],
)
def test_impossible_schedules_are_refused(make) -> None:
    with pytest.raises(df.InputError, match="schedule"):
        make()


def test_an_end_that_comes_with_the_run() -> None:
    open_end = CORE_ONLY.schedule("cosine")
    with pytest.raises(df.InputError, match="steps="):
        open_end(0)
    assert over(open_end, 20)(10) == pytest.approx(0.5)
    assert over(schedules.Linear(steps=5), 20)(5) == 0.0
    with pytest.raises(df.InputError, match="no schedule 'cosin'"):
        CORE_ONLY.schedule("cosin")


def test_hyper_tensors() -> None:
    adam = df.optim.AdamW(lr=0.1, weight_decay=0.02, betas=(0.9, 0.99))
    np.testing.assert_allclose(adam.hyper(2, 0.05), [0.05, 0.02, 1 - 0.81, 1 - 0.9801], rtol=1e-6)
    assert adam.hyper(1, 0.1).dtype == np.float64
    assert adam.hyper(1, 0.1).shape == (adam.hyper_size,)
    sgd = df.optim.SGD(lr=0.1, momentum=0.5, weight_decay=0.3)
    np.testing.assert_allclose(sgd.hyper(7, 0.05), [0.05, 0.3], rtol=1e-6)
    assert sgd.slots == ("velocity",)
    assert df.optim.SGD(lr=0.1).slots == ()


@pytest.mark.parametrize(
    "make",
    [
        lambda: df.optim.AdamW(lr=-1.0),
        lambda: df.optim.AdamW(betas=(0.9, 1.0)),
        lambda: df.optim.SGD(lr=math.nan),
        lambda: df.optim.SGD(nesterov=True),
    ],
)
def test_impossible_settings_are_refused(make: object) -> None:
    with pytest.raises(df.InputError):
        make()


def test_the_error_of_a_fraction_is_binomial() -> None:
    running = RunningMean(True)
    running.add(30, 40)
    running.add(45, 60)
    assert running.mean == 0.75
    assert running.error == pytest.approx(math.sqrt(0.75 * 0.25 / 100))


def test_the_error_of_a_mean_covers_the_truth() -> None:
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(300):
        running = RunningMean()
        for size in (8, 8, 8, 8, 8, 8, 8, 8, 8, 3):
            running.add(float(rng.exponential(2.0, size).sum()), size)
        inside += abs(running.mean - 2.0) < 2 * running.error
    assert 0.85 < inside / 300 < 0.99  # 95% for a normal mean; a skew one of 75 samples is covered a little less


def test_the_error_of_equal_batches_is_the_textbooks() -> None:
    means = np.array([1.0, 2.0, 4.0, 5.0])
    running = RunningMean()
    for mean in means:
        running.add(10 * mean, 10)
    assert running.mean == means.mean()
    assert running.error == pytest.approx(means.std(ddof=1) / 2)
    one = RunningMean()
    one.add(3, 1)
    assert math.isnan(one.error)


def test_figures_are_as_long_as_their_errors() -> None:
    figures = {
        "loss": 0.42134,
        "loss_error": 0.0091,
        "accuracy": 0.5,
        "accuracy_error": 0.123,
        "mae": 1234.56,
        "lr": 1.0,
    }
    assert described(figures) == "loss 0.4213 ± 0.0091, accuracy 0.50 ± 0.12, mae 1235"
    assert described({"accuracy": 1.0, "accuracy_error": 0.0}) == "accuracy 1.0000 ± 0.0000"
    assert described({"loss": math.nan}) == "loss nan"


# ---- whether less or more is better ---------------------------------------------------------------------


def classifier() -> df.Model:
    """Of four features, two of which tell the class, that begins with the wrong sign."""
    g = df.GraphBuilder("classifier")
    w = np.zeros((4, 3), np.float32)
    w[:3, :3] = -np.eye(3)
    g.output("y", df.ops.matmul(g.input("x", df.float32, ("n", 4)), g.parameter("w", w)))
    return df.Model(g.build())


def labelled() -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).standard_normal((90, 4)).astype(np.float32)
    return {"x": x, "labels": x[:, :3].argmax(1)}


class Rising:
    """A figure that rises from one evaluation to the next."""

    name, calls = "rising", [0.0]

    def update(self, output: np.ndarray, labels: np.ndarray) -> None:
        pass

    def result(self) -> float:
        self.calls[0] += 1.0
        return self.calls[0]


RISING = ["f1", "recall", "precision:average=weighted", "iou", "mcc", "roc_auc", "pr_auc", "accuracy", "top2"]


@pytest.mark.parametrize("metric", RISING)
def test_a_run_goes_on_while_a_figure_rises_of_which_more_is_better(metric: str) -> None:
    data = labelled()
    figure = "val_" + metric.replace(":average=", "_")
    options: dict[str, Any] = {"epochs": 8, "batch_size": 90, "progress": False}
    with df.Trainer(classifier(), "cross_entropy", "sgd:lr=2", metrics=[metric], devices=["cpu"]) as trainer:
        history = trainer.fit(data, data, early_stop=df.EarlyStop(figure, patience=2), **options)
        assert trainer.evaluate(data)[figure[4:]] == pytest.approx(max(history[figure]), rel=1e-6)
    plateau = df.schedules.Plateau(monitor=figure, patience=2, factor=0.1)
    optimizer = df.optim.SGD(lr=2.0, momentum=0.9, schedule=plateau)
    with df.Trainer(classifier(), "cross_entropy", optimizer, metrics=[metric], devices=["cpu"]) as trainer:
        history = trainer.fit(data, data, **options)
    best = np.maximum.accumulate(history[figure])
    first = next((n for n in range(3, 8) if best[n] <= best[n - 3] * (1 + 1e-4)), 7)  # PyTorch's rule, mode="max"
    assert history.steps["lr"][: first + 1] == [2.0] * (first + 1)


@pytest.mark.parametrize(("mode", "epochs"), [("max", 5), ("min", 2)])
def test_a_metric_of_ones_own_says_whether_more_is_better(mode: str, epochs: int) -> None:
    data, metric = labelled(), Rising()
    rule = df.EarlyStop("val_rising", patience=1)
    with df.Trainer(classifier(), metrics=[metric], devices=["cpu"]) as trainer:
        with pytest.raises(df.InputError, match=r"'rising' doesn't say whether less or more .*mode='min'"):
            trainer.fit(data, data, early_stop=rule, progress=False)
        given = df.EarlyStop("val_rising", patience=1, mode=mode)  # type: ignore[arg-type]
        assert len(trainer.fit(data, data, epochs=5, early_stop=given, progress=False)["loss"]) == epochs
    metric.mode = mode  # type: ignore[attr-defined]
    with df.Trainer(classifier(), metrics=[metric], devices=["cpu"]) as trainer:
        assert len(trainer.fit(data, data, epochs=5, early_stop=rule, progress=False)["loss"]) == epochs


def test_of_losses_and_errors_less_is_better() -> None:
    data = {"x": labelled()["x"], "labels": np.zeros((90, 3), np.float32)}
    for figure in ("val_loss", "val_mae", "val_rmse"):
        optimizer, rule = df.optim.SGD(lr=0.3), df.EarlyStop(figure, patience=1)
        with df.Trainer(classifier(), "mse", optimizer, metrics=["mae", "rmse"], devices=["cpu"]) as trainer:
            history = trainer.fit(data, data, epochs=6, batch_size=90, early_stop=rule, progress=False)
        assert len(history[figure]) == 6


def test_rules_of_ones_own_need_no_settings_of_ours() -> None:
    """A rule that derives from ours and takes other arguments, and a schedule that is none of ours."""

    class Patient(df.EarlyStop):
        def __init__(self) -> None:
            super().__init__("val_f1", patience=2)

    class Constant:
        monitor, mode = "val_loss", None

        def __call__(self, step: int) -> float:
            return 1.0

    data, optimizer = labelled(), df.optim.SGD(lr=2.0, schedule=Constant())
    with df.Trainer(classifier(), "cross_entropy", optimizer, metrics=["f1"], devices=["cpu"]) as trainer:
        history = trainer.fit(data, data, epochs=8, batch_size=90, early_stop=Patient(), progress=False)
        assert trainer.evaluate(data)["f1"] == pytest.approx(max(history["val_f1"]), rel=1e-6)
