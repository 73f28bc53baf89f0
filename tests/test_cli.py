"""The command line, on a model format of the test's own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.cli import main as cli
from dataflow.cli import plugin as plugin_commands
from dataflow.cli import roofline
from dataflow.cli.advice import OPTIONS, in_options, options_of
from dataflow.cli.data_options import data_arguments
from dataflow.cli.main import commands
from dataflow.cli.options import write_npz
from dataflow.cli.predict import _plain
from dataflow.plugin import registry
from dataflow.plugin.hookspecs import Format, hookimpl
from dataflow.testing import trial


def read(path: str, batch: str | None = None) -> df.Model:
    """A two-layer classifier with the weights of an npz file."""
    try:
        with np.load(path) as file:
            w = {name: file[name] for name in file.files}
    except ValueError as error:
        raise df.ModelError(f"{path}: {error}") from None
    g = df.GraphBuilder("mlp")
    x = g.input("x", df.float32, ("batch" if batch is None else "free", len(w["w1"])))
    h = ops.relu(ops.add(ops.matmul(x, g.parameter("w1", w["w1"])), g.parameter("b1", w["b1"])))
    g.output("p", ops.softmax(ops.add(ops.matmul(h, g.parameter("w2", w["w2"])), g.parameter("b2", w["b2"])), axis=-1))
    return df.Model(g.build(), aliases={"w2": ("head.weight",)})


def write(model: df.Model, path: str, overwrite: bool = False) -> None:
    if Path(path).exists() and not overwrite:
        raise df.InputError(f"{path} exists")
    arrays = model.arrays()
    with Path(path).open("wb") as file:
        np.savez(file, **{name: arrays[name] for name in ("w1", "b1", "w2", "b2")})


class Plugin:
    @hookimpl
    def dataflow_formats(self) -> list[Format]:
        return [Format(".mlp", read, write)]


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    """Runs a command in this process, with the test's format beside the installed plugins."""
    found = registry.load([Plugin()])
    monkeypatch.setattr(registry, "default_registry", lambda: found)

    def call(*arguments: object) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return Result(int(stopped.value.code or 0), out, err)

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    shapes = {"w1": (6, 16), "b1": (16,), "w2": (16, 3), "b2": (3,)}
    path = tmp_path / "model.mlp"
    with path.open("wb") as file:
        np.savez(file, **{n: (rng.normal(size=s) * 0.3).astype(np.float32) for n, s in shapes.items()})
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(120, 6)).astype(np.float32)
    y = (x @ rng.normal(size=(6, 3))).argmax(1)
    np.savez(tmp_path / "data.npz", x=x, labels=y)
    return tmp_path / "data.npz"


def reference(model: Path, x: np.ndarray) -> np.ndarray:
    with np.load(model) as w:
        z = np.maximum(x.astype(np.float64) @ w["w1"] + w["b1"], 0) @ w["w2"] + w["b2"]
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


# ---- run ---------------------------------------------------------------------------------------------


def test_run_from_npy_to_npz(run: Any, model: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(2).normal(size=(4, 6)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    for option in (tmp_path / "x.npy", f"x={tmp_path / 'x.npy'}"):
        result = run("run", model, "--input", option, "--output", tmp_path / "y.npz", "--device", "numpy")
        assert result.code == 0, result.err
        assert result.out.startswith("p: dtype float32, shape [4, 3]")
        np.testing.assert_allclose(np.load(tmp_path / "y.npz")["p"], reference(model, x), rtol=1e-5)


@pytest.mark.parametrize("command", ["run", "plan", "bench"])
def test_limits_of_a_model_that_is_not_trusted(run: Any, model: Path, tmp_path: Path, command: str) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 6), np.float32))
    given = ["--input", tmp_path / "x.npy"] if command != "plan" else ["--shape", "x=4,6"]
    enough = run(command, model, *given, "--device", "cpu", "--limit-memory", "2G", "--limit-seconds", "100")
    assert enough.code == 0, enough.err
    little = run(command, model, *given, "--device", "cpu", "--limit-memory", "1K")
    assert little.code == 2
    assert "of the limit of 1024 bytes" in little.err
    wrong = run(command, model, *given, "--limit-memory", "2 gigabytes")
    assert wrong.code == 2
    assert "--limit-memory 2 gigabytes: expected a whole number of bytes" in wrong.err


