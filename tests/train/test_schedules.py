from __future__ import annotations

import math

import numpy as np
import pytest

import dataflow as df
from dataflow.train import schedules
from dataflow.train.metrics import RunningMean
from dataflow.train.names import CORE_ONLY
from dataflow.train.progress import described


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


def test_an_end_that_comes_with_the_run() -> None:
    open_end = CORE_ONLY.schedule("cosine")
    with pytest.raises(df.InputError, match="steps="):
        open_end(0)
    assert schedules.over(open_end, 20)(10) == pytest.approx(0.5)
    assert schedules.over(schedules.Linear(steps=5), 20)(5) == 0.0
    with pytest.raises(df.InputError, match="no schedule 'cosin'"):
        CORE_ONLY.schedule("cosin")


def test_hyper_tensors() -> None:
    adam = df.optim.AdamW(lr=0.1, weight_decay=0.02, betas=(0.9, 0.99))
    np.testing.assert_allclose(adam.hyper(2, 0.05), [0.05, 0.02, 1 - 0.81, 1 - 0.9801], rtol=1e-6)
    assert adam.hyper(1, 0.1).dtype == np.float32
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
