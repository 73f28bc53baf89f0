"""Training with compiled programs, against losses recorded from PyTorch 2.13 in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.train.nonfinite import NonFiniteLoss
from tests.support import Stopped, stopping_at

DEVICES = ["numpy", "cpu"]
QUIET: dict[str, Any] = {"progress": False}


def model() -> df.Model:
    n = np.arange
    g = df.GraphBuilder("mlp")
    x = g.input("x", df.float32, ("batch", 6))
    w1 = g.parameter("w1", (np.sin(n(48) * 0.7).reshape(6, 8) * 0.5).astype(np.float32))
    h = ops.relu(ops.add(ops.matmul(x, w1), g.parameter("b1", np.zeros(8, np.float32))))
    w2 = g.parameter("w2", (np.cos(n(24) * 1.3).reshape(8, 3) * 0.4).astype(np.float32))
    g.output("z", ops.add(ops.matmul(h, w2), g.parameter("b2", np.zeros(3, np.float32))))
    return df.Model(g.build())


def data() -> dict[str, np.ndarray]:
    labels = (np.arange(32) * 7) % 3
    labels[[5, 20]] = -100
    return {"x": np.sin(np.arange(192) * 0.37).reshape(32, 6).astype(np.float32), "labels": labels}


def rows(start: int, stop: int) -> dict[str, np.ndarray]:
    return {key: array[start:stop] for key, array in data().items()}


# Steps alternate between samples 8..31 and 0..23; torch.optim with the same settings, clip_grad_norm_ for the last.
ADAMW = [
    1.081495249, 1.040181069, 0.847407738, 0.877309417, 0.762164713, 0.773075507, 0.754734291, 0.71250157,
    0.772151995, 0.678450714, 0.7739177, 0.661950312,
]  # fmt: skip
SGD = [
    1.081495249, 1.034757533, 0.876526207, 0.836888843, 0.794724834, 0.745931928, 0.796879983, 0.728034193,
    0.779945251, 0.715559262, 0.755058663, 0.699099561,
]  # fmt: skip
CLIPPED = [
    1.081495249, 1.07640812, 1.045353016, 1.038807149, 1.012427684, 1.004577289, 0.982495189, 0.973595986,
    0.955787542, 0.945754155, 0.931602193, 0.920468158,
]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("micro", [24, 8, 5])
@pytest.mark.parametrize(
    ("optimizer", "clip", "expected"),
    [
        (df.optim.AdamW(lr=0.05, weight_decay=0.1, no_decay=()), None, ADAMW),
        (df.optim.SGD(lr=0.3, momentum=0.9, weight_decay=0.01, nesterov=True), None, SGD),
        (df.optim.SGD(lr=1.0), 0.05, CLIPPED),
    ],
    ids=["adamw", "sgd", "clipped"],
)
def test_losses_are_pytorchs(
    device: str, micro: int, optimizer: Any, clip: float | None, expected: list[float]
) -> None:
    """In one batch of 24, three of 8, or five of which the last is short, with ignored labels among them."""
    seen = []
    with df.Trainer(
        model(), "cross_entropy", optimizer, clip_norm=clip, devices=device, accumulate=-(-24 // micro)
    ) as trainer:
        for step in range(12):
            first = 0 if step % 2 else 8
            sums = np.zeros(2)
            for start in range(first, first + 24, micro):
                batch = rows(start, min(start + micro, first + 24))
                weight = (batch["labels"] != -100).sum()
                sums += (trainer.step(batch) * weight, weight)
            seen.append(sums[0] / sums[1])
        assert trainer.steps == 12
    np.testing.assert_allclose(seen, expected, rtol=2e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_has_the_same_bits(device: str, tmp_path: Path) -> None:
    def make() -> df.Trainer:
        return df.Trainer(model(), optimizer=df.optim.AdamW(lr=0.01, schedule="cosine"), devices=device, seed=5)

    options: dict[str, Any] = {"epochs": 5, "batch_size": 6, **QUIET}
    uninterrupted = make()
    expected = uninterrupted.fit(data(), **options)
    options |= {"checkpoint": tmp_path, "every": 4}
    with pytest.raises(Stopped):
        make().fit(data(), callbacks=[stopping_at(10)], **options)
    resumed = make()
    history = resumed.fit(data(), resume="auto", **options)
    assert history.steps == expected.steps
    assert history["loss"] == expected["loss"]
    for name in ("w1", "b1", "w2", "b2"):
        np.testing.assert_array_equal(resumed.model.parameters[name].array, uninterrupted.model.parameters[name].array)


@pytest.mark.parametrize("device", DEVICES)
def test_only_what_is_chosen_changes(device: str) -> None:
    made = model()
    before = {name: p.array.copy() for name, p in made.parameters.items()}
    with df.Trainer(made, trainable="head", devices=device) as trainer:
        trainer.fit(data(), epochs=2, batch_size=7, **QUIET)
    changed = {name for name, p in made.parameters.items() if not np.array_equal(p.array, before[name])}
    assert changed == {"w2", "b2"}


@pytest.mark.parametrize("device", DEVICES)
def test_figures_of_evaluate_do_not_depend_on_the_batch_size(device: str) -> None:
    def peak(g: df.GraphBuilder, outputs: Any, batch: Any) -> Any:
        return ops.reduce_mean(outputs["z"], axes=(0, 1), keepdims=0)

    with df.Trainer(model(), metrics=["accuracy", "top2", peak], devices=device) as trainer:
        large, small = (trainer.evaluate(data(), batch_size=size) for size in (32, 7))
    for name in ("loss", "accuracy", "top2", "peak"):
        assert small[name] == pytest.approx(large[name], rel=1e-5), name
    assert large["accuracy_error"] == pytest.approx(np.sqrt(large["accuracy"] * (1 - large["accuracy"]) / 30))


@pytest.mark.parametrize("device", DEVICES)
def test_the_first_bad_node_is_named(device: str) -> None:
    broken = data()
    broken["x"][17, 2] = np.inf
    with df.Trainer(model(), devices=device) as trainer:
        with pytest.raises(NonFiniteLoss, match="first in matmul 'matmul'") as found:
            trainer.fit(broken, batch_size=8, shuffle=False, **QUIET)
        assert found.value.indices is not None
        assert found.value.indices.tolist() == list(range(16, 24))
        assert trainer.steps == 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_parameter_that_an_update_broke_is_named(device: str) -> None:
    with (
        df.Trainer(model(), optimizer=df.optim.SGD(lr=1e38), devices=device) as trainer,
        pytest.raises(NonFiniteLoss, match=r"which the last update made so|first in"),
        np.errstate(all="ignore"),
    ):
        trainer.fit(data(), epochs=5, batch_size=8, **QUIET)


@pytest.mark.parametrize("device", DEVICES)
def test_a_label_out_of_range_is_refused(device: str) -> None:
    wrong = data()
    wrong["labels"][3] = 3
    with df.Trainer(model(), devices=device) as trainer, pytest.raises(df.InputError, match="3"):
        trainer.step(wrong)


def test_labels_that_are_all_ignored_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    ignored = {**data(), "labels": np.full_like(data()["labels"], -100)}
    with df.Trainer(model(), devices="numpy") as trainer:
        history = trainer.fit(ignored, epochs=2, batch_size=8, **QUIET)
    assert np.isnan(history["loss"]).all()
    found = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert found == ["epoch 1: the loss is nan, for no label counts: all are ignored, or have weight 0"]