def test_run_as_json(run: Any, model: Path, tmp_path: Path) -> None:
    x = np.ones((2, 6), np.float32)
    np.savez(tmp_path / "in.npz", x=x)
    result = run("run", model, "--input", tmp_path / "in.npz", "--output", tmp_path / "y.npy", "--json")
    assert result.code == 0, result.err
    found = result.json["outputs"]["p"]
    assert found["shape"] == [2, 3]
    assert found["mean"] == pytest.approx(1 / 3, rel=1e-5)
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), reference(model, x), rtol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.mlp"], "does not exist"),
        (["{model}"], "missing inputs: x"),
        (["{model}", "--input", "{wrong}"], "astype"),
        (["{model}", "--input", "{text}"], "can't be read as npy or npz"),
        (["{model}", "--input", "nowhere.npy"], "No such file"),
        (["{model}", "--input", "z={good}"], "unknown inputs: z"),
        (["{model}", "--input", "{good}", "--input", "{good}"], "given already"),
        (["{model}", "--input", "{good}", "--output", "y.txt"], ".npz or .npy"),
        (["{model}", "--input", "{good}", "--device", "tpu"], "no device 'tpu'"),
        (["{model}", "--nonsense"], "No such option"),
        (["{text}"], "suffix '.txt'"),
    ],
)
def test_what_the_user_got_wrong_is_2(run: Any, model: Path, tmp_path: Path, arguments: Any, message: str) -> None:
    np.save(tmp_path / "wrong.npy", np.ones((2, 6)))
    np.save(tmp_path / "good.npy", np.ones((2, 6), np.float32))
    (tmp_path / "t.txt").write_text("not an array")
    fields = {
        "model": model,
        "wrong": tmp_path / "wrong.npy",
        "good": tmp_path / "good.npy",
        "text": tmp_path / "t.txt",
    }
    result = run("run", *(a.format(**fields) for a in arguments))
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_a_device_that_fails_is_3(run: Any, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise df.OutOfMemoryError("cpu: 9 GB wanted")

    monkeypatch.setattr(cli, "read_arguments", fail)
    result = run("run", model)
    assert result.code == 3
    assert "9 GB wanted" in result.err


# ---- finetune ----------------------------------------------------------------------------------------


def test_finetune_writes_a_model_that_is_better(run: Any, model: Path, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "tuned.mlp"
    result = run(
        "finetune", model, "--data", data, "--epochs", 12, "--batch-size", 16, "--lr", 0.02, "--val-split", 0.2,
        "--schedule", "cosine", "--log", tmp_path / "log.jsonl", "--json", "-o", target,
    )  # fmt: skip
    assert result.code == 0, result.err
    found = result.json
    assert found["epochs"] == 12
    assert found["steps"] == 72
    assert "epoch 12/12" in result.err
    with np.load(data) as file:
        x, y = file["x"], file["labels"]
    before, after = (np.mean(reference(m, x).argmax(1) == y) for m in (model, target))
    assert after > max(0.8, before)
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [sum(line["kind"] == kind for line in lines) for kind in ("step", "epoch", "end")] == [72, 12, 1]
    assert lines[-2]["val_loss"] == pytest.approx(found["figures"]["val_loss"])


def test_figures_of_a_run_that_ended_early_are_of_the_model_that_is_written(
    run: Any, model: Path, data: Path, tmp_path: Path
) -> None:
    target = tmp_path / "tuned.mlp"
    options = ("--optimizer", "sgd", "--lr", 0.5, "--patience", 2, "--epochs", 40, "--batch-size", 8)
    result = run("finetune", model, "--data", data, "--val", data, *options, "--json", "-o", target)
    assert result.code == 0, result.err
    figures, epochs = result.json["figures"], result.json["epochs"]
    assert epochs < 40
    assert figures["epoch"] == epochs - 2
    assert f"the weights are those of epoch {epochs - 2}, the best" in result.err
    with np.load(data) as file:
        x, y = file["x"], file["labels"]
    assert figures["val_loss"] == pytest.approx(-np.log(reference(target, x)[np.arange(len(y)), y]).mean(), rel=1e-4)


def test_finetune_trains_what_its_options_say(run: Any, model: Path, data: Path, tmp_path: Path) -> None:
    with np.load(data) as file:
        np.savez(tmp_path / "renamed.npz", x=file["x"], y=file["labels"], row=np.arange(120))
    target = tmp_path / "tuned.mlp"
    result = run(
        "finetune", model, "--data", tmp_path / "renamed.npz", "--map", "y=labels", "--map", "row=",
        "--trainable", "head.*", "--trainable", "b1", "--class-weights", "balanced", "--optimizer", "sgd",
        "--accumulate", 2, "--memory", "1x", "-o", target,
    )  # fmt: skip
    assert result.code == 0, result.err
    with np.load(model) as old, np.load(target) as new:
        changed = {name for name in old.files if not np.array_equal(old[name], new[name])}
    assert changed == {"w2", "b1"}
    assert f"wrote {target}" in result.out
    result = run("finetune", model, "--data", data, "--memory", 64, "--update", "as_ready", "--force", "-o", target)
    assert result.code == 2
    assert "64 bytes) are too few for a training step" in result.err


def test_finetune_writes_what_can_be_watched(run: Any, model: Path, data: Path, tmp_path: Path) -> None:
    options = ("--tensorboard", tmp_path / "board", "--log", tmp_path / "log.csv", "--plot", "-", "--epochs", 3)
    result = run("finetune", model, "--data", data, *options, "--json", "-o", tmp_path / "t.mlp")
    assert result.code == 0, result.err
    assert len(list((tmp_path / "board").glob("events.out.tfevents.*"))) == 1
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4
    assert re.search(r"^loss +[▁▂▃▄▅▆▇█]{3}  ", result.err, re.MULTILINE)
    assert {"samples_per_second", "arena_bytes", "process_peak_bytes"} <= result.json["figures"].keys()


def test_finetune_reads_tables(run: Any, model: Path, data: Path, tmp_path: Path) -> None:
    with np.load(data) as file:
        rows = [",".join([*map(str, x), "abc"[y], "note"]) for x, y in zip(file["x"], file["labels"], strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["u,v,w,x,y,z,kind,text", *rows, ",,,,,,a,"]))
    options = ("--epochs", 2, "--json", "--force", "-o", tmp_path / "tuned.mlp")
    plain = run("finetune", model, "--data", data, "--class-weights", "balanced", "--drop-last", *options)
    table = ("--data", tmp_path / "t.csv", "--label", "kind", "--missing", "drop", "--columns", "u,v,w,x,y,z")
    result = run("finetune", model, *table, "--class-weights", "balanced", "--drop-last", "--workers", 1, *options)
    assert result.code == 0, result.err
    assert result.json["classes"] == {"labels": ["a", "b", "c"]}
    assert plain.json["steps"] == result.json["steps"] == 6
    assert "1 of 121 rows left out" in result.err
    tabs = tmp_path / "tabs.csv"
    tabs.write_text((tmp_path / "t.csv").read_text().replace(",", "\t"))
    again = run("finetune", model, "--data", tabs, "--delimiter", r"\t", *table[2:], "--drop-last", *options)
    assert again.code == 0, again.err
    several = ("--label", "u,v,w", *table[4:], "--loss", "mse")
    assert run("finetune", model, *table[:2], *several, *options).json["figures"]["loss"] > 0
    result = run("finetune", model, *table[:-1], "x=u,v,text", *options)
    assert result.code == 2
    assert "t.csv: line 2, column 'text': 'note' is no number" in result.err
    for wrong in (("--missing", "none"), ("--columns", "a", "--columns", "b"), ("--delimiter", "ab")):
        assert run("finetune", model, "--data", tmp_path / "t.csv", *wrong, *options).code == 2


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"columns": ("a,b",), "drop_last": False}, {"columns": ["a", "b"]}),
        ({"columns": ("x=a,b", "y=c")}, {"columns": {"x": ["a", "b"], "y": ["c"]}}),
        ({"missing": "-1.5", "workers": 0}, {"missing": -1.5, "workers": 0}),
        ({"size": "224", "mean": "imagenet", "std": "0.5,1"}, {"size": 224, "mean": "imagenet", "std": [0.5, 1.0]}),
        ({"size": "224x192", "augment": "flip"}, {"size": [224, 192], "augment": "flip"}),
        ({"size": "big"}, "--image-size big: expected numbers with 'x' between"),
        ({"mean": "a,b"}, "--mean a,b: expected numbers"),
    ],
)
def test_options_of_data_become_arguments(given: dict[str, Any], found: object) -> None:
    if isinstance(found, str):
        with pytest.raises(df.InputError, match=found):
            data_arguments(given)
    else:
        assert data_arguments(given) == found


