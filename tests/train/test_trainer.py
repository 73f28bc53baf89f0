"""The Trainer and its loop, with programs whose results are known in closed form."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow.train import checkpoint, schedules
from dataflow.train.callbacks import Event
from dataflow.train.watch.clock import FIGURES
from tests.support import Stopped, stopping_at

QUIET: dict[str, Any] = {"progress": False}


def test_fit_finds_the_least_squares_solution(linear: ModuleType) -> None:
    data = linear.data(128, noise=0.1)
    trainer = linear.trainer()
    history = trainer.fit(data, epochs=60, batch_size=32, **QUIET)
    exact = np.linalg.lstsq(np.c_[data["x"], np.ones(128)], data["labels"], rcond=None)[0]
    trainer.close()
    np.testing.assert_allclose(trainer.model.parameters["w"].array, exact[:3], atol=0.02)
    np.testing.assert_allclose(trainer.model.parameters["b"].array, exact[3], atol=0.02)
    assert history["loss"][-1] < 0.02 < history["loss"][0]
    assert len(history["loss"]) == 60
    assert len(history.steps["loss"]) == 240


def test_step_returns_the_mean_before_the_update(linear: ModuleType) -> None:
    data = linear.data(8)
    trainer = linear.trainer()
    w = trainer.model.parameters["w"].array
    expected = np.mean((data["x"] @ w - data["labels"]) ** 2)
    assert trainer.step(data) == pytest.approx(expected, rel=1e-5)
    assert trainer.step(data) < expected


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_parameters_may_have_the_names_that_programs_use(clip_norm: float | None) -> None:
    """A single dense layer's parameters are called ``weight`` and ``bias``."""
    random = np.random.default_rng(0)
    x, labels = random.standard_normal((8, 3), np.float32), random.standard_normal((8, 1), np.float32)
    results = []
    for names in (("a", "b", "c", "d", "e"), ("weight", "hyper", "scale", "norm", "loss")):
        g = df.GraphBuilder()
        y = df.ops.matmul(g.input("x", df.float32, (8, 3)), g.parameter(names[0], np.ones((3, 1), np.float32)))
        for name in names[1:]:
            y = df.ops.mul(y, g.parameter(name, np.full(1, 0.9, np.float32)))
        g.output("y", y)
        model = df.Model(g.build())
        optimizer = df.optim.AdamW(lr=0.1, no_decay=())  # names of normalizations would mean something else
        trainer = df.Trainer(model, "mse", optimizer, devices=["cpu"], clip_norm=clip_norm)
        losses = [trainer.step({"x": x, "labels": labels}) for _ in range(4)]
        results.append((losses, [model.parameters[name].array.tolist() for name in names]))
    assert results[0] == results[1]
    assert results[0][0][-1] < results[0][0][0]


@pytest.mark.parametrize("loss", ["cross_entropy", "callable"])
def test_stored_tensors_may_be_called_as_entries_of_a_batch_are(loss: str) -> None:
    random = np.random.default_rng(0)
    x, labels = random.standard_normal((6, 3), np.float32), random.integers(0, 2, 6)
    data = {"x": x, "labels": labels, "sample_weight": np.linspace(0.0, 1.0, 6)}

    def function(g: df.GraphBuilder, outputs: Any, batch: Any) -> df.Value:
        assert {*batch} == {*data}
        mean = df.ops.softmax_cross_entropy(outputs["y"], batch["labels"], axis=1, ignore_index=-100)[0]
        return df.ops.mul(mean, df.ops.reduce_mean(batch["sample_weight"], axes=(0,), keepdims=False))

    results = []
    for names in (("w", "s", "t"), ("labels", "sample_weight", "batch/labels")):
        g = df.GraphBuilder()
        y = df.ops.matmul(g.input("x", df.float32, ("batch", 3)), g.parameter(names[0], np.ones((3, 2), np.float32)))
        for name in names[1:]:
            y = df.ops.mul(y, g.parameter(name, np.array([0.9, 1.0], np.float32)))
        g.output("y", y)
        chosen = function if loss == "callable" else loss
        with df.Trainer(df.Model(g.build()), chosen, df.optim.SGD(lr=0.1), devices=["cpu"]) as trainer:
            figures = [trainer.step(data), trainer.step({k: a[:4] for k, a in data.items()}), trainer.evaluate(data)]
            arrays = [trainer.model.parameters[name].array.tolist() for name in names]
        results.append((figures, arrays))
    assert results[0] == results[1]


