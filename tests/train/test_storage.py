"""Parameters of 16 bits with masters of float32, values between forward and backward in 16 bits, and the loss scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.train.nonfinite import NonFiniteLoss
from tests.support import Stopped, recorded, stopping_at
from tests.train.test_training import QUIET, data
from tests.train.test_training import model as float32_model

HALVES = [df.bfloat16, df.float16]
MULTIPLIERS = [1, 1, 1, 1, 1e14, 1e14, 1, 1, 1e14, 1, 1, 1, 1, 1, 1e14, 1e14, 1e14, 1e14, 1, 1]  # of a linear fit
O = df.optim


def linear_data(multiplier: float) -> dict[str, np.ndarray]:
    """x (4, 3) and labels (4, 1)."""
    x = np.sin(np.arange(12) + 1.0).reshape(4, 3) * multiplier
    return {"x": x.astype(np.float32), "labels": x[:, :1].astype(np.float32)}


def model(dtype: Any) -> df.Model:
    """That of the other tests of training, stored and computed in 16 bits."""
    parameters = {name: p.array.astype(dtype.numpy) for name, p in float32_model().parameters.items()}
    g = df.GraphBuilder("mlp")
    w1, b1, w2, b2 = (g.parameter(name, parameters[name]) for name in ("w1", "b1", "w2", "b2"))
    h = ops.relu(ops.add(ops.matmul(g.input("x", dtype, ("batch", 6)), w1), b1))
    g.output("z", ops.add(ops.matmul(h, w2), b2))
    return df.Model(g.build())


def batch(dtype: Any) -> dict[str, np.ndarray]:
    return {**data(), "x": data()["x"].astype(dtype.numpy)}


def deep(layers: int, dtype: Any = df.float32) -> tuple[df.Model, dict[str, np.ndarray]]:
    """A residual network, and a batch."""
    random = np.random.default_rng(0)
    g = df.GraphBuilder("network")
    h = g.input("x", dtype, ("batch", 32))
    for layer in range(layers):
        w = g.parameter(f"w{layer}", (random.standard_normal((32, 32)) / 8).astype(dtype.numpy))
        h = ops.add(h, ops.gelu(ops.matmul(h, w)))
    g.output("y", ops.matmul(h, g.parameter("head", random.standard_normal((32, 5)).astype(dtype.numpy))))
    x = random.standard_normal((128, 32)).astype(dtype.numpy)
    return df.Model(g.build()), {"x": x, "labels": random.integers(0, 5, 128)}


# ---- masters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_masters_follow_pytorch(dtype: Any, name: str) -> None:
    """A rounding near a tie may differ, by one step of the dtype."""
    wanted = {key: recorded("storage")[f"{dtype}/{name}/{key}"] for key in ("losses", "w1", "b1", "w2", "b2")}
    rule = O.AdamW(lr=0.02, weight_decay=0.1, no_decay=()) if name == "adamw" else O.SGD(lr=0.1, momentum=0.9)
    with df.Trainer(model(dtype), optimizer=rule, devices=["cpu"], loss_scale=1) as trainer:
        losses = [trainer.step(batch(dtype)) for _ in range(30)]
        state = trainer.programs.state()
        found = {key: trainer.model.parameters[key].array for key in ("w1", "b1", "w2", "b2")}
    step = 2.0**-7 if dtype == df.bfloat16 else 2.0**-10
    np.testing.assert_allclose(losses, wanted["losses"], rtol=step / 20)
    for key, array in found.items():
        assert array.dtype == dtype.numpy
        np.testing.assert_array_equal(array, state[f"optimizer/master/{key}"].astype(dtype.numpy))
        np.testing.assert_allclose(array.astype(float), wanted[key], rtol=2 * step, atol=step / 10)


def test_updates_below_the_resolution_add_up() -> None:
    """A weight of 1 in bfloat16 moves by 2^-8; 100 steps of 1e-4 are one of 1e-2."""
    g = df.GraphBuilder("one")
    w = g.parameter("w", np.ones((1, 1), df.bfloat16.numpy))
    g.output("y", ops.matmul(g.input("x", df.bfloat16, ("batch", 1)), w))
    made = df.Model(g.build())
    given = {"x": np.ones((1, 1), df.bfloat16.numpy), "labels": np.full((1, 1), 1e6, np.float32)}
    with df.Trainer(made, "mae", O.SGD(lr=1e-4), devices=["cpu"]) as trainer:
        for _ in range(100):
            trainer.step(given)
    assert float(made.parameters["w"].array[0, 0]) == pytest.approx(1.01, abs=2.0**-8)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_file_of_16_bits_is_tuned_and_saved_as_one(dtype: Any, tmp_path: Path) -> None:
    made, given = deep(3, dtype)
    path = tmp_path / "tuned.onnx"
    with df.Trainer(made, optimizer=O.AdamW(lr=1e-2), average=O.EMA(0.5), devices=["cpu"]) as trainer:
        first = trainer.evaluate(given)["loss"]
        trainer.fit(given, epochs=8, **QUIET)
        last = trainer.evaluate(given)["loss"]
    assert last < 0.7 * first
    df.save(made, str(path))
    again = df.load(str(path))
    assert {p.type.dtype for p in again.parameters.values()} == {dtype}
    with df.Trainer(again, devices=["cpu"]) as trainer:
        assert trainer.evaluate(given)["loss"] == pytest.approx(last, rel=1e-6)


# ---- storage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
def test_values_between_forward_and_backward_take_half(storage: Any) -> None:
    peaks, losses = {}, {}
    for kept in ("float32", storage):
        made, given = deep(24)
        with df.Trainer(made, optimizer=O.SGD(lr=1e-3), storage=kept, memory="1x", devices=["cpu"]) as trainer:
            losses[kept] = [trainer.step(given) for _ in range(6)]
            peaks[kept] = trainer.plans()["step"].peak_bytes
            assert {p.type.dtype for p in trainer.model.parameters.values()} == {df.float32}
    assert peaks[storage] < 0.6 * peaks["float32"]
    np.testing.assert_allclose(losses[storage], losses["float32"], rtol=2e-2 if storage == "bfloat16" else 2e-3)
    assert losses[storage] != losses["float32"]


def test_gradients_are_those_of_the_rounded_values() -> None:
    """Against float64 with the same roundings: products, softmax and layer norm see one value in both directions."""
    random = np.random.default_rng(3)
    x, w1, w2 = (random.standard_normal(shape).astype(np.float32) for shape in ((32, 16), (16, 24), (24, 4)))
    g = df.GraphBuilder("network")
    h = ops.tanh(ops.matmul(g.input("x", df.float32, ("batch", 16)), g.parameter("w1", w1)))
    g.output("y", ops.matmul(h, g.parameter("w2", w2)))
    labels = random.standard_normal((32, 4)).astype(np.float32)
    with df.Trainer(df.Model(g.build()), "mse", storage="bfloat16", devices=["cpu"]) as trainer:
        trainer.forward({"x": x, "labels": labels})
        trainer.backward()
        found = {name: trainer.gradients[name] for name in ("w1", "w2")}
        trainer.update()
    h = np.tanh(x.astype(float) @ w1).astype(np.float32).astype(df.bfloat16.numpy).astype(float)
    dy = 2.0 * (h @ w2 - labels)
    wanted = {"w2": h.T @ dy, "w1": x.T.astype(float) @ ((dy @ w2.T.astype(float)) * (1 - h * h))}
    for name, array in wanted.items():
        off = np.abs(found[name] * (np.linalg.norm(array) / np.linalg.norm(found[name])) - array).max()
        assert off < 2e-5 * np.abs(array).max()


def test_the_least_memory_and_storage_go_together() -> None:
    found = {}
    for memory in ("1x", "0.75x"):
        made, given = deep(8)
        with df.Trainer(made, storage="bfloat16", memory=memory, devices=["cpu"]) as trainer:
            losses = [trainer.step(given) for _ in range(3)]
            found[memory] = losses, max(plan.peak_bytes for plan in trainer.plans().values())
    assert found["1x"][0] == found["0.75x"][0]
    assert found["0.75x"][1] <= 0.75 * found["1x"][1]


def test_gradients_stay_float32() -> None:
    """Those that an optimizer reads where they were made, in a step of one micro-batch, too."""
    states = []
    for keeps in (False, True):
        made, given = deep(3)
        with df.Trainer(made, optimizer=O.SGD(lr=1e-3), storage="bfloat16", devices=["cpu"]) as trainer:
            trainer.keeps_gradients = keeps
            for _ in range(2):
                trainer.step(given)
            states.append(trainer.programs.state())
    for name, array in states[0].items():
        np.testing.assert_array_equal(array, states[1][name], err_msg=name)


def test_another_device_beside_the_first() -> None:
    losses = []
    for pin in (None, {"gelu*": "numpy"}):
        made, given = deep(2, df.bfloat16)
        with df.Trainer(made, devices=["cpu"], pin=pin, optimizer=O.SGD(lr=0.01)) as trainer:
            losses.append([trainer.step(given) for _ in range(3)])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-2)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_adapters_on_a_base_of_16_bits(dtype: Any) -> None:
    made, given = deep(2, dtype)
    base = {name: p.array.copy() for name, p in made.parameters.items()}
    adapted = df.lora(made, rank=2, targets=["w*"])
    with df.Trainer(adapted, optimizer=O.AdamW(lr=2e-2), devices=["cpu"]) as trainer:
        losses = [trainer.step(given) for _ in range(10)]
        slots = {name.split("/")[1] for name in trainer.programs.state() if name.startswith("optimizer/")}
    assert slots == {"m", "v"}  # adapters are float32: they need no masters
    assert losses[-1] < losses[0]
    for name, array in base.items():
        np.testing.assert_array_equal(adapted.parameters[name].array, array)


def test_tied_weights_of_16_bits_stay_tied() -> None:
    random = np.random.default_rng(1)
    table = random.standard_normal((12, 8)).astype(df.float16.numpy)
    g = df.GraphBuilder("tied")
    rows = ops.gather(g.parameter("table", table), g.input("tokens", df.int64, ("batch",)), axis=0)
    g.output("y", ops.matmul(ops.tanh(rows), g.parameter("out", table.T.copy())))
    made = df.Model(g.build())
    tokens = random.integers(0, 12, 40)
    with df.Trainer(made, optimizer=O.SGD(lr=0.1), tie=True, devices=["cpu"]) as trainer:
        losses = [trainer.step({"tokens": tokens, "labels": (tokens + 1) % 12}) for _ in range(20)]
    assert losses[-1] < losses[0]
    np.testing.assert_array_equal(made.parameters["out"].array, made.parameters["table"].array.T)
    assert not np.array_equal(made.parameters["table"].array, table)


# ---- the scale of the loss -----------------------------------------------------------------------------


def test_the_scale_follows_gradscaler() -> None:
    """Where gradients of the scaled loss overflow, as recorded from torch.amp with a growth every three steps."""
    g = df.GraphBuilder("linear")
    g.output("y", ops.matmul(g.input("x", df.float32, ("batch", 3)), g.parameter("w", np.zeros((3, 1), np.float32))))
    scale = O.LossScale(start=2.0**40, every=3)
    factors, steps = [], []
    with df.Trainer(df.Model(g.build()), "mse", O.SGD(lr=0.0), loss_scale=scale, devices=["cpu"]) as trainer:
        assert trainer.scaling is not None
        for multiplier in MULTIPLIERS:
            factors.append(trainer.scaling.scale)
            trainer.step(linear_data(multiplier))
            steps.append(trainer.steps)
    wanted = recorded("storage")["factors"]
    assert factors == list(wanted)
    skipped = np.diff(wanted) < 0
    assert skipped.any() and list(np.diff(steps, prepend=0)[:-1] == 0) == list(skipped)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_scale_changes_no_bit(accumulate: int) -> None:
    """Also of clipped norms and values, of what is accumulated, and of gradients that users read and assign."""
    found = []
    for scale in (1, 2.0**20):
        trainer = df.Trainer(
            model(df.bfloat16), optimizer=O.AdamW(lr=0.02), clip_norm=0.5, clip_value=0.1, devices=["cpu"],
            accumulate=accumulate, loss_scale=scale,
        )  # fmt: skip
        with trainer:
            trainer.fit(batch(df.bfloat16), epochs=3, batch_size=8, **QUIET)
            trainer.forward(batch(df.bfloat16))
            trainer.backward(0.5)
            gradients = dict(trainer.gradients)
            trainer.gradients["b2"] = gradients["b2"] * 2
            norm = trainer.update()["gradient_norm"]
            found.append((norm, gradients, trainer.programs.state()))
    assert found[0][0] == found[1][0]
    for first, second in (found[0][1:2] + found[1][1:2], found[0][2:] + found[1][2:]):
        assert first.keys() == second.keys()
        for name, array in first.items():
            np.testing.assert_array_equal(array, second[name], err_msg=name)


def test_an_overflow_within_a_logical_batch_skips_all_of_it() -> None:
    scale = O.LossScale(start=2.0**64, every=100)
    with df.Trainer(model(df.float16), devices=["cpu"], accumulate=2, loss_scale=scale, dropout=False) as trainer:
        before = trainer.programs.state()
        trainer.step(batch(df.float16))
        assert trainer.pending == 1
        trainer.step(batch(df.float16))
        assert (trainer.pending, trainer.steps) == (0, 0)
        assert trainer.scaling is not None and trainer.scaling.scale == 2.0**63
        for name, array in trainer.programs.state().items():
            if name in before:
                np.testing.assert_array_equal(array, before[name])
        while not trainer.steps:  # it falls until gradients fit
            trainer.step(batch(df.float16))


def test_what_no_scale_mends_is_an_error() -> None:
    g = df.GraphBuilder("root")
    y = ops.sqrt(ops.matmul(g.input("x", df.float16, ("batch", 2)), g.parameter("w", np.zeros((2, 1), np.float16))))
    g.output("y", y)
    given = {"x": np.ones((4, 2), np.float16), "labels": np.ones((4, 1), np.float32)}
    with df.Trainer(df.Model(g.build()), "mse", devices=["cpu"], loss_scale=O.LossScale(start=4.0)) as trainer:
        with pytest.raises(NonFiniteLoss, match="gradient of 'w'"):
            for _ in range(30):
                trainer.step(given)
        assert trainer.steps == 0


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_run_is_resumed_bit_for_bit(dtype: Any, tmp_path: Path) -> None:
    """Masters, moments, the scale and its count."""

    def run(folder: Path, *callbacks: Any, resume: Any = None) -> df.Trainer:
        rule, scale = O.AdamW(lr=0.02), O.LossScale(start=2.0**20, every=3)
        trainer = df.Trainer(model(dtype), optimizer=rule, loss_scale=scale, devices=["cpu"], accumulate=2)
        with trainer:
            saving: Any = {"checkpoint": folder, "every": 1, "resume": resume, "callbacks": callbacks}
            trainer.fit(batch(dtype), epochs=4, batch_size=4, **saving, **QUIET)
            assert trainer.scaling is not None
            ended[folder.name] = trainer.programs.state(), trainer.scaling.state(), trainer.steps
        return trainer

    ended: dict[str, Any] = {}
    run(tmp_path / "whole")
    with pytest.raises(Stopped):
        run(tmp_path / "parts", stopping_at(4))
    run(tmp_path / "parts", resume="auto")
    (state, scale, steps), (again, scale_again, steps_again) = ended["whole"], ended["parts"]
    assert (scale, steps) == (scale_again, steps_again)
    for name, array in state.items():
        np.testing.assert_array_equal(array, again[name], err_msg=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": "int8"}, r"storage is 'int8'; expected .*float32.*bfloat16.*float16"),
        ({"loss_scale": "large"}, "loss_scale is 'large'; expected 'dynamic'"),
        ({"loss_scale": 3.0}, "start is 3; expected a power of two"),
        ({"loss_scale": 0.0}, "start is 0; expected a power of two"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(df.InputError, match=message):
        df.Trainer(float32_model(), **options)


@pytest.mark.parametrize(("growth", "backoff"), [(0.5, 0.5), (2.0, 2.0), (2.0, 0.3)])
def test_a_scale_that_is_none_is_refused(growth: float, backoff: float) -> None:
    with pytest.raises(df.InputError, match="expected a power of two"):
        O.LossScale(growth=growth, backoff=backoff)


@pytest.mark.parametrize("storage", ["bfloat16", "float16"])
def test_what_waits_may_be_joined_behind_its_rounding(storage: Any) -> None:
    """As both directions of a recurrent layer are, whose sequence the next layer's gradient reads rounded too."""
    random = np.random.default_rng(0)
    g = df.GraphBuilder("joined")
    h = g.input("x", df.float32, (8, 16))
    for layer in range(2):
        width = h.type.sizes[1]
        weights = [g.parameter(f"{layer}.{d}", random.normal(size=(width, 16)).astype(np.float32)) for d in "lr"]
        h = ops.concat(*(ops.tanh(ops.matmul(h, w)) for w in weights), axis=1)
    g.output("y", ops.matmul(h, g.parameter("head", random.normal(size=(32, 3)).astype(np.float32))))
    batch = {"x": random.normal(size=(8, 16)).astype(np.float32), "labels": random.integers(0, 3, 8)}
    model = df.Model(g.build())
    losses = []
    for kept in ("float32", storage):
        with df.Trainer(model.copy(), optimizer="sgd:lr=0.01", storage=kept) as trainer:
            losses.append([trainer.step(batch) for _ in range(3)])
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-2)