def test_class_weights_leave_the_other_settings_of_a_loss(run: Any, model: Path, data: Path, tmp_path: Path) -> None:
    given = ["finetune", model, "--data", data, "--class-weights", "1,2,3", "-o", tmp_path / "t.mlp", "--force"]
    losses = [run(*given, "--loss", f"cross_entropy:label_smoothing={s}", "--json").json for s in (0.0, 0.5)]
    assert losses[0]["figures"]["loss"] != losses[1]["figures"]["loss"]


def test_several_losses_are_added(run: Any, model: Path, data: Path) -> None:
    given = ["evaluate", model, "--data", data, "--json", "--loss"]
    alone = [run(*given, loss).json["figures"]["loss"] for loss in ("cross_entropy", "focal:gamma=1")]
    both = run(*given, "cross_entropy", "--loss", "focal:gamma=1").json["figures"]
    assert both["loss"] == pytest.approx(sum(alone), rel=1e-5)
    assert both["p_Focal"] == pytest.approx(alone[1], rel=1e-5)


def test_evaluate_prints_figures_and_writes_outputs(run: Any, model: Path, data: Path, tmp_path: Path) -> None:
    target = tmp_path / "outputs.npz"
    given = ["evaluate", model, "--data", data, "--metric", "accuracy", "--metric", "confusion", "--batch-size", "20"]
    found = run(*given, "--json", "--output", target).json
    with np.load(data) as file, np.load(target) as outputs:
        x, labels = file["x"], file["labels"]
        p = df.Session(read(str(model))).run(x)["p"]
        np.testing.assert_allclose(outputs["p"], p, rtol=1e-5)
    assert found["figures"]["accuracy"] == pytest.approx(np.mean(p.argmax(1) == labels))
    assert found["figures"]["loss"] == pytest.approx(-np.log(p[np.arange(len(p)), labels]).mean(), rel=1e-5)
    matrix = np.array(found["figures"]["confusion"])
    assert matrix.shape == (3, 3) and matrix.sum() == len(labels)
    text = run(*given)
    assert text.code == 0 and "accuracy: " in text.out and " ± " in text.out
    assert f"  2 {matrix[2, 0]:>6}" in text.out
    for more, message in (
        (["--output", target], "--force replaces it"),
        (["--output", tmp_path / "p.csv"], "written as .npz"),
        (["--loss", "focal:alpha=3"], "alpha is 3"),
        (["--map", "labels"], "expected OLD=NEW"),
    ):
        refused = run(*given, *more)
        assert refused.code == 2 and message in refused.err


