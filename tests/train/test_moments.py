"""Moments in bytes, against the formulas of Dettmers et al. 2021 in float64."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from tests.support import Stopped, stopping_at
from tests.train.test_training import QUIET

O = df.optim
STEPS = 50
SIZE = 72  # 5184 elements: three blocks of 2048, of which the last is shorter


def model(dtype: Any = np.float32) -> df.Model:
    random = np.random.default_rng(0)
    g = df.GraphBuilder("network")
    h = ops.tanh(ops.matmul(g.input("x", dtype, ("batch", SIZE)), g.parameter("w1", weight(random, SIZE, dtype))))
    b = g.parameter("b", np.zeros(4, dtype))
    g.output("y", ops.add(ops.matmul(h, g.parameter("w2", weight(random, 4, dtype))), b))
    return df.Model(g.build())


def weight(random: np.random.Generator, columns: int, dtype: Any) -> np.ndarray:
    return (random.standard_normal((SIZE, columns)) / 8).astype(dtype)


def data(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    random = np.random.default_rng(1)
    x = random.standard_normal((64, SIZE))
    return {"x": x.astype(dtype), "labels": np.tanh(x @ random.standard_normal((SIZE, 4)) / 8).astype(np.float32)}


# ---- the paper's formulas ------------------------------------------------------------------------------


@functools.cache
def tree(signed: bool) -> np.ndarray:
    """Section 2 of the paper, bit by bit: zeros, a one, and a fraction; 0 and 1 are two numbers more."""
    found = {0.0, 1.0}
    for byte in range(1, 128 if signed else 256):
        text = f"{byte:b}"
        digits = len(text) - 1  # behind the first one
        zeros = (7 if signed else 8) - len(text)
        if zeros > 6:
            continue
        fraction = int("0" + text[1:], 2)
        number = (0.1 + 0.9 * (fraction + 0.5) / 2**digits) * 10.0**-zeros
        found |= {number, -number} if signed else {number}
    return np.array(sorted(found))


def stored(x: np.ndarray, signed: bool) -> np.ndarray:
    """What is left of a tensor that was kept in bytes."""
    if x.size < 4096:
        return x
    code, flat = tree(signed), x.reshape(-1)
    found = np.empty_like(flat)
    for begin in range(0, flat.size, 2048):
        block = flat[begin : begin + 2048]
        scale = np.abs(block).max() or 1.0
        found[begin : begin + 2048] = code[np.searchsorted((code[1:] + code[:-1]) / 2, block / scale)] * scale
    return found.reshape(x.shape)


def gradients(p: dict[str, np.ndarray]) -> tuple[float, dict[str, np.ndarray]]:
    x, t = (array.astype(float) for array in data().values())
    h = np.tanh(x @ p["w1"])
    off = h @ p["w2"] + p["b"] - t
    dy = 2 * off / off.size
    return float((off**2).mean()), {"w1": x.T @ ((dy @ p["w2"].T) * (1 - h * h)), "w2": h.T @ dy, "b": dy.sum(0)}


def adam(m: Any, v: Any, g: np.ndarray, step: int) -> tuple[Any, Any, np.ndarray]:
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return m, v, 0.01 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)


def lion(m: Any, v: Any, g: np.ndarray, step: int) -> tuple[Any, Any, np.ndarray]:
    return 0.99 * m + 0.01 * g, v, 0.002 * np.sign(0.9 * m + 0.1 * g)


def sgd(m: Any, v: Any, g: np.ndarray, step: int) -> tuple[Any, Any, np.ndarray]:
    m = 0.9 * m + g
    return m, v, 0.3 * m


RULES: dict[str, tuple[Any, Any]] = {
    "adam": (adam, O.Adam(lr=0.01, moment_bits=8)),
    "adamw": (adam, O.AdamW(lr=0.01, weight_decay=0.0, moment_bits=8)),
    "lion": (lion, O.Lion(lr=0.002, moment_bits=8)),
    "sgd": (sgd, O.SGD(lr=0.3, momentum=0.9, moment_bits=8)),
}


def papers(rule: Any, keep: Any) -> np.ndarray:
    """The losses of fifty steps in float64, whose moments ``keep`` stores."""
    p = {name: q.array.astype(float) for name, q in model().parameters.items()}
    state = {name: (np.zeros_like(q), np.zeros_like(q)) for name, q in p.items()}
    losses = []
    for step in range(1, STEPS + 1):
        loss, found = gradients(p)
        losses.append(loss)
        for name, g in found.items():
            m, v, change = rule(*state[name], g, step)
            state[name] = keep(m, True), keep(v, False)
            p[name] = p[name] - change
    return np.array(losses)


@pytest.mark.parametrize("name", RULES)
def test_steps_are_the_papers(name: str) -> None:
    """As near to the paper's formulas as a few roundings to another byte leave it; moments of float32 are further."""
    rule, optimizer = RULES[name]
    with df.Trainer(model(), "mse", optimizer, devices=["cpu"]) as trainer:
        losses = np.array([trainer.step(data()) for _ in range(STEPS)])
        state = trainer.programs.state()
    wanted, exact = papers(rule, stored), papers(rule, lambda x, signed: x)
    off, kept_off = np.abs(losses / wanted - 1).max(), np.abs(exact / wanted - 1).max()
    assert losses[-1] < 0.3 * losses[0]
    assert 1e-3 < kept_off < 0.05  # the paper's point
    assert off < 0.05 * kept_off
    bytes_of = {name: array.nbytes for name, array in state.items() if name.startswith("optimizer/")}
    large = sum(size for name, size in bytes_of.items() if name.endswith("/w1"))
    moments = 1 if name in ("lion", "sgd") else 2
    assert large == moments * (SIZE * SIZE + 3 * 4)
    assert all("codes" not in name for name in bytes_of if not name.endswith("/w1"))


