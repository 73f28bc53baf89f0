"""Labels with names are numbered by the classes that a model has, in training too, where its names have them all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dataflow as df

NAMES = ("pos", "neg", "zero")


def model(names: Any = NAMES) -> df.Model:
    """Its first output is largest for positive x, its second for negative x."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 1))
    w = g.parameter("w", np.array([[1, -1, 0]], np.float32))
    g.output("logits", df.ops.matmul(x, w))
    made = df.Model(g.build())
    if names is not None:
        made.metadata["classes"] = str(list(names))
    return made


def table(folder: Path, labels: list[str]) -> Path:
    signs = {"pos": 2.0, "neg": -2.0}
    rows = [f"{signs.get(label, 0.0)},{label}" for label in labels]
    path = folder / "table.csv"
    path.write_text("\n".join(["x,labels", *rows]))
    return path


def still(made: df.Model) -> df.Trainer:
    return df.Trainer(made, optimizer=df.optim.SGD(lr=0.0))


def test_training_numbers_labels_as_evaluation_does(tmp_path: Path) -> None:
    data, made = table(tmp_path, ["neg", "pos", "pos", "neg"]), model()
    assert df.evaluate(made, data)["accuracy"] == 1
    with still(made) as trainer:
        assert trainer.evaluate(data)["accuracy"] == 1  # before fit, and after
        trainer.fit(data, data, epochs=1, progress=False)
        assert trainer.evaluate(data)["accuracy"] == 1
        assert tuple(trainer.classes["labels"]) == NAMES
    assert made.classes == NAMES


def test_names_that_are_all_others_take_numbers_of_their_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    made = model()
    with still(made) as trainer:
        trainer.fit(table(tmp_path, ["cat", "dog"]), epochs=1, progress=False)
    assert made.classes == ("cat", "dog")
    assert "other ones than the model's, 'pos', 'neg', 'zero'" in caplog.text


def test_names_of_which_some_are_the_model_s_are_refused(tmp_path: Path) -> None:
    with still(model()) as trainer, pytest.raises(df.InputError, match=r"'cat' are none of the model's classes.*head"):
        trainer.fit(table(tmp_path, ["cat", "pos"]), epochs=1, progress=False)


def test_an_order_that_the_data_says_holds(tmp_path: Path) -> None:
    data, made = df.Dataset(table(tmp_path, ["neg", "pos"]), classes=["neg", "pos"]), model()
    with still(made) as trainer:
        assert trainer.evaluate(data)["accuracy"] == 0
        trainer.fit(data, epochs=1, progress=False)
    assert made.classes == ("neg", "pos")


def test_labels_that_are_numbers_stay_numbers(tmp_path: Path) -> None:
    path = tmp_path / "numbers.csv"
    path.write_text("x,labels\n2,0\n-2,1\n")
    with still(model()) as trainer:
        assert trainer.evaluate(path)["accuracy"] == 1


def test_a_model_without_names_takes_the_data_s(tmp_path: Path) -> None:
    made = model(None)
    with still(made) as trainer:
        trainer.fit(table(tmp_path, ["neg", "pos"]), epochs=1, progress=False)
    assert made.classes == ("neg", "pos")