def test_predict_writes_a_line_per_sample(run: Any, model: Path, data: Path, tmp_path: Path) -> None:
    x = np.load(data)["x"]
    np.savez(tmp_path / "x.npz", x=x)
    p = df.Session(read(str(model))).run(x)["p"]
    for given in (data, tmp_path / "x.npz"):  # with labels and without
        found = run("predict", model, "--data", given, "--batch-size", 20)
        header, *rows = [line.split(",") for line in found.out.splitlines()]
        assert header == ["sample", "p[0]", "p[1]", "p[2]"] and [int(row[0]) for row in rows] == list(range(len(x)))
        np.testing.assert_allclose(np.array([row[1:] for row in rows], np.float32), p, rtol=1e-5)
    rows = [line.split(",") for line in run("predict", model, "--data", data, "--top", 2).out.splitlines()]
    order = np.argsort(-p, 1, kind="stable")
    assert rows[0] == ["sample", "class[0]", "p[0]", "class[1]", "p[1]"]
    assert [(int(row[1]), int(row[3])) for row in rows[1:]] == [tuple(o[:2]) for o in order.tolist()]
    lines, arrays = tmp_path / "p.jsonl", tmp_path / "p.npz"
    run("predict", model, "--data", data, "--top", 1, "--output", lines)
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [line["classes"] for line in found] == order[:, :1].tolist() and found[3]["sample"] == 3
    np.testing.assert_allclose([line["p"][0] for line in found], p.max(1), rtol=1e-5)
    run("predict", model, "--data", data, "--output", arrays)
    np.testing.assert_allclose(np.load(arrays)["p"], p, rtol=1e-5)
    for more, message in (
        (["--output", arrays], "--force replaces it"),
        (["--output", tmp_path / "p.txt"], "written as .csv, .jsonl, .npz"),
        (["--output", tmp_path / "q.npz", "--top", 1], "--top is for .csv and .jsonl"),
        (["--value", "nothing"], "nothing"),
    ):
        refused = run("predict", model, "--data", data, *more)
        assert refused.code == 2 and message in refused.err


def test_data_is_read_as_in_training(run: Any, model: Path, tmp_path: Path) -> None:
    """Columns in another order, and one more, would give other results without a word."""
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(30, 6)).astype(np.float32), rng.integers(0, 3, 30)
    names = list("abcdef")

    def table(name: str, order: list[str], *more: str) -> Path:
        columns = {**dict(zip(names, x.T, strict=True)), "kind": labels, "extra": labels + 1}
        rows = zip(*(columns[c] for c in (*order, *more)), strict=True)
        (tmp_path / name).write_text("\n".join(",".join(map(str, row)) for row in ((*order, *more), *rows)))
        return tmp_path / name

    train, source, tuned = table("train.csv", names, "kind"), tmp_path / "m.onnx", tmp_path / "tuned.onnx"
    df.save(read(str(model)), source)
    assert run("finetune", source, "--data", train, "--label", "kind", "--epochs", 1, "-o", tuned).code == 0
    assert json.loads(df.load(tuned).metadata["dataflow.data"])["columns"] == {"x": names}
    wanted = run("predict", tuned, "--data", train).out
    other = table("new.csv", names[::-1], "extra")
    assert run("predict", tuned, "--data", other).out == wanted
    found = run("evaluate", tuned, "--data", table("test.csv", names[::-1], "kind", "extra"), "--json").json
    assert found == run("evaluate", tuned, "--data", train, "--json").json
    given = run("predict", tuned, "--data", other, "--columns", "f,e,d,c,b,a")
    assert given.code == 0 and given.out != wanted


