"""What goes wrong in data, files and functions of users is said in their terms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from tests.train.test_trainable import waiting
from tests.train.test_training import data, model


def test_a_function_that_fails_names_its_line() -> None:
    def loss(g: Any, outputs: Any, batch: Any) -> Any:
        return outputs["z"] - batch["other"]

    with (
        df.Trainer(model(), loss, devices=["cpu"]) as trainer,
        pytest.raises(
            df.InputError, match=r"the loss function failed at test_faults.py:\d+: KeyError: 'other'"
        ) as caught,
    ):
        trainer.step(data())
    assert isinstance(caught.value.__cause__, KeyError)


def test_labels_are_numbers_of_the_classes_that_a_model_names(tmp_path: Path) -> None:
    made, path = model(), tmp_path / "data.csv"
    made.metadata = {"classes": '["a", "b", "c"]'}
    rows = np.column_stack([data()["x"], data()["labels"] % 3])
    np.savetxt(path, rows, fmt="%.6g", delimiter=",", header="x0,x1,x2,x3,x4,x5,labels", comments="")
    table = df.Dataset(str(path), columns=[f"x{i}" for i in range(6)])
    found = df.evaluate(made, table, devices=["cpu"])
    wanted = df.evaluate(made, {"x": rows[:, :6].astype(np.float32), "labels": rows[:, 6].astype(int)}, devices=["cpu"])
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-4)
    named = np.array(["a", "b", "c"], object)[rows[:, 6].astype(int)]
    lines = [",".join([*(f"{v:.6g}" for v in row[:6]), name]) for row, name in zip(rows, named, strict=True)]
    path.write_text("\n".join(["x0,x1,x2,x3,x4,x5,labels", *lines]))
    assert df.evaluate(made, table, devices=["cpu"])["loss"] == pytest.approx(found["loss"], rel=1e-6)


def test_columns_of_a_file_with_many_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "many.csv"
    path.write_text(",".join(f"c{i}" for i in range(10)) + "\n" + ",".join(map(str, range(10))) + "\n")
    with df.Trainer(model(), devices=["cpu"]) as trainer, pytest.raises(df.InputError, match="'c7' and 2 more"):
        trainer.evaluate(df.Dataset(str(path), columns=["c0"]))


def test_a_statistic_that_is_stored_once_for_two_uses_is_not_updated() -> None:
    g = df.GraphBuilder("network")
    x, zeros = (
        g.input("x", df.float32, ("batch", 2, 3)),
        g.initializer("zeros", np.zeros(2, np.float32), role="statistic"),
    )
    ones = g.initializer("ones", np.ones(2, np.float32), role="statistic")
    scale = g.parameter("scale", np.ones(2, np.float32))
    h = ops.batch_norm(x, scale, zeros, zeros, ones, epsilon=1e-5)
    g.output("y", ops.reduce_mean(h, axes=(2,), keepdims=False))
    made = df.Model(g.build())
    with pytest.raises(
        df.InputError, match=r"'zeros', a running statistic of batch_norm.* stored once for several uses"
    ):
        df.Trainer(made, batch_norm="update")
    df.Trainer(made, devices=["cpu"]).close()


def test_targets_in_a_model_that_waits_for_its_inputs() -> None:
    for make in (lambda: df.lora(waiting(), targets="first"), lambda: df.quantize(waiting(), targets="first")):
        with pytest.raises(df.InputError, match="converted anew for each form of its inputs"):
            make()


@pytest.mark.parametrize("loss", ["cross_entropy", df.losses.CrossEntropy(class_weights=(1, 2, 3)), "focal"])
def test_a_label_out_of_range_names_the_sample_wherever_it_is_found(
    loss: Any, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    batch = data()
    batch["labels"][23] = 6
    says = r"'labels' for \w+ of sample {} is 6; expected 0 to 2, or -100; df\.replace_head\(model, classes=N\)"
    with df.Trainer(model(), loss, devices=["cpu"]) as trainer:
        with pytest.raises(df.InputError, match=says.format(23)):
            trainer.fit(batch, batch_size=8, progress=False)
        with pytest.raises(df.InputError, match=says.format(23)):
            trainer.evaluate(batch, batch_size=8)
        shifted = {key: array[20:28] for key, array in batch.items()}
        for call in (trainer.step, trainer.forward):
            trainer.discard()
            with pytest.raises(df.InputError, match=says.format(3)):
                call(shifted)
    assert "replace_head" not in caplog.text


def test_a_weight_of_a_sample_that_is_negative_names_the_sample() -> None:
    batch = data()
    weights = np.ones(len(batch["x"]))
    weights[5] = -2
    with (
        df.Trainer(model(), devices=["cpu"]) as trainer,
        pytest.raises(df.InputError, match="'sample_weight' of sample 5 is -2; expected a finite number >= 0"),
    ):
        trainer.step({**batch, "sample_weight": weights})


@pytest.mark.parametrize("callbacks", [print, "csv", 3])
def test_callbacks_are_a_list(callbacks: Any) -> None:
    with (
        df.Trainer(model(), devices=["cpu"]) as trainer,
        pytest.raises(df.InputError, match=r"callbacks is .*; expected a list of functions of an event, e.g. \["),
    ):
        trainer.fit(data(), callbacks=callbacks)


def test_a_file_is_no_folder_for_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "deeper"):
        with (
            df.Trainer(model(), devices=["cpu"]) as trainer,
            pytest.raises(df.InputError, match="is a file; expected a folder"),
        ):
            trainer.fit(data(), checkpoint=folder, progress=False)


def test_weights_that_are_not_finite_from_the_start_are_no_updates_fault() -> None:
    made = model()
    name = next(iter(made.parameters))
    made.parameters[name].set(np.full_like(made.parameters[name].array, np.nan))
    with (
        df.Trainer(made, devices=["cpu"]) as trainer,
        pytest.raises(df.NonFiniteLoss, match=f"parameter '{name}', which was so before any update"),
    ):
        trainer.step(data())


@pytest.mark.parametrize(
    ("shape", "labels", "says"),
    [
        ((4, 3), np.array(["cat", "dog", "cat", "cat"]), r"labels are texts; .*np\.unique\(labels"),
        ((4, 3, 8, 8), np.zeros((4, 16, 16), np.int64), r"another resolution, .*df\.ops\.resize\("),
    ],
)
def test_labels_that_cannot_be_classes_of_the_logits_say_what_to_do(shape, labels, says) -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", *shape[1:]))
    g.output("y", df.ops.mul(x, g.parameter("w", np.ones(1, np.float32))))
    with (
        df.Trainer(df.Model(g.build()), "cross_entropy", devices=["cpu"]) as trainer,
        pytest.raises(df.InputError, match=says),
    ):
        trainer.step({"x": np.zeros(shape, np.float32), "labels": labels})


def test_one_logit_has_no_classes_and_wants_another_loss(caplog) -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 1))
    g.output("y", df.ops.mul(x, g.parameter("w", np.ones(1, np.float32))))
    batch = {"x": np.ones((4, 1), np.float32), "labels": np.zeros(4, np.int64)}
    with df.Trainer(df.Model(g.build()), "cross_entropy", devices=["cpu"]) as trainer:
        for _ in range(2):
            assert trainer.step(batch) == 0
        assert caplog.text.count("have one class, of which nothing is learned; of yes and no use") == 1
        with pytest.raises(df.InputError, match=r"of sample 1 is 1; expected 0 to 0.*use 'binary_cross_entropy'"):
            trainer.step(batch | {"labels": np.array([0, 1, 0, 1])})


@pytest.mark.parametrize("metric", ["roc_auc", "pr_auc"])
def test_an_order_of_scores_has_no_area_for_labels_that_are_numbers(metric) -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 1))
    g.output("y", df.ops.mul(x, g.parameter("w", np.ones(1, np.float32))))
    data = {"x": np.arange(4, dtype=np.float32)[:, None], "labels": np.array([[0.0], [1], [0], [1]], np.float32)}
    found = df.evaluate(df.Model(g.build()), data, "mse", [metric], devices=["cpu"])[metric]
    assert found == pytest.approx({"roc_auc": 3 / 4, "pr_auc": (1 + 2 / 3) / 2}[metric])
    data["labels"][2] = 0.7  # a share, as of smoothed labels: yes above a half, as for accuracy
    assert df.evaluate(df.Model(g.build()), data, "mse", [metric], devices=["cpu"])[metric] == pytest.approx(1)
    data["labels"][2] = 1.7
    with pytest.raises(df.InputError, match=rf"metric '{metric}': a label is 1\.7; expected 0 to 1"):
        df.evaluate(df.Model(g.build()), data, "mse", [metric], devices=["cpu"])


def test_a_tuple_of_arrays_should_be_a_dict() -> None:
    arrays = np.zeros((4, 3), np.float32), np.zeros(4, np.int64)
    with pytest.raises(df.InputError, match=r"arrays of all samples are a dict, \{'x': X, 'labels': y\}"):
        next(df.Dataset(arrays).batches(2))


def test_logits_are_resized_to_the_labels() -> None:
    """As the error has it: each pixel's logits count for the four that a nearest resize makes of it."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 3, 2, 2))
    g.output("y", df.ops.mul(x, g.parameter("w", np.ones(1, np.float32))))
    model = df.Model(g.build()).append(
        "resized", lambda v: df.ops.resize(v, sizes=(*v.shape[:2], 4, 4), mode="nearest"), of="y"
    )
    random = np.random.default_rng(0)
    logits, labels = random.normal(size=(5, 3, 2, 2)).astype(np.float32), random.integers(0, 3, (5, 4, 4))
    with df.Trainer(model, "cross_entropy", output="resized", devices=["cpu"]) as trainer:
        found = trainer.step({"x": logits, "labels": labels})
    z = np.exp(logits.repeat(2, 2).repeat(2, 3).astype(np.float64))
    chances = np.take_along_axis(z / z.sum(1, keepdims=True), labels[:, None], 1)
    assert found == pytest.approx(-np.log(chances).mean(), rel=1e-5)