@pytest.mark.parametrize(("labels", "said"), [(["neg", "pos"], True), (["neg", "pos", "zero"], False)])
def test_fewer_classes_than_logits_are_said(
    labels: list[str], said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    with still(model(None)) as trainer:
        trainer.fit(table(tmp_path, labels), epochs=1, progress=False)
    assert ("has 2 classes, 'neg', 'pos', and the logits float32[batch, 3] are of 3" in caplog.text) == said
    assert ("df.replace_head(model, classes=2), --classes 2," in caplog.text) == said


def test_more_classes_than_logits_are_refused_before_anything_is_trained(tmp_path: Path) -> None:
    made = model(None)
    before = made.parameters["w"].array.copy()
    with still(made) as trainer:
        with pytest.raises(
            df.InputError, match=r"has 4 classes, .* are of 3; df.replace_head\(model, classes=4\), --classes 4"
        ):
            trainer.fit(table(tmp_path, ["neg", "pos", "zero", "other"]), epochs=1, progress=False)
        assert made.classes is None and trainer.classes == {}
    np.testing.assert_array_equal(made.parameters["w"].array, before)


def test_a_loss_whose_outputs_are_of_no_classes_is_not_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:  # fmt: skip
    """As of embeddings, of which samples of a class lie near each other."""

    class Embedding:
        metrics, skips = (), ()

        def target(self, output: Any, labels: Any) -> df.losses.Target:
            return df.losses.Target(output, df.TensorType(df.float32, labels.shape))

        def elements(self, target: df.losses.Target, output: Any, labels: Any) -> tuple[Any, Any]:
            sums = df.ops.reduce_sum(output, axes=(1,), keepdims=0)
            apart = df.ops.sub(sums, labels)
            return df.ops.mul(apart, apart), df.ops.add(df.ops.mul(labels, 0.0), 1.0)

    with df.Trainer(model(None), Embedding(), "sgd:lr=0.001") as trainer:
        trainer.fit(table(tmp_path, ["neg", "pos"]), epochs=1, progress=False)
    assert trainer.classes and "logits" not in caplog.text


def test_classes_that_the_model_knows_may_be_absent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with still(model()) as trainer:
        trainer.fit(table(tmp_path, ["neg", "pos"]), epochs=1, progress=False)
    assert "logits" not in caplog.text


def test_paths_are_read_as_in_training(tmp_path: Path) -> None:
    """Columns in another order would be other features without a word, in validation, evaluation and predictions."""
    g = df.GraphBuilder()
    x, w = g.input("x", df.float32, ("batch", 2)), g.parameter("w", np.array([[1], [10]], np.float32))
    g.output("y", df.ops.matmul(x, w))
    made = df.Model(g.build())
    train, other = tmp_path / "train.csv", tmp_path / "other.csv"
    train.write_text("a,b,target\n1,2,21\n3,4,43\n")
    other.write_text("target,b,a,more\n21,2,1,5\n43,4,3,5\n")
    with df.Trainer(made, "mse", df.optim.SGD(lr=0.0)) as trainer:
        history = trainer.fit(df.Dataset(train, label="target"), other, epochs=1, progress=False)
        assert history.epochs["val_loss"] == [0.0]
        assert trainer.evaluate(other)["loss"] == 0.0
        np.testing.assert_array_equal(trainer.predict(str(other), progress=False)["y"], [[21], [43]])
    df.save(made, tmp_path / "m.onnx")
    loaded = df.load(tmp_path / "m.onnx")
    assert df.evaluate(loaded, other, "mse")["loss"] == 0.0
    for given in (loaded, df.Session(loaded)):
        np.testing.assert_array_equal(df.predict(given, other, progress=False)["y"], [[21], [43]])
    with df.Trainer(made, "mse", df.optim.SGD(lr=0.0)) as trainer:  # and in training that goes on
        assert trainer.fit(other, epochs=1, progress=False).epochs["loss"] == [0.0]
    lacking = tmp_path / "lacking.csv"
    lacking.write_text("a,c\n1,2\n")
    with pytest.raises(df.InputError, match="no column 'b'"):
        df.predict(made, lacking, progress=False)
    with df.Trainer(made, "mse", df.optim.SGD(lr=0.0)) as trainer:  # arrays say nothing of columns
        trainer.fit({"x": np.ones((2, 2), np.float32), "labels": np.ones((2, 1), np.float32)}, progress=False)
    assert "dataflow.data" not in made.metadata


@pytest.mark.parametrize(
    "note", ["", "[]", "[" * 100_000, '{"kind": "tables", "size": 3, "workers": 9, "columns": {"x": ["a", "b"]}}']
)
def test_notes_of_other_programs_do_no_harm(note: str, tmp_path: Path) -> None:
    g = df.GraphBuilder()
    x, w = g.input("x", df.float32, ("batch", 2)), g.parameter("w", np.array([[1], [10]], np.float32))
    g.output("y", df.ops.matmul(x, w))
    made = df.Model(g.build())
    made.metadata["dataflow.data"] = note
    path = tmp_path / "t.csv"
    path.write_text("a,b\n1,2\n")
    np.testing.assert_array_equal(df.predict(made, path, progress=False)["y"], [[21]])