def test_accumulated_micro_batches_equal_one_batch(linear: ModuleType) -> None:
    data = {**linear.data(64), "sample_weight": np.linspace(0, 3, 64)}
    at_once, accumulating = linear.trainer(), linear.trainer(accumulate=4)
    at_once.step(data)
    for start in range(0, 64, 16):
        assert accumulating.steps == 0
        accumulating.step({k: v[start : start + 16] for k, v in data.items()})
    assert accumulating.steps == 1
    np.testing.assert_allclose(accumulating.programs.w, at_once.programs.w, rtol=1e-5)
    assert accumulating.programs.updates[0][1] == pytest.approx(np.linspace(0, 3, 64).sum(), rel=1e-6)


def test_the_mean_of_a_batch_is_not_weighed_in_silence(linear: ModuleType) -> None:
    def mean(g: df.GraphBuilder, outputs: Any, batch: Any) -> df.Value:
        return df.ops.reduce_mean(df.ops.mul(outputs["y"], outputs["y"]), axes=(0, 1), keepdims=False)

    def weighed(g: df.GraphBuilder, outputs: Any, batch: Any) -> df.Value:
        squares = df.ops.reduce_mean(df.ops.mul(outputs["y"], outputs["y"]), axes=(1,), keepdims=False)
        weight = batch["sample_weight"]
        total = df.ops.reduce_sum(df.ops.mul(squares, weight), axes=(0,), keepdims=False)
        return df.ops.div(total, df.ops.reduce_sum(weight, axes=(0,), keepdims=False))

    g = df.GraphBuilder()
    g.output("y", df.ops.matmul(g.input("x", df.float32, ("n", 3)), g.parameter("w", np.ones((3, 2), np.float32))))
    model = df.Model(g.build())
    data = {"x": linear.data(8)["x"], "sample_weight": np.linspace(0, 3, 8)}
    expected = np.average(np.square(data["x"].sum(1)), weights=data["sample_weight"])
    with df.Trainer(model, weighed, devices=["cpu"]) as trainer:
        assert trainer.evaluate(data)["loss"] == pytest.approx(expected, rel=1e-6)
        assert trainer.step(data) == pytest.approx(expected, rel=1e-6)
    with df.Trainer(model, mean, devices=["cpu"]) as trainer:
        for call in (trainer.step, trainer.evaluate):
            with pytest.raises(df.InputError, match=r"the mean of the batch, which 'sample_weight' can't weigh"):
                call(data)


def test_one_output_may_have_two_losses_of_a_kind() -> None:
    """As where two people labelled the data."""
    logits = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
    g = df.GraphBuilder()
    g.output("y", df.ops.mul(g.input("x", df.float32, ("n", 5)), g.parameter("w", np.ones((1, 5), np.float32))))
    data = {"x": logits, "one": np.arange(6) % 5, "other": np.array([0, -100, 3, 3, -100, 1])}
    losses = [("cross_entropy", "one", 0.5), ("cross_entropy", "other", 0.25)]
    with df.Trainer(df.Model(g.build()), losses, devices=["cpu"]) as trainer:
        found = trainer.evaluate(data)
    chances = np.exp(logits.astype(np.float64))
    each = -np.log(chances / chances.sum(1, keepdims=True))
    means = [np.mean(each[data[key] >= 0, data[key][data[key] >= 0]]) for key in ("one", "other")]
    assert [found["y_CrossEntropy"], found["y_CrossEntropy_2"]] == pytest.approx(means, rel=1e-6)
    assert found["loss"] == pytest.approx(means[0] / 2 + means[1] / 4, rel=1e-6)


