"""L-BFGS follows torch.optim.LBFGS, and is resumed where it stood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow.train.nonfinite import NonFiniteLoss
from dataflow.train.optimizers.lbfgs import State
from tests.support import Stopped, recorded, stopping_at
from tests.train.test_optimizers import gradients
from tests.train.test_training import QUIET, data, model

O = df.optim
RULES = {
    "lbfgs": O.LBFGS(iterations=4, history=5),
    "lbfgs_fixed": O.LBFGS(lr=0.3, iterations=4, history=5, line_search="none"),
}


@pytest.mark.parametrize("name", RULES)
def test_steps_are_pytorchs_in_float64(name: str) -> None:
    wanted, rule = recorded("optimizers"), RULES[name]
    tensors = {key: p.array.astype(float) for key, p in model().parameters.items()}
    ends = np.cumsum([p.size for p in tensors.values()])[:-1]

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        p = {key: block.reshape(tensors[key].shape) for key, block in zip(tensors, np.split(x, ends), strict=True)}
        loss, found = gradients(p)
        return loss, np.concatenate([found[key].reshape(-1) for key in tensors])

    x, state = np.concatenate([p.reshape(-1) for p in tensors.values()]), State()
    for loss, evaluations in zip(wanted[f"{name}/losses"], wanted[f"{name}/evaluations"], strict=True):
        value, gradient = evaluate(x)
        assert value == pytest.approx(loss, rel=1e-8)
        found = rule.minimize(rule.lr, x, value, gradient, evaluate, state)
        assert found.evaluations == evaluations
        x, state = found.x, found.state
    for key, block in zip(tensors, np.split(x, ends), strict=True):
        np.testing.assert_allclose(block, wanted[f"{name}/{key}"].reshape(-1), rtol=1e-4, atol=1e-6)


def test_searches_that_divide_brackets_are_pytorchs() -> None:
    """On Rosenbrock's function."""
    wanted = recorded("optimizers")

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        off, gradient = x[1:] - x[:-1] ** 2, np.zeros_like(x)
        gradient[1:] += 200 * off
        gradient[:-1] += -400 * x[:-1] * off - 2 * (1 - x[:-1])
        return float((100 * off**2 + (1 - x[:-1]) ** 2).sum()), gradient

    x, state = np.array([-1.2, 1.0, 0.5, -0.7]), State()
    for loss, evaluations in zip(wanted["rosenbrock/losses"], wanted["rosenbrock/evaluations"], strict=True):
        value, gradient = evaluate(x)
        assert value == pytest.approx(loss, rel=1e-9)
        found = RULES["lbfgs"].minimize(1.0, x, value, gradient, evaluate, state)
        assert found.evaluations == evaluations
        x, state = found.x, found.state


@pytest.mark.parametrize("micro", [24, 7])
@pytest.mark.parametrize("name", RULES)
def test_training_follows_pytorch(name: str, micro: int) -> None:
    """Seven steps of a batch or of micro-batches; then a search meets a kink, where roundings decide."""
    wanted, arrays = recorded("optimizers"), data()
    starts = range(0, 32, micro)
    with df.Trainer(model(), optimizer=RULES[name], devices=["cpu"], accumulate=len(starts)) as trainer:
        rows = []
        for _ in range(7):
            for start in starts:
                trainer.forward({key: array[start : start + micro] for key, array in arrays.items()})
                trainer.backward()
            rows.append(trainer.update())
    np.testing.assert_allclose([row["loss"] for row in rows], wanted[f"{name}/losses"], rtol=3e-6)
    np.testing.assert_array_equal([row["evaluations"] for row in rows], wanted[f"{name}/evaluations"])


def test_a_run_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    ended: dict[str, Any] = {}

    def run(name: str, *callbacks: Any, resume: Any = None) -> None:
        with df.Trainer(model(), optimizer="lbfgs:iterations=3,history=4", devices=["cpu"], accumulate=2) as trainer:
            saving: Any = {"checkpoint": tmp_path / name, "every": 1, "resume": resume, "callbacks": callbacks}
            trainer.fit(data(), epochs=3, batch_size=8, **saving, **QUIET)
            ended[name] = trainer.programs.state()

    run("whole")
    with pytest.raises(Stopped):
        run("resumed", stopping_at(4))
    run("resumed", resume="auto")
    for name, array in ended["whole"].items():
        np.testing.assert_array_equal(array, ended["resumed"][name], err_msg=name)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    rule = O.LBFGS(lr=1e30, iterations=3, line_search="none")
    with df.Trainer(model(), optimizer=rule, devices=["cpu"]) as trainer:
        before = {name: p.array for name, p in trainer.model.parameters.items()}
        with pytest.raises(NonFiniteLoss):
            trainer.step(data())
        for name, array in before.items():
            np.testing.assert_array_equal(trainer.model.parameters[name].array, array)
        assert (trainer.steps, trainer.pending) == (0, 0)


def test_a_search_comes_back_from_what_is_not_finite() -> None:
    with df.Trainer(model(), optimizer=O.LBFGS(lr=1e30, iterations=5), devices=["cpu"]) as trainer:
        losses = [trainer.step(data()) for _ in range(3)]
    assert losses[2] <= losses[1] <= losses[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_norm": 1.0}, "LBFGS doesn't fit clip_norm"),
        ({"clip_value": 1.0}, "LBFGS doesn't fit clip_value"),
        ({"average": "ema"}, "LBFGS doesn't fit average"),
        ({"loss_scale": 2.0, "batch_norm": "update"}, "LBFGS doesn't fit batch_norm='update' and loss_scale"),
        ({"optimizer": O.AdamW(groups=[O.Group("w1", optimizer=O.LBFGS())])}, "a group can't have it alone"),
    ],
)
def test_what_does_not_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(df.InputError, match=message):
        df.Trainer(model(), **{"optimizer": O.LBFGS(), **options})


def test_refusals() -> None:
    with pytest.raises(df.InputError, match=r"line_search is 'wolfe'; expected .*strong_wolfe"):
        O.LBFGS(line_search="wolfe")
    with pytest.raises(df.InputError, match="history"):
        O.LBFGS(history=0)
    with df.Trainer(model(), optimizer=O.LBFGS(), devices=["cpu"]) as trainer:
        with pytest.raises(df.InputError, match="freeze: LBFGS"):
            trainer.freeze("w1")
        with pytest.raises(df.InputError, match="can't be profiled"):
            trainer.profile(data())
