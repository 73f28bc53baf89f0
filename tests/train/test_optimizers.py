"""Fifty steps of every optimizer follow PyTorch's, as recorded, or the algorithm of its paper in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dataflow as df
from tests.support import recorded
from tests.train.test_training import data, model

STEPS = 50
O = df.optim
Arrays = dict[str, np.ndarray]


def trained(optimizer: Any, **options: Any) -> tuple[np.ndarray, Arrays, df.Trainer]:
    """Losses before each step, and the parameters after the last."""
    trainer = df.Trainer(model(), optimizer=optimizer, devices=["cpu"], **options)
    losses = np.array([trainer.step(data()) for _ in range(STEPS)])
    trainer.averaged = False
    return losses, {name: p.array.copy() for name, p in trainer.model.parameters.items()}, trainer


RECORDED = {
    "adamw": O.AdamW(lr=0.05, weight_decay=0.1, no_decay=()),
    "amsgrad": O.Adam(lr=0.05, weight_decay=0.01, amsgrad=True),
    "adam": O.Adam(lr=0.05, weight_decay=0.01),
    "adamax": O.Adamax(lr=0.05, weight_decay=0.01),
    "nadam": O.NAdam(lr=0.05, weight_decay=0.01),
    "radam": O.RAdam(lr=0.05, weight_decay=0.01),
    "rmsprop": O.RMSprop(lr=0.005, weight_decay=0.01),
    "rmsprop_centered": O.RMSprop(lr=0.002, momentum=0.9, centered=True),
    "adagrad": O.Adagrad(lr=0.05, weight_decay=0.01, lr_decay=0.01, start=0.1),
    "adadelta": O.Adadelta(lr=2.0, weight_decay=0.01),
    "adafactor": O.Adafactor(lr=0.2, weight_decay=0.01),
    "muon": O.Muon(lr=0.05, vectors=O.AdamW(lr=0.02, weight_decay=0.0)),
}


@pytest.mark.parametrize("name", RECORDED)
def test_steps_are_pytorchs(name: str) -> None:
    wanted = recorded("optimizers")
    losses, parameters, trainer = trained(RECORDED[name])
    compare(losses, parameters, wanted[f"{name}/losses"], {n: wanted[f"{name}/{n}"] for n in parameters})
    plan = trainer.programs.plans()["step"]
    updates = plan.items[plan.ranges["optimizer"].start :]
    assert {segment.device for segment in updates} == {"cpu"}
    assert sum(len(segment.steps) for segment in updates) <= 4 * 18 + 4  # few nodes per parameter


def compare(losses: np.ndarray, parameters: Arrays, wanted: np.ndarray, ends: Arrays) -> None:
    assert wanted[-1] < 0.8 * wanted[0]
    np.testing.assert_allclose(losses, wanted, rtol=2e-5)
    for name, array in parameters.items():
        np.testing.assert_allclose(array, ends[name], rtol=2e-4, atol=2e-5, err_msg=name)


# ---- the papers' algorithms ----------------------------------------------------------------------------


def gradients(p: Arrays) -> tuple[float, Arrays]:
    """The loss of the network and its gradients, in float64."""
    arrays = data()
    counted = arrays["labels"] >= 0
    x, labels = arrays["x"][counted].astype(np.float64), arrays["labels"][counted]
    hidden = x @ p["w1"] + p["b1"]
    active = np.maximum(hidden, 0.0)
    logits = active @ p["w2"] + p["b2"]
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    softmax = shifted / shifted.sum(1, keepdims=True)
    loss = -np.log(softmax[np.arange(len(labels)), labels]).mean()
    d = softmax.copy()
    d[np.arange(len(labels)), labels] -= 1.0
    d /= len(labels)
    dh = (d @ p["w2"].T) * (hidden > 0)
    return float(loss), {"w1": x.T @ dh, "b1": dh.sum(0), "w2": active.T @ d, "b2": d.sum(0)}


def lion(p: Arrays, state: dict[str, Any], step: int) -> None:
    """Chen et al. 2023, algorithm 2: rate 0.01, decay 0.1."""
    for name, g in gradients(p)[1].items():
        m = state.setdefault(name, np.zeros_like(g))
        update = np.sign(0.9 * m + 0.1 * g)
        p[name] = p[name] - 0.01 * (update + 0.1 * p[name])
        state[name] = 0.99 * m + 0.01 * g


def lamb(p: Arrays, state: dict[str, Any], step: int) -> None:
    """You et al. 2020, algorithm 2: rate 0.05, decay 0.1."""
    for name, g in gradients(p)[1].items():
        m, v = state.setdefault(name, (np.zeros_like(g), np.zeros_like(g)))
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        state[name] = m, v
        r = m / (1 - 0.9**step) / (np.sqrt(v / (1 - 0.999**step)) + 1e-6) + 0.1 * p[name]
        norms = np.linalg.norm(p[name]), np.linalg.norm(r)
        p[name] = p[name] - 0.05 * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * r


def schedule_free(p: Arrays, state: dict[str, Any], step: int) -> None:
    """Defazio et al. 2024, algorithm 1 with AdamW's steps: rate 0.05 after a warm-up of 10 steps, decay 0.1."""
    lr = 0.05 * min(1.0, step / 10)
    state["weights"] = state.get("weights", 0.0) + lr**2
    c = lr**2 / state["weights"]
    for name, g in gradients(p)[1].items():
        z, x, v = state.setdefault(name, (p[name], p[name], np.zeros_like(g)))
        v = 0.999 * v + 0.001 * g * g
        z = z - lr * (g / (np.sqrt(v / (1 - 0.999**step)) + 1e-8) + 0.1 * p[name])
        x = (1 - c) * x + c * z
        state[name] = z, x, v
        p[name] = 0.1 * z + 0.9 * x


def schedule_free_sgd(p: Arrays, state: dict[str, Any], step: int) -> None:
    """The same, algorithm 1: rate 0.5."""
    for name, g in gradients(p)[1].items():
        z, x = state.setdefault(name, (p[name], p[name]))
        z = z - 0.5 * g
        x = x + (z - x) / step
        state[name] = z, x
        p[name] = 0.1 * z + 0.9 * x


PAPERS: dict[str, tuple[Callable[..., None], Any]] = {
    "lion": (lion, O.Lion(lr=0.01, weight_decay=0.1, no_decay=())),
    "lamb": (lamb, O.LAMB(lr=0.05, weight_decay=0.1, no_decay=())),
    "schedule_free": (
        schedule_free,
        O.ScheduleFreeAdamW(lr=0.05, weight_decay=0.1, no_decay=(), schedule=df.schedules.Constant(warmup=10)),
    ),
    "schedule_free_sgd": (schedule_free_sgd, O.ScheduleFreeSGD(lr=0.5)),
}


@pytest.mark.parametrize("name", PAPERS)
def test_steps_are_the_papers(name: str) -> None:
    rule, optimizer = PAPERS[name]
    p = {n: q.array.astype(np.float64) for n, q in model().parameters.items()}
    state: dict[str, Any] = {}
    wanted = []
    for step in range(1, STEPS + 1):
        wanted.append(gradients(p)[0])
        rule(p, state, step)
    losses, parameters, trainer = trained(optimizer)
    compare(losses, parameters, np.array(wanted), p)
    if name.startswith("schedule_free"):
        trainer.averaged = True
        for n, q in trainer.model.parameters.items():
            np.testing.assert_allclose(q.array, state[n][1], rtol=2e-4, atol=2e-5, err_msg=n)
