"""Figures of steps and epochs, curves, logs, and TensorBoard's files read back by protobuf."""

from __future__ import annotations

import csv
import json
import os
import struct
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow.train.history import History
from dataflow.train.watch import charts
from dataflow.train.watch.event_file import EventFile, Histogram, crc32c
from dataflow.train.watch.statistics import statistics_of
from tests.train.data_models import classifier


def data(n: int = 30) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(n, 4)).astype(np.float32), "labels": rng.integers(0, 3, n)}


def test_steps_have_the_norm_of_the_averaged_gradient() -> None:
    """By hand: softmax cross-entropy of a linear classifier."""
    given, model = data(12), classifier()
    weight = np.array(model.parameters["w"].array, np.float64)
    with df.Trainer(model, optimizer="sgd", accumulate=2, devices=["cpu"]) as trainer:
        history = trainer.fit(given, batch_size=6, shuffle=False, progress=False)
    logits = given["x"].astype(np.float64) @ weight
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    gradient = given["x"].T @ (p - np.eye(3)[given["labels"]]) / 12
    np.testing.assert_allclose(history.steps["gradient_norm"], [np.linalg.norm(gradient)], rtol=1e-5)


def test_the_norm_is_the_same_with_clipping_and_follows_assigned_gradients() -> None:
    norms = []
    for clip in (None, 1e9):
        with df.Trainer(classifier(), optimizer="sgd", clip_norm=clip, accumulate=2) as trainer:
            trainer.step(data())
            trainer.forward(data())
            trainer.backward()
            trainer.gradients["w"] = trainer.gradients["w"] * 2
            norms.append(trainer.update()["gradient_norm"])
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)


def test_epochs_have_throughput_and_memory() -> None:
    with df.Trainer(classifier(), devices=["cpu"]) as trainer:
        history = trainer.fit(data(), epochs=2, batch_size=8, progress=False)
        arena = max(plan.peak_bytes for plan in trainer.plans().values())
    assert history["arena_bytes"] == [arena, arena]
    for rate, seconds, waited in zip(
        history["samples_per_second"], history["seconds"], history["data_seconds"], strict=True
    ):
        assert rate == pytest.approx(30 / seconds)
        assert 0 <= waited <= seconds
    assert all(peak > 1 << 20 for peak in history["process_peak_bytes"])


# ---- curves ------------------------------------------------------------------------------------------


def history() -> History:
    made = History()
    for epoch in range(8):
        made.add_epoch({"epoch": epoch + 1, "loss": 8.0 - epoch, "loss_error": 0.5, "val_loss": 9.0, "seconds": 3.0})
        made.add_step({"step": epoch + 1, "loss": 8.0 - epoch, "lr": 0.1})
    return made


def test_curves_as_text() -> None:
    assert charts.sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert charts.sparkline([1, float("nan"), float("inf"), 3]) == "▁  █"
    assert charts.sparkline([5, 5]) == "▁▁"
    assert charts.sparkline(range(80), 4) == "▁▃▆█"
    assert charts.sparkline([]) == ""
    assert history().text().splitlines() == ["loss      █▇▆▅▄▃▂▁  8 → 1", "val_loss  ▁▁▁▁▁▁▁▁  9 → 9"]
    assert history().text(steps=True, names=["lr"]) == "lr  ▁▁▁▁▁▁▁▁  0.1 → 0.1"
    with pytest.raises(df.InputError, match="there is no figure 'acc'; there are epoch, loss"):
        history().text(names=["acc"])