def test_the_short_end_of_an_epoch_is_a_logical_batch(linear: ModuleType) -> None:
    trainer = linear.trainer(accumulate=4)
    trainer.fit(linear.data(50), epochs=1, batch_size=8, shuffle=False, **QUIET)  # 7 micro-batches, the last of 2
    assert [weight for _, weight in trainer.programs.updates] == [32, 18]


def test_a_batch_without_weight_changes_nothing(linear: ModuleType) -> None:
    trainer = linear.trainer()
    before = trainer.programs.w.copy()
    assert math.isnan(trainer.step({**linear.data(8), "sample_weight": np.zeros(8)}))
    assert trainer.steps == 0
    np.testing.assert_array_equal(trainer.programs.w, before)
    trainer.step(linear.data(8))
    assert trainer.steps == 1


def test_clipping_and_learning_rates_are_reported(linear: ModuleType) -> None:
    optimizer = df.optim.SGD(lr=0.1, schedule=schedules.Linear())
    trainer = linear.trainer(optimizer=optimizer, clip_norm=0.5)
    history = trainer.fit(linear.data(40), epochs=2, batch_size=8, **QUIET)
    np.testing.assert_allclose(history.steps["lr"], [0.1 * (1 - s / 10) for s in range(10)])
    assert all(norm > 0 for norm in history.steps["gradient_norm"])
    np.testing.assert_allclose([h[0] for h, _ in trainer.programs.updates], history.steps["lr"], rtol=1e-6)


def test_validation_and_uncertainty(linear: ModuleType) -> None:
    trainer = linear.trainer(seed=3)
    history = trainer.fit(linear.data(100, noise=1.0), epochs=3, batch_size=10, val_split=0.2, **QUIET)
    assert len(history["val_loss"]) == 3
    assert history["val_loss_error"][0] > 0
    assert history["loss_error"][0] > 0
    assert "val_mae" in history
    held = df.Dataset(linear.data(100, noise=1.0)).split(0.2, seed=3)[1]
    assert trainer.evaluate(held, batch_size=10)["loss"] == history["val_loss"][-1]
    with pytest.raises(df.InputError, match="not both"):
        trainer.fit(linear.data(), linear.data(), val_split=0.5)


