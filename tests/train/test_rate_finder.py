"""The sweep of learning rates: what it finds, what it shows, and that it leaves no trace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dataflow as df
from tests.train.test_training import data, model

O = df.optim


@pytest.mark.parametrize(
    ("optimizer", "average"),
    [(O.SGD(lr=0.3, momentum=0.9, groups=[O.Group("b2", freeze=3)]), "ema:decay=0.5"), (O.ScheduleFreeAdamW(), None)],
    ids=["sgd", "schedule_free"],
)
@pytest.mark.parametrize("before", [0, 2])
def test_training_goes_on_as_if_there_was_no_sweep(optimizer: Any, average: Any, before: int) -> None:
    runs = []
    for swept in (False, True):
        trainer = df.Trainer(model(), optimizer=optimizer, average=average, devices=["cpu"], accumulate=2)
        losses = [trainer.step(data()) for _ in range(2 * before)]
        if swept:
            trainer.find_lr(data(), steps=12, batch_size=8, highest=10.0)
        losses += [trainer.step(data()) for _ in range(6)]
        runs.append((losses, trainer.steps, {n: p.array.tolist() for n, p in trainer.model.parameters.items()}))
    assert runs[0] == runs[1]


def test_the_suggestion_trains_and_the_curve_is_drawn() -> None:
    trainer = df.Trainer(model(), optimizer=O.SGD(), devices=["cpu"])
    curve = trainer.find_lr(data(), lowest=1e-4, highest=1e3, steps=80)
    assert curve.suggestion is not None
    assert 1e-2 < curve.suggestion < 10
    assert len(curve.rates) < 80  # it diverges, and ends then
    ratios = np.array(curve.rates[1:]) / curve.rates[:-1]
    np.testing.assert_allclose(ratios, (1e3 / 1e-4) ** (1 / 79), rtol=1e-6)
    text = str(curve)
    assert text.count("•") == min(60, len(curve.rates))
    assert f"suggested learning rate: {curve.suggestion:.2g}" in text
    worse = df.Trainer(model(), optimizer=O.SGD(lr=1.0), devices=["cpu"])
    assert "no rate suggested" in str(worse.find_lr(data(), lowest=1e-30, highest=1e-29, steps=10))


def test_impossible_sweeps_are_refused() -> None:
    trainer = df.Trainer(model(), optimizer=O.SGD(), devices=["cpu"], accumulate=2)
    for options, message in (
        ({"lowest": 0.0}, "expected 0 < lowest < highest"),
        ({"steps": 3}, "find_lr: steps"),
        ({"highest": 1e-9}, "expected 0 < lowest < highest"),
    ):
        with pytest.raises(df.InputError, match=message):
            trainer.find_lr(data(), **options)
    trainer.step(data())
    with pytest.raises(df.InputError, match="1 micro-batches of step"):
        trainer.find_lr(data())
    with pytest.raises(df.InputError, match="lr is 0"):
        df.Trainer(model(), optimizer=O.SGD(lr=0.0), devices=["cpu"]).find_lr(data())