def test_curves_as_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    figure = history().plot(tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    (axis,) = figure.axes
    assert [line.get_label() for line in axis.lines] == ["loss", "val_loss"]
    assert axis.lines[0].get_xydata().tolist() == [[i + 1, 8 - i] for i in range(8)]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(df.InputError, match=r"run\.png: needs matplotlib.*dataflow-engine\[plot\]"):
        history().plot(tmp_path / "run.png")


# ---- statistics --------------------------------------------------------------------------------------


def test_statistics_of_a_tensor() -> None:
    array = np.array([[3.0, -4.0, 0.0], [np.nan, np.inf, 0.0]], np.float32)
    found = statistics_of(array)
    assert (found.count, found.nonfinite, found.zeros, found.norm) == (6, 2, 2, 5.0)
    assert (found.mean, found.least, found.most) == (-0.25, -4.0, 3.0)
    assert found.std == pytest.approx(np.std([3, -4, 0, 0]))
    histogram = found.histogram(7)
    assert histogram.counts == [1, 0, 0, 0, 2, 0, 1]
    assert histogram.limits == [-3, -2, -1, 0, 1, 2, 3]
    assert (histogram.count, histogram.total, histogram.squares) == (4, -1.0, 25.0)
    for empty in (np.zeros((0, 3)), np.full(2, np.nan)):
        assert statistics_of(empty).norm == 0.0
        assert sum(statistics_of(empty).histogram().counts) == 0


# ---- logs --------------------------------------------------------------------------------------------


def test_logs_of_a_run_and_of_its_continuation(linear: ModuleType, tmp_path: Path) -> None:
    def fit(epochs: int, append: bool, **options: Any) -> None:
        logs = [
            df.callbacks.CSV(tmp_path / "epochs.csv", append=append),
            df.callbacks.CSV(tmp_path / "steps.csv", every="step", append=append),
            df.callbacks.JSONLines(tmp_path / "log.jsonl", append=append),
        ]
        with linear.trainer() as trainer:
            trainer.fit(
                linear.data(), epochs=epochs, callbacks=logs, checkpoint=tmp_path / "c", progress=False, **options
            )

    fit(2, False)
    fit(3, True, resume="auto", val_split=0.0, validation=linear.data(8))
    with (tmp_path / "epochs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["epoch"] for row in rows] == ["1", "2", "3"]
    assert [bool(row["val_loss"]) for row in rows] == [False, False, True]
    assert float(rows[2]["loss"]) < float(rows[0]["loss"])
    with (tmp_path / "steps.csv").open() as file:
        assert [float(row["step"]) for row in csv.DictReader(file)] == [1, 2, 3, 4, 5, 6]
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["step", "step", "epoch"] * 2 + ["end"] + [
        "step",
        "step",
        "epoch",
        "end",
    ]


def event_messages() -> Any:
    """TensorFlow's messages, as far as scalars and histograms go, made by protobuf from their published fields."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="tf", syntax="proto3")
    forms = descriptor_pb2.FieldDescriptorProto
    double, float_, int64, text, message = 1, 2, 3, 9, 11
    for name, fields in {
        "Histo": [
            ("min", 1, double), ("max", 2, double), ("num", 3, double), ("sum", 4, double), ("sum_squares", 5, double),
            ("bucket_limit", 6, double, True), ("bucket", 7, double, True),
        ],
        "Value": [("tag", 1, text), ("simple_value", 2, float_), ("histo", 5, ".tf.Histo")],
        "Summary": [("value", 1, ".tf.Value", True)],
        "Event": [
            ("wall_time", 1, double), ("step", 2, int64), ("file_version", 3, text), ("summary", 5, ".tf.Summary"),
        ],
    }.items():  # fmt: skip
        made = file.message_type.add(name=name)
        for field_name, number, kind, *repeated in fields:
            label = forms.LABEL_REPEATED if repeated else forms.LABEL_OPTIONAL
            field = made.field.add(name=field_name, number=number, label=label)
            if isinstance(kind, str):
                field.type, field.type_name = message, kind
            else:
                field.type = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("tf.Event"))


def events(folder: Path) -> list[Any]:
    (path,) = folder.glob("events.out.tfevents.*")
    content, kind, found = path.read_bytes(), event_messages(), []
    while content:
        (length,), checksum = struct.unpack("<Q", content[:8]), content[8:12]
        for covered, masked in (
            (content[:8], checksum),
            (content[12 : 12 + length], content[12 + length : 16 + length]),
        ):
            rotated = (struct.unpack("<I", masked)[0] - 0xA282EAD8) & 0xFFFFFFFF
            assert ((rotated >> 17) | (rotated << 15)) & 0xFFFFFFFF == crc32c(covered)
        found.append(kind.FromString(content[12 : 12 + length]))
        content = content[16 + length :]
    return found


def test_checksums_are_those_of_rfc_3720() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_event_files_are_messages_of_tensorflow(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "run")
    file.add(300, {"loss": 0.5, "lr": float("nan")}, {"w": Histogram(-1.0, 2.0, 3, 1.0, 5.0, [0.5, 2.0], [2, 1])})
    first, second = events(tmp_path / "run")
    assert first.file_version == "brain.Event:2"
    assert first.wall_time > 1e9
    assert second.step == 300
    loss, lr, w = second.summary.value
    assert (loss.tag, loss.simple_value, lr.tag) == ("loss", 0.5, "lr")
    assert np.isnan(lr.simple_value)
    assert (w.histo.min, w.histo.max, w.histo.num, w.histo.sum, w.histo.sum_squares) == (-1, 2, 3, 1, 5)
    assert (list(w.histo.bucket_limit), list(w.histo.bucket)) == ([0.5, 2.0], [2, 1])


def test_tensorboard_has_steps_epochs_and_histograms(tmp_path: Path) -> None:
    with df.Trainer(classifier()) as trainer:
        log = df.callbacks.TensorBoard(tmp_path, every=2, histograms=True)
        run = trainer.fit(data(), data(9), epochs=2, batch_size=8, callbacks=[log], progress=False)
    found = [(e.step, {v.tag: v for v in e.summary.value}) for e in events(tmp_path)[1:]]
    assert [step for step, _ in found] == [2, 4, 4, 6, 8, 8]
    assert found[0][1]["step/loss"].simple_value == pytest.approx(run.steps["loss"][1])
    assert found[2][1]["epoch/val_loss"].simple_value == pytest.approx(run["val_loss"][0])
    assert found[2][1]["epoch/samples_per_second"].simple_value > 0
    assert sum(found[2][1]["parameters/w"].histo.bucket) == 12


def test_options_of_logs_are_checked(tmp_path: Path) -> None:
    for made in (
        lambda: df.callbacks.CSV(tmp_path / "x", every="batch"),
        lambda: df.callbacks.TensorBoard(tmp_path, every=0),
        lambda: df.callbacks.TensorBoard(3),
        lambda: df.callbacks.JSONLines(""),
    ):
        with pytest.raises(df.InputError):
            made()


def test_logs_that_can_not_be_written_are_refused_where_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    file = tmp_path / "file"
    file.write_text("")
    refused = {
        "there is no folder": [lambda: df.callbacks.CSV(tmp_path / "no" / "log.csv")],
        "it is a folder": [lambda: df.callbacks.JSONLines(tmp_path), lambda: df.callbacks.CSV(tmp_path, append=True)],
        "is a file; expected a folder": [lambda: df.callbacks.TensorBoard(file / "board")],
        "it can't be written: No such file": [lambda: df.callbacks.CSV("/proc/dataflow.csv")],  # says the system
    }
    for message, made in refused.items():
        for make in made:
            with pytest.raises(df.InputError, match=message):
                make()
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # the superuser may write anywhere
    for make in (df.callbacks.CSV, df.callbacks.JSONLines, df.callbacks.TensorBoard):
        with pytest.raises(df.InputError, match=f"{tmp_path} can't be written; change its permissions"):
            make(tmp_path / "new")
    with (
        df.Trainer(classifier(), devices=["numpy"]) as trainer,
        pytest.raises(df.InputError, match=r"checkpoint .* can't"),
    ):
        trainer.fit(data(12), checkpoint=tmp_path / "new", progress=False)
    assert not (tmp_path / "new").exists()


# ---- statistics of a training ------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_statistics_of_parameters_gradients_and_values(device: str) -> None:
    model, given = classifier(), data(12)
    with df.Trainer(model, optimizer="sgd", accumulate=2, devices=[device]) as trainer:
        with pytest.raises(df.InputError, match="no gradients before the first step"):
            trainer.statistics("gradients")
        logits = given["x"] @ model.parameters["w"].array
        (found,) = trainer.statistics("values", batch=given).values()
        assert (found.norm, found.most) == pytest.approx((np.linalg.norm(logits), logits.max()), rel=1e-5)
        trainer.step({k: v[:6] for k, v in given.items()})
        half = trainer.statistics("gradients", "w")["w"]
        assert half.norm == pytest.approx(np.linalg.norm(trainer.gradients["w"] / 6))
        with pytest.raises(df.InputError, match="1 micro-batches wait for update"):
            trainer.statistics("values", batch=given)
        trainer.forward({k: v[6:] for k, v in given.items()})
        trainer.backward()
        norm = trainer.update()["gradient_norm"]
        assert trainer.statistics("gradients")["w"].norm == pytest.approx(norm, rel=1e-5)
        weight = model.parameters["w"].array
        assert trainer.statistics()["w"].mean == pytest.approx(weight.astype(np.float64).mean())
        for wrong in (("weights",), ("parameters", "q"), ("values", "*"), ("parameters", "*", given)):
            with pytest.raises(df.InputError):
                trainer.statistics(*wrong)
        with pytest.raises(df.InputError, match="'q' matches no float value"):
            trainer.statistics("values", "q", given)