def test_history_as_csv(linear: ModuleType, tmp_path: Path) -> None:
    history = linear.trainer().fit(linear.data(), epochs=3, **QUIET)
    history.save_csv(tmp_path / "h.csv")
    with (tmp_path / "h.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in rows] == history["loss"]
    assert [float(row["epoch"]) for row in rows] == [1, 2, 3]


def test_callbacks_see_steps_epochs_and_the_end_and_can_stop(linear: ModuleType) -> None:
    seen: list[tuple[str, int, int]] = []

    def watch(event: Event) -> None:
        seen.append((event.kind, event.step, event.epoch))
        if event.step == 3:
            event.stop()

    history = linear.trainer().fit(linear.data(64), epochs=5, batch_size=32, callbacks=[watch], **QUIET)
    assert seen == [("step", 1, 0), ("step", 2, 0), ("epoch", 2, 1), ("step", 3, 1), ("end", 3, 1)]
    assert len(history["loss"]) == 1


def test_early_stop_restores_the_best_weights(linear: ModuleType) -> None:
    weights: list[np.ndarray] = []

    def worsen(event: Event) -> None:
        if event.kind == "epoch":
            weights.append(event.trainer.programs.w.copy())
            if event.epoch >= 4:
                event.trainer.programs.w += 5.0

    trainer = linear.trainer()
    data = linear.data(64)
    rule = df.EarlyStop("val_loss", patience=2)
    options = {"validation": data, "epochs": 30, "batch_size": 16, "early_stop": rule, "callbacks": [worsen]}
    history = trainer.fit(data, **options, **QUIET)
    best = int(np.argmin(history["val_loss"]))
    assert len(history["val_loss"]) == best + 3
    np.testing.assert_array_equal(trainer.programs.w, weights[best])
    with pytest.raises(df.InputError, match=r"no figure 'val_loss'.*give validation="):
        linear.trainer().fit(data, early_stop=rule, **QUIET)


def test_early_stop_knows_which_direction_is_better() -> None:
    assert df.EarlyStop("val_accuracy").better(0.9, 0.8)
    assert df.EarlyStop("top5").better(0.9, 0.8)
    assert df.EarlyStop("val_loss").better(0.8, 0.9)
    assert df.EarlyStop("val_f1", mode="max").better(0.9, 0.8)
    assert not df.EarlyStop("val_loss", min_delta=0.2).better(0.8, 0.9)
    assert not df.EarlyStop("val_loss").better(math.nan, None)


# ---- ownership ---------------------------------------------------------------------------------------


def test_one_trainer_owns_a_model(linear: ModuleType) -> None:
    model = linear.model()
    before = model.parameters["w"].array.copy()
    trainer = linear.trainer(model)
    trainer.step(linear.data())
    np.testing.assert_array_equal(model.parameters["w"].array, trainer.programs.w)
    assert not np.array_equal(model.parameters["w"].array, before)
    with pytest.raises(df.InputError, match="another Trainer owns"):
        linear.trainer(model)
    trainer.close()
    trainer.close()
    assert trainer.programs.closed
    np.testing.assert_array_equal(model.parameters["w"].array, trainer.programs.w)
    with pytest.raises(df.ModelError, match="closed"):
        trainer.step(linear.data())
    with linear.trainer(model) as second:
        np.testing.assert_array_equal(second.programs.w, trainer.programs.w)


def test_a_forgotten_trainer_gives_the_weights_back(linear: ModuleType) -> None:
    model = linear.model()
    before = model.parameters["w"].array.copy()
    linear.trainer(model).step(linear.data())
    assert not np.array_equal(model.parameters["w"].array, before)
    linear.trainer(model).close()


def test_predict_uses_the_newest_weights(linear: ModuleType) -> None:
    trainer = linear.trainer()
    x = linear.data(4)["x"]
    first = trainer.predict({"x": x})["y"]
    trainer.step(linear.data())
    assert not np.array_equal(trainer.predict({"x": x})["y"], first)


# ---- what is refused ---------------------------------------------------------------------------------


def test_batches_that_do_not_fit(linear: ModuleType) -> None:
    trainer = linear.trainer()
    data = linear.data(8)
    with pytest.raises(df.InputError, match="missing: 'labels'; unknown: 'y'"):
        trainer.step({"x": data["x"], "y": data["labels"]})
    with pytest.raises(df.InputError, match="labels float32\\[8, 2\\] don't fit the output"):
        trainer.step({**data, "labels": np.zeros((8, 2), np.float32)})
    with pytest.raises(df.InputError, match="'labels' of sample 2 is NaN"):
        trainer.step({**data, "labels": np.where(np.arange(8) == 2, np.nan, 0.0)})
    with pytest.raises(df.InputError, match="'sample_weight' is \\(3,\\); expected \\(8,\\)"):
        trainer.step({**data, "sample_weight": np.ones(3)})
    with pytest.raises(df.InputError, match=r"expected float32\[batch, 3\], got complex64.*astype"):
        trainer.step({**data, "x": data["x"] + 1j})
    with pytest.raises(df.InputError, match="'labels' of sample 5 is NaN"):
        trainer.fit({**data, "labels": np.where(np.arange(8) == 5, np.nan, 0.0)}, **QUIET)
    assert trainer.step({"x": data["x"].astype(np.float64), "labels": np.zeros(8, np.int64)}) > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "cross"}, "no loss 'cross'"),
        ({"accumulate": 0}, "accumulate"),
        ({"clip_norm": -1.0}, "clip_norm"),
        ({"batch_norm": "frozen"}, "batch_norm"),
        ({"metrics": ["f7"]}, "no metric 'f7'"),
        ({"trainable": "zzz"}, "matches no parameter"),
        ({"output": "nope"}, "no value 'nope'"),
    ],
)
def test_options_that_do_not_fit(linear: ModuleType, options: dict[str, Any], message: str) -> None:
    model = linear.model()
    with pytest.raises(df.DataflowError, match=message):
        linear.trainer(model, **options)
    linear.trainer(model).close()  # a Trainer that could not be made owns nothing