@pytest.mark.parametrize("name", ["file", "allow_pickle"])
def test_arrays_that_numpy_can_not_name_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(df.InputError, match=f"called '{name}'"):
        write_npz(tmp_path / "a.npz", {name: np.ones(2)})


@pytest.mark.parametrize(
    ("array", "wanted"),
    [
        (np.array([0.1, 2**-30], np.float32), [0.1, 9.313226e-10]),
        (np.array([np.nan, -np.inf], np.float64), ["nan", "-inf"]),
        (np.array([1.5, 2], df.bfloat16.numpy), [1.5, 2.0]),
        (np.array([2**63], np.uint64), [2**63]),
        (np.array([True]), [True]),
        (np.array(["a"], object), ["a"]),
        (np.array([[1 + 2j]], np.complex64), [["(1+2j)"]]),
    ],
)
def test_numbers_of_predictions_are_the_shortest_that_give_them_back(array: Any, wanted: Any) -> None:
    assert _plain(array) == wanted
    assert json.loads(json.dumps(wanted, allow_nan=False)) == wanted


def test_finetune_resumes_to_the_same_bits(run: Any, model: Path, data: Path, tmp_path: Path) -> None:
    common = ["finetune", model, "--data", data, "--device", "numpy", "--seed", 3, "--schedule", "constant"]
    assert run(*common, "--epochs", 4, "-o", tmp_path / "whole.mlp").code == 0
    folder = ["--checkpoint", tmp_path / "checkpoints"]
    assert run(*common, *folder, "--epochs", 2, "-o", tmp_path / "half.mlp").code == 0
    result = run(*common, *folder, "--epochs", 4, "--resume", "auto", "-o", tmp_path / "resumed.mlp")
    assert result.code == 0, result.err
    with np.load(tmp_path / "whole.mlp") as a, np.load(tmp_path / "resumed.mlp") as b:
        for name in a.files:
            np.testing.assert_array_equal(a[name], b[name])