def test_the_code_is_the_papers() -> None:
    from dataflow.train.optimizers.eight_bit import dynamic_code

    for signed in (True, False):
        np.testing.assert_allclose(dynamic_code(signed), tree(signed), rtol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, df.bfloat16.numpy], ids=["float32", "bfloat16"])
def test_a_run_is_resumed_bit_for_bit(dtype: Any, tmp_path: Path) -> None:
    """With accumulation, an average of weights, and masters of 16-bit parameters."""
    ended: dict[str, Any] = {}

    def run(name: str, *callbacks: Any, resume: Any = None) -> None:
        rule = O.AdamW(lr=0.01, moment_bits=8)
        with df.Trainer(model(dtype), "mse", rule, devices=["cpu"], accumulate=2, average=O.EMA(0.9)) as trainer:
            saving: Any = {"checkpoint": tmp_path / name, "every": 1, "resume": resume, "callbacks": callbacks}
            trainer.fit(data(dtype), epochs=2, batch_size=8, **saving, **QUIET)
            ended[name] = trainer.programs.state()

    run("whole")
    with pytest.raises(Stopped):
        run("parts", stopping_at(3))
    run("parts", resume="auto")
    assert any(array.dtype == np.uint8 for array in ended["whole"].values())
    for name, array in ended["whole"].items():
        np.testing.assert_array_equal(array, ended["parts"][name], err_msg=name)


def test_a_group_has_moments_of_its_own_and_frozen_ones_stay() -> None:
    rule = O.AdamW(lr=0.01, moment_bits=8, groups=[O.Group("w1", moment_bits=32)])
    with df.Trainer(model(), "mse", rule, devices=["cpu"]) as trainer:
        trainer.step(data())
        assert not any("codes" in name for name in trainer.programs.state())
    with df.Trainer(model(), "mse", O.AdamW(moment_bits=8), devices=["cpu"]) as trainer:
        trainer.step(data())
        trainer.freeze("w1")
        before = trainer.programs.state()["optimizer/m.codes/w1"].copy()
        trainer.step(data())
        np.testing.assert_array_equal(trainer.programs.state()["optimizer/m.codes/w1"], before)


def test_refusals() -> None:
    for make, message in (
        (lambda: O.AdamW(moment_bits=4), "moment_bits is 4; expected 8 or 32"),
        (lambda: O.Lion(moment_bits=True), "moment_bits is True; expected 8 or 32"),
        (lambda: O.SGD(moment_bits=8), "moment_bits=8 needs a momentum"),
    ):
        with pytest.raises(df.InputError, match=message):
            make()
    with pytest.raises(df.InputError, match="'moment_bits', which Muon doesn't have"):
        df.Trainer(model(), "mse", O.Muon(groups=[O.Group("w1", moment_bits=8)]))