def test_options_of_fit_that_do_not_fit(linear: ModuleType, tmp_path: Path) -> None:
    trainer, data = linear.trainer(), linear.data(8)
    for options, message in (
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"resume": "auto"}, "needs checkpoint="),
        ({"checkpoint": tmp_path, "every": "day"}, "every is 'day'"),
        ({"checkpoint": tmp_path, "keep": 0}, "keep is 0"),
    ):
        with pytest.raises(df.InputError, match=message):
            trainer.fit(data, **options, **QUIET)


def test_a_loss_that_is_not_finite_stops_with_step_and_samples(linear: ModuleType) -> None:
    trainer = linear.trainer()
    trainer._first_bad = lambda feeds: "test_linear 'y'"
    data = linear.data(40)
    data["x"][23] = np.inf
    before: list[np.ndarray] = []
    with pytest.raises(df.DataflowError, match=r"after 2 optimizer steps, in samples 20, 21, 22, 23.*test_linear") as e:
        trainer.fit(
            data,
            batch_size=10,
            shuffle=False,
            callbacks=[lambda event: before.append(event.trainer.programs.w.copy())],
            **QUIET,
        )
    assert e.value.step == 2
    assert e.value.indices.tolist() == list(range(20, 30))
    np.testing.assert_array_equal(trainer.programs.w, before[-1])


# ---- resuming ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", ["epoch", 1, 3])
@pytest.mark.parametrize("broken_at", [4, 7, 11])
def test_a_resumed_run_continues_bit_for_bit(linear: ModuleType, tmp_path: Path, every: Any, broken_at: int) -> None:
    data = linear.data(50, noise=0.3)
    options = {
        "epochs": 4, "batch_size": 8, "val_split": 0.2, "checkpoint": tmp_path, "every": every, **QUIET,
        "early_stop": df.EarlyStop("val_loss", patience=9),
    }  # fmt: skip
    make = {"accumulate": 2, "seed": 4, "optimizer": df.optim.SGD(lr=0.03, momentum=0.9, schedule="cosine")}
    uninterrupted = linear.trainer(**make)
    expected = uninterrupted.fit(data, **{**options, "checkpoint": tmp_path / "whole"})

    with pytest.raises(Stopped):
        linear.trainer(**make).fit(data, callbacks=[stopping_at(broken_at)], resume="auto", **options)
    resumed = linear.trainer(**make)
    history = resumed.fit(data, resume="auto", **options)
    np.testing.assert_array_equal(resumed.programs.w, uninterrupted.programs.w)
    np.testing.assert_array_equal(resumed.programs.velocity["w"], uninterrupted.programs.velocity["w"])
    for name in expected:
        if name not in FIGURES:
            assert history[name] == expected[name], name
    assert history.steps == expected.steps
    if every != "epoch" or broken_at > 3:
        assert len(resumed.programs.updates) < len(uninterrupted.programs.updates)  # it did not begin again


def test_an_interrupt_saves_where_the_last_step_was(linear: ModuleType, tmp_path: Path) -> None:
    data = linear.data(64)
    uninterrupted = linear.trainer(accumulate=2)
    uninterrupted.fit(data, epochs=2, batch_size=8, **QUIET)
    trainer = linear.trainer(accumulate=2)
    run = trainer.programs.forward_backward
    calls = []

    def interrupted(batch: Any, *, first: bool) -> Any:
        calls.append(first)
        if len(calls) == 6:  # the second micro-batch of the third step
            raise KeyboardInterrupt
        return run(batch, first=first)

    trainer.programs.forward_backward = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(data, epochs=2, batch_size=8, checkpoint=tmp_path, **QUIET)
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found[1].counters["steps"], found[1].counters["position"]) == (2, 4)
    resumed = linear.trainer(accumulate=2)
    resumed.fit(data, epochs=2, batch_size=8, checkpoint=tmp_path, resume="auto", **QUIET)
    np.testing.assert_array_equal(resumed.programs.w, uninterrupted.programs.w)