def test_an_interrupt_is_130_after_writing(
    run: Any, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataflow.train.trainer import Trainer

    update = Trainer.update
    calls: list[int] = []

    def interrupted(trainer: Any) -> Any:
        found = update(trainer)
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(Trainer, "update", interrupted)
    result = run("finetune", model, "--data", data, "--batch-size", 16, "-o", tmp_path / "t.mlp")
    assert result.code == 130
    assert "interrupted after 3 optimizer steps" in result.err
    with np.load(model) as old, np.load(tmp_path / "t.mlp") as new:
        assert not np.array_equal(old["w1"], new["w1"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "{model}"], "--force"),
        (["--patience", "2"], "--patience needs"),
        (["--map", "labels"], "expected OLD=NEW"),
        (["--map", "y=labels"], "rename has"),
        (["--loss", "fuzzy"], "no loss 'fuzzy'"),
        (["--class-weights", "1,x,2"], "expected numbers"),
        (["--class-weights", "1,2"], "2 class_weights for 3 classes"),
        (["--trainable", "zzz*"], "matches no parameter"),
        (["--schedule", "zigzag"], "no schedule"),
        (["--optimizer", "zigzag"], "no optimizer 'zigzag'; known: adamw, sgd, adam, "),
        (["--metric", "zigzag"], "no metric 'zigzag'"),
        (["--callback", "zigzag"], "no callback 'zigzag'"),
        (["--loss", "no_such_module:Loss"], "loss 'no_such_module:Loss': no_such_module can't be imported"),
        (["--optimizer", "dataflow.optim:Newton"], "dataflow.optim has no 'Newton'"),
        (["--optimizer", "dataflow.losses:MSE", "--lr", "0.1"], "can't be made with {'lr': 0.1}"),
        (["--plot", "{model}/p.png"], "--plot {model}/p.png: there is no folder"),
        (
            ["--log", "{model}/nowhere/log.csv"],
            "--log {model}/nowhere/log.csv: there is no folder {model}/nowhere; make",
        ),
        (["--tensorboard", "{model}/a/b"], "--tensorboard {model}/a/b: {model} is a file; expected a folder"),
        (["--checkpoint", "{model}/new/deep"], "--checkpoint {model}/new/deep: {model} is a file; expected a folder"),
        (["--resume", "auto"], "--resume auto needs --checkpoint"),
    ],
)
def test_options_of_finetune_that_do_not_fit(
    run: Any, model: Path, data: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    arguments, message = [a.format(model=model) for a in arguments], message.replace("{model}", str(model))
    target = [] if "-o" in arguments else ["-o", str(tmp_path / "t.mlp")]
    result = run("finetune", model, "--data", data, *target, *arguments)
    assert result.code == 2
    assert message in result.err
    assert not (tmp_path / "t.mlp").exists()


@pytest.mark.parametrize(
    ("target", "message"), [("nowhere/t.mlp", "there is no folder .*nowhere"), ("t.txt", "no plugin knows the suffix")]
)
def test_a_target_that_can_not_be_written_is_refused_before_training(
    run: Any, model: Path, data: Path, tmp_path: Path, target: str, message: str
) -> None:
    result = run("finetune", model, "--data", data, "-o", str(tmp_path / target))
    assert result.code == 2 and "epoch" not in result.err
    assert re.search(message, result.err)


def test_finetune_takes_what_a_module_beside_it_has(
    run: Any, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_it.py").write_text(
        "import dataflow as df\n"
        "Loss = df.losses.CrossEntropy\n"
        "class Slow(df.optim.SGD):\n"
        "    pass\n"
        "def double(g, outputs, batch):\n"
        "    return df.ops.reduce_sum(next(iter(outputs.values())), axes=(1,), keepdims=0)\n"
        "def tell(event):\n"
        "    print(event.kind)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    options = ["--loss", "beside_it:Loss", "--optimizer", "beside_it:Slow", "--lr", 0.5, "--metric", "accuracy"]
    options += [
        "--metric",
        "beside_it:double",
        "--callback",
        "beside_it:tell",
        "--schedule",
        "dataflow.schedules:Linear",
    ]
    result = run("finetune", model, "--data", data, "-o", "t.mlp", *options)
    assert result.code == 0, result.err
    assert result.out.splitlines()[:5] == ["step"] * 4 + ["epoch"]
    assert "accuracy: " in result.out and "double: " in result.out


# ---- inspect, plan, devices --------------------------------------------------------------------------


def test_inspect(run: Any, model: Path) -> None:
    result = run("inspect", model, "--device", "numpy", "--shape", "x=5,6")
    assert result.code == 0, result.err
    assert "x: float32[batch, 6]" in result.out
    assert "w2: float32[16, 3], trainable  (head.weight)" in result.out
    assert "devices for x (5, 6)" in result.out
    found = run("inspect", model, "--device", "numpy", "--json").json
    assert found["ops"]["matmul"] == 2
    assert found["shapes"] == {"x": [1, 6]}
    assert found["devices"].keys() == {"numpy"}
    assert [p["name"] for p in found["parameters"] if p["trainable"]] == ["w1", "b1", "w2", "b2"]


def test_plan_as_text_page_and_json(run: Any, model: Path, tmp_path: Path) -> None:
    text = run("plan", model, "--shape", "x=8,6", "--device", "numpy").out
    assert text.startswith("peak ")
    assert "segment on numpy" in text
    result = run("plan", model, "--shape", "x=8,6", "--html", tmp_path / "plan.html", "--json")
    assert result.code == 0, result.err
    page = (tmp_path / "plan.html").read_text()
    assert page.count("<rect") >= 1
    assert f"{result.json['peak_bytes']:,} bytes" in page
    assert result.json["lower_bound_bytes"] <= result.json["peak_bytes"]
    for wrong, message in (("z=1", "no such input"), ("x=a", "whole numbers"), ("x", "NAME=VALUE")):
        result = run("plan", model, "--shape", wrong)
        assert (result.code, message in result.err) == (2, True)


def test_plan_in_small_memory(run: Any) -> None:
    plan = ("plan", Path(__file__).parents[1] / "examples/digits/digits5.onnx", "--device", "cpu", "--json")
    usual, small = run(*plan).json["memory"], run(*plan, "--memory", "small").json["memory"]
    assert usual["prepacks"] > 0 and "prepacks" not in small


def test_devices(run: Any) -> None:
    found = run("devices", "--json").json
    assert "numpy" in {d["id"] for d in found["devices"]}
    assert ".mlp" in found["formats"]
    assert "device numpy: " in run("devices").out


def test_plugin_test_passes_the_kits_verdict_on(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run("plugin", "test", "cpu", "--sample", "relu-", "--json")
    assert found.code == 0
    assert found.json["outcomes"]["passed"] > 10
    assert not found.json["bad"]
    monkeypatch.setattr(plugin_commands, "_QUIET_SECONDS", {True: 0.0, False: 0.0})
    said = run("plugin", "test", "numpy", "--sample", "is_nan", "--here").err
    assert re.match(r"1 outcomes in \d+ s, the last of is_nan-\S+\n2 outcomes", said)
    monkeypatch.setitem(trial.TOLERANCES, "float32", 0.0)
    wrong = run("plugin", "test", "cpu", "--sample", "exp-f32-3x5x7")
    assert wrong.code == 1
    assert "elements differ, first at" in wrong.out
    assert "dataflow plugin test cpu --sample 'exp-f32-3x5x7'" in wrong.out
    assert run("plugin", "test", "abacus").code == 2


def test_plugin_test_selects_ops_and_samples_and_refuses_what_selects_nothing(run: Any) -> None:
    found = run("plugin", "test", "is_nan")
    assert found.code == 0
    assert "is_nan: " in found.out and " passed" in found.out
    nothing = run("plugin", "test", "numpy", "--sample", "reluu", "--here")
    assert nothing.code == 2
    assert "'reluu' is no op, and begins the name of no sample" in nothing.err and "near: relu" in nothing.err


def test_plugin_test_times_samples_against_another_device(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline, "measure_roofline", lambda device: roofline.Roofline(1e9, 1e8))
    given = ("plugin", "test", "cpu", "--sample", "relu-f32-3x5", "--perf", "--against", "numpy", "--rounds", 2)
    (row, *_) = found = run(*given, "--json").json["times"]
    assert (row["op"], row["device"]) == ("relu", "cpu") and row["kernel"].startswith("relu f32")
    least = max(row["operations"] / 1e9, row["bytes"] / 1e8)
    assert row["share"] == pytest.approx(least / row["seconds"])
    assert row["speedup"] == pytest.approx(row["against"] / row["seconds"])
    text = run(*given).out
    assert all(time["sample"] in text for time in found) and "us on numpy" in text
    assert run("plugin", "test", "cpu", "--against", "numpy").code == 2
    assert run("plugin", "test", "abacus", "--perf").code == 2
    assert run("plugin", "test", "cpu", "--perf", "--sample", "reluu").code == 2


def test_ops_prints_a_declaration(run: Any) -> None:
    found = run("ops", "softmax", "--json").json
    assert (found["inputs"], found["attributes"]) == (["x"], {"axis": "-1"})
    assert {kernel["device"] for kernel in found["kernels"]} >= {"cpu", "numpy"}
    assert "softmax_grad" in found["gradient"]
    text = run("ops", "softmax").out
    assert "softmax(x) -> y" in text and "attribute 0: axis = -1" in text and "kernel on cpu: softmax f32" in text
    assert "relu: " in run("ops").out
    assert "there is no op 'softmaxx'; near: softmax" in run("ops", "softmaxx").err


def test_plugin_new_writes_a_package(run: Any, tmp_path: Path) -> None:
    done = run("plugin", "new", "lamp", "--kind", "device", "-o", tmp_path / "lamp")
    assert done.code == 0 and "dataflow plugin test lamp" in done.out
    assert (tmp_path / "lamp/dataflow_lamp/__init__.py").exists()
    assert run("plugin", "new", "lamp", "--kind", "lamp").code == 2


def test_names_that_are_loaded_at_first_use_are_listed_without_loading_them() -> None:
    code = "import sys, dataflow; print(*dir(dataflow)); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    listed, loaded = (set(line.split()) for line in done.stdout.splitlines())
    assert {"Trainer", "Session", "load", "Dataset", "nn", "optim", "losses", "ops", "GraphBuilder", "Op"} <= listed
    assert not {"dataflow.session", "dataflow.ops", "dataflow.optim"} & loaded
    assert all(hasattr(df, name) for name in listed)


def test_importing_dataflow_imports_neither_click_nor_rich() -> None:
    code = "import sys, dataflow; assert not {'click', 'rich', 'safetensors'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    help_text = subprocess.run([sys.executable, "-m", "dataflow", "--help"], check=True, capture_output=True, text=True)
    assert "finetune" in help_text.stdout


def test_finetune_takes_groups_schedules_clipping_and_averages(
    run: Any, model: Path, data: Path, tmp_path: Path
) -> None:
    given = ["--data", data, "--batch-size", 16, "--device", "numpy"]
    options = ["--optimizer", "lion:betas=(0.8,0.9)", "--lr", 0.01, "--weight-decay", 0.1, "--decay-all"]
    options += ["--group", "w1:lr=0.001,freeze=1", "--group", "b*:optimizer=sgd:lr=0.1", "--layer-decay", 0.5]
    options += ["--schedule", "cosine:final=0.1", "--warmup", 0.25, "--clip-norm", 1, "--clip-value", 0.1]
    options += ["--storage", "bfloat16", "--loss-scale", 1024]
    result = run("finetune", model, *given, *options, "--average", "ema:decay=0.5", "-o", tmp_path / "t.mlp", "--json")
    assert result.code == 0, result.err
    swept = run("finetune", model, *given, *options, "--find-lr", "--json")
    assert swept.code == 0, swept.err
    assert set(swept.json) == {"suggestion", "rates", "losses"}
    drawn = run("finetune", model, *given, "--find-lr")
    assert "learning rate" in drawn.out or "no rate suggested" in drawn.out
    for wrong, message in (
        (["--group", "w1"], "expected PATTERN:key=value"),
        (["--group", "wx:lr=1"], "matches no parameter"),
        (["--average", "mean"], "there is no average 'mean'; known: ema, swa"),
        (["--warmup", -1], "warmup"),
        (["--clip-norm", 0], "clip_norm is 0"),
        (["--layer-decay", 2], "layer_decay is 2"),
        (["--loss-scale", "3"], "expected a power of two"),
        (["--loss-scale", "big"], "--loss-scale big: expected dynamic, or a power of two"),
    ):
        result = run("finetune", model, *given, *wrong, "-o", tmp_path / "u.mlp")
        assert result.code == 2, wrong
        assert message in result.err
    assert run("finetune", model, *given).code == 2


def test_finetune_updates_statistics_and_trains_through_quantization(run: Any, data: Path, tmp_path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    arrays = {"w": np.random.default_rng(0).normal(size=(6, 3)), "variance": np.ones(3), "mean": np.zeros(3)}
    arrays |= {"scale": np.ones(3), "bias": np.zeros(3), "step": np.array(0.05)}
    stored = [numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()]
    stored.append(numpy_helper.from_array(np.array(0, np.int8), "zero"))
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["d"]),
        helper.make_node("MatMul", ["x", "d"], ["h"]),
        helper.make_node("BatchNormalization", ["h", "scale", "bias", "mean", "variance"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", k]) for n, k in (("x", 6), ("y", 3)))
    graph = helper.make_graph(nodes, "normalized", [x], [y], stored)
    opsets = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "model.onnx")
    given = ["finetune", tmp_path / "model.onnx", "--data", data, "--json", "-o"]
    plain = run(*given, tmp_path / "plain.onnx")
    assert plain.code == 0, plain.err
    assert plain.json["trained"] == ["scale", "bias"]
    result = run(*given, tmp_path / "both.onnx", "--batch-norm", "update", "--straight-through")
    assert result.json["trained"] == ["w", "scale", "bias"]
    before, after = (df.load(tmp_path / f"{name}.onnx").parameters["mean"].array for name in ("plain", "both"))
    assert not before.any() and after.any()


def test_advice_names_options_of_the_command_line(run: Any, model: Path, data: Path, tmp_path: Path) -> None:
    with np.load(data) as file:
        np.savez(tmp_path / "other.npz", z=file["x"], labels=file["labels"])
    result = run("finetune", model, "--data", tmp_path / "other.npz", "-o", tmp_path / "out.mlp")
    assert result.code == 2 and "--map old=new renames" in result.err and "Dataset(" not in result.err
    result = run("finetune", model, "--data", data, "--lora", 2, "-o", tmp_path / "out.mlp")
    assert result.code == 2 and "name the layers with --lora-targets" in result.err


@pytest.mark.parametrize(
    ("command", "message", "expected"),
    [
        (
            "finetune",
            "join=True needs language_model=, max_length= and",
            "--join needs --language-model, --max-length and",
        ),
        ("predict", "missing; missing='drop' leaves such rows out", "missing; --missing drop leaves such rows out"),
        ("finetune", "max_length=12, and the model's", "--max-length 12, and the model's"),
        ("evaluate", "choose with output=", "choose with --value"),
        ("quantize", "leave it out with targets=", "leave it out with --target"),
        ("predict", "give batch_norm='update'", "give batch_norm='update'"),  # no option of predict
        ("finetune", "df.losses.CrossEntropy(axis=1, weight=2)", "df.losses.CrossEntropy(axis=1, weight=2)"),
        ("evaluate", "/data/missing=3.csv: empty", "/data/missing=3.csv: empty"),
    ],
)
def test_arguments_of_python_are_called_by_their_options(command: str, message: str, expected: str) -> None:
    assert in_options(message, options_of(commands.commands[command])) == expected


def test_what_shapes_epochs_of_training_is_no_option_elsewhere(run: Any, model: Path, data: Path) -> None:
    for command in ("evaluate", "predict", "quantize"):
        result = run(command, model, "--data", data, "--augment", "flip")
        assert result.code == 2 and "--augment" in result.err


def test_the_advice_that_options_stand_for_is_given_somewhere() -> None:
    sources = [path for path in Path(df.__file__).parent.rglob("*.py") if path.parent.name != "cli"]
    text = "".join(re.sub(r'"\n\s*f?"', "", path.read_text()) for path in sources).replace("{option}=", "targets=")
    assert [advice for advice in OPTIONS if advice not in text] == []