def test_a_finished_run_resumes_to_nothing(linear: ModuleType, tmp_path: Path) -> None:
    data = linear.data()
    options = {"epochs": 2, "checkpoint": tmp_path, "resume": "auto", **QUIET}
    first = linear.trainer().fit(data, **options)
    again = linear.trainer()
    history = again.fit(data, **options)
    assert history["loss"] == first["loss"]
    assert again.programs.updates == []


def test_other_models_and_settings_are_refused(linear: ModuleType, tmp_path: Path) -> None:
    linear.trainer().fit(linear.data(), checkpoint=tmp_path, **QUIET)
    options = {"checkpoint": tmp_path, "resume": "auto", **QUIET}
    five_inputs = {"x": np.zeros((8, 5), np.float32), "labels": np.zeros((8, 1), np.float32)}
    with pytest.raises(df.InputError, match=r"'w' is float32\[3, 1\] there and float32\[5, 1\] here"):
        linear.trainer(linear.model(inputs=5)).fit(five_inputs, **options)
    with pytest.raises(df.InputError, match="nodes of the graphs differ"):
        linear.trainer(linear.model(hidden=True)).fit(linear.data(), **options)
    with pytest.raises(df.InputError, match="trained parameters differ: w, b there, w here"):
        linear.trainer(trainable="w").fit(linear.data(), **options)
    with pytest.raises(df.InputError, match="optimizer state differ"):
        linear.trainer(optimizer=df.optim.SGD(lr=0.1)).fit(linear.data(), **options)


def test_another_batch_size_begins_the_epoch_again_with_a_note(
    linear: ModuleType, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = linear.data(64)

    with pytest.raises(Stopped):
        linear.trainer().fit(data, batch_size=8, checkpoint=tmp_path, every=2, callbacks=[stopping_at(3)], **QUIET)
    trainer = linear.trainer()
    with caplog.at_level("WARNING", "dataflow"):
        trainer.fit(data, batch_size=16, checkpoint=tmp_path, resume="auto", **QUIET)
    assert "batch_size changed, so the epoch begins again" in caplog.text
    assert trainer.steps == 2 + 4


def test_batches_from_a_function_resume_at_their_position(linear: ModuleType, tmp_path: Path) -> None:
    data = linear.data(64)

    def batches() -> Any:
        for start in range(0, 64, 8):
            yield {k: v[start : start + 8] for k, v in data.items()}

    uninterrupted = linear.trainer()
    uninterrupted.fit(df.Dataset(batches), epochs=2, **QUIET)
    options = {"epochs": 2, "checkpoint": tmp_path, "every": 3, **QUIET}
    with pytest.raises(Stopped):
        linear.trainer().fit(df.Dataset(batches), callbacks=[stopping_at(5)], **options)
    resumed = linear.trainer()
    resumed.fit(df.Dataset(batches), resume="auto", **options)
    np.testing.assert_array_equal(resumed.programs.w, uninterrupted.programs.w)
    assert len(resumed.programs.updates) == 13


# ---- what people see ---------------------------------------------------------------------------------


def test_a_line_per_epoch_with_uncertainty(linear: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    linear.trainer().fit(linear.data(64, noise=0.5), epochs=2, batch_size=16)
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[0] for line in err.splitlines()] == ["epoch 1/2", "epoch 2/2"]
    assert "loss" in err
    assert " ± " in err


def test_the_bar_goes_to_stderr(linear: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    linear.trainer().fit(linear.data(64), epochs=2, batch_size=16, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "epoch 2/2" in err


def test_the_first_line_says_how_much_is_trained(linear: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "dataflow"):
        linear.trainer(trainable="b").fit(linear.data(), **QUIET)
    assert "training 1 of 2 stored tensors, 1 of 4 numbers: b" in caplog.text


def test_parameters_that_a_user_declared_apart_stay_apart() -> None:
    start = (0.9 * np.eye(3)).astype(np.float32)
    random = np.random.default_rng(0)
    batch = {"x": random.standard_normal((8, 3)).astype(np.float32), "labels": random.integers(0, 3, 8)}
    for tie, alike in ((None, False), (False, False), (True, True)):
        g = df.GraphBuilder("two")
        h = df.ops.tanh(df.ops.matmul(g.input("x", df.float32, ("n", 3)), g.parameter("first", start)))
        g.output("y", df.ops.matmul(h, g.parameter("second", start.copy())))
        made = df.Model(g.build())
        with df.Trainer(made, "cross_entropy", "sgd:lr=0.5", tie=tie, devices=["cpu"]) as trainer:
            trainer.step(batch)
        first, second = (made.parameters[name].array for name in ("first", "second"))
        assert np.array_equal(first, second) == alike


def test_later_runs_of_fit_have_other_orders_and_resume_with_them(tmp_path: Path) -> None:
    class Seen:
        def __init__(self) -> None:
            self.order: list[int] = []

        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> dict[str, Any]:
            self.order.append(index)
            return {"x": np.full(1, index, np.float32)}

    def trainer() -> df.Trainer:
        g = df.GraphBuilder("net")
        y = df.ops.matmul(g.input("x", df.float32, ("n", 1)), g.parameter("w", np.ones((1, 1), np.float32)))
        g.output("y", df.ops.reshape(y, shape=(y.type.shape[0],)))
        return df.Trainer(df.Model(g.build()), df.losses.output("y"), "sgd:lr=0.1", devices=["cpu"])

    def epochs_of(one: df.Trainer, epochs: int, done: int = 0, **options: Any) -> list[tuple[int, ...]]:
        """The order of each epoch of a run; the data is looked at once before."""
        seen = Seen()
        one.fit(seen, epochs=epochs, batch_size=4, progress=False, **options)
        order = seen.order[len(seen.order) - 12 * (epochs - done) :]
        return [tuple(order[i : i + 12]) for i in range(0, len(order), 12)]

    with trainer() as one:
        apart = [*epochs_of(one, 1), *epochs_of(one, 1), *epochs_of(one, 1), *epochs_of(one, 2, checkpoint=tmp_path)]
    with trainer() as one:
        together = epochs_of(one, 6)
    with trainer() as one:
        resumed = epochs_of(one, 3, 2, checkpoint=tmp_path, resume="auto")
    assert apart + resumed == together
    assert len(set(together)) == 6


def test_integers_beyond_the_input_s_are_refused() -> None:
    g = df.GraphBuilder("net")
    ids = df.ops.cast(g.input("ids", df.int8, ("n",)), to=df.int64)
    g.output("y", df.ops.gather(g.parameter("table", np.zeros((9, 2), np.float32)), ids, axis=0))
    with df.Trainer(df.Model(g.build()), "cross_entropy", "sgd:lr=1", devices=["cpu"]) as trainer:
        with pytest.raises(df.InputError, match="input 'ids': 257 is beyond the numbers of int8"):
            trainer.step({"ids": np.array([257, 4]), "labels": np.array([0, 1])})
        trainer.step({"ids": np.array([3, 4]), "labels": np.array([0, 1])})


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn"])
def test_floats_that_would_become_infinite_are_refused(dtype: str) -> None:
    g = df.GraphBuilder("net")
    x = df.ops.cast(g.input("x", df.plugin.dtype(dtype), ("n", 2)), to=df.float32)
    g.output("y", df.ops.matmul(x, g.parameter("w", np.ones((2, 1), np.float32))))
    batch = {"x": np.array([[1, 2], [-1e300, 3]]), "labels": np.ones((2, 1), np.float32)}
    with df.Trainer(df.Model(g.build()), "mse", devices=["cpu"]) as trainer:
        with pytest.raises(df.InputError, match=rf"input 'x': -1e\+300 is beyond the numbers of {dtype};"):
            trainer.step(batch)
        batch["x"][1, 0] = np.inf  # which is what it says
        assert not np.isfinite(trainer.evaluate(batch)["loss"])


def test_options_that_do_nothing_say_so(linear: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    df.Trainer(linear.model(), batch_norm="update", devices=["cpu"]).close()
    assert "the model has no batch norm with stored statistics" in caplog.text
    df.Trainer(linear.model(), shard="optimizer", devices=["cpu"]).close()
    assert "without parallel= there is one" in caplog.text


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_network_that_is_applied_twice_updates_its_statistics_twice(accumulate: int) -> None:
    """In turn, as modules that are called so: the second batch's statistics weigh more."""
    g = df.GraphBuilder("twins")
    a, c = (g.input(name, df.float32, ("n", 2)) for name in "ac")
    scale, bias = g.parameter("scale", np.ones(2, np.float32)), g.parameter("bias", np.zeros(2, np.float32))
    stored = ((name, np.full(2, value, np.float32)) for name, value in (("mean", 3.0), ("var", 5.0)))
    mean, var = (g.initializer(name, array, role="statistic") for name, array in stored)
    one, other = (df.ops.batch_norm(x, scale, bias, mean, var, momentum=0.75) for x in (a, c))
    g.output("y", df.ops.mul(one, other))
    model = df.Model(g.build())
    random = np.random.default_rng(0)
    with df.Trainer(model, "mse", "sgd:lr=0", batch_norm="update", accumulate=accumulate, devices=["cpu"]) as trainer:
        expected = [np.full(2, 3.0), np.full(2, 5.0)]
        for _ in range(2 * accumulate):
            batch = {name: random.standard_normal((6, 2)).astype(np.float32) for name in ("a", "c", "labels")}
            trainer.step(batch)
            for name in ("a", "c"):
                found = batch[name].mean(axis=0), batch[name].var(axis=0)
                expected = [0.75 * old + 0.25 * new for old, new in zip(expected, found, strict=True)]
    for name, wanted in zip(("mean", "var"), expected, strict=True):
        np.testing.assert_allclose(model.parameters[name].array, wanted, rtol=1e-6)


def test_a_batch_norm_in_a_body_is_not_left_as_it_is() -> None:
    names = ("s", "b", "m", "v")
    bodies = []
    for name in ("then", "else"):
        body = df.GraphBuilder(name)
        x, *rest = body.input("x", df.float32, ("n", 2)), *(body.input(n, df.float32, (2,)) for n in names)
        body.output("y", df.ops.batch_norm(x, *rest) if name == "then" else df.ops.mul(x, 1.0))
        bodies.append(body.build())
    g = df.GraphBuilder("net")
    x = g.input("x", df.float32, ("n", 2))
    ones = [g.parameter(name, np.ones(2, np.float32)) for name in names]
    above = df.ops.greater(df.ops.reduce_sum(x, axes=(0, 1), keepdims=False), 0.0)
    (y,) = df.ops.if_(above, x, *ones, bodies=tuple(bodies))
    g.output("y", y)
    with pytest.raises(df.InputError, match="has a batch norm in its body"):
        df.Trainer(df.Model(g.build()), "mse", batch_norm="update", devices=["cpu"])


def test_ready_batches_may_have_other_first_axes():
    """Time before samples: weights count the samples, which labels have first."""
    g = df.GraphBuilder("m")
    x = g.input("x", df.float32, ("time", "n", 4))
    last = df.ops.reduce_mean(x, axes=(0,), keepdims=False)
    g.output("y", df.ops.matmul(last, g.parameter("w", np.eye(4, 3, dtype=np.float32))))
    random = np.random.default_rng(0)
    batches = [
        {"x": random.standard_normal((5 + i, 2, 4)).astype(np.float32), "labels": random.integers(0, 3, 2)}
        for i in range(3)
    ]
    model = df.Model(g.build())
    with df.Trainer(model.copy(), optimizer="sgd:lr=0.1", devices=["cpu"]) as trainer:
        losses = [trainer.step(batch) for batch in batches]
    with df.Trainer(model.copy(), optimizer="sgd:lr=0.1", devices=["cpu"]) as trainer:
        found = trainer.fit(lambda: iter(batches), progress=False)["loss"]
        assert trainer.evaluate(lambda: iter(batches))["loss"] < found[0]
    assert found == pytest.approx([np.mean(losses)], rel=1e-6)
    with df.Trainer(model.copy(), optimizer="sgd:lr=0", devices=["cpu"]) as trainer:
        one = [trainer.step({**batches[0], "sample_weight": np.float32(w)}) for w in ([1, 0], [0, 1])]
        assert trainer.step(batches[0]) == pytest.approx(np.mean(one), rel=1e-5)
