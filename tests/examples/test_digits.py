import runpy
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import dataflow as df

FOLDER = Path(__file__).parents[2] / "examples/digits"


def test_the_example_reaches_its_accuracy_and_onnxruntime_agrees(tmp_path, monkeypatch, capsys):
    target = tmp_path / "digits10.onnx"
    monkeypatch.setattr("sys.argv", ["main.py", "-o", str(target)])
    runpy.run_path(str(FOLDER / "main.py"), run_name="__main__")
    printed = capsys.readouterr().out
    data = df.Dataset(str(FOLDER / "digits.npz"))
    _, validation = data.split(0.2, seed=0)
    (batch,) = validation.batches(len(validation))
    x, labels = batch.arrays["x"], batch.arrays["labels"]
    assert len(set(labels.tolist())) == 10
    session = onnxruntime.InferenceSession(str(target), providers=["CPUExecutionProvider"])
    (theirs,) = session.run(["logits"], {"x": x})
    ours = df.load(str(target))(x)["logits"]
    accuracy = float((theirs.argmax(1) == labels).mean())
    assert accuracy >= 0.97
    assert float((ours.argmax(1) == labels).mean()) == accuracy
    assert np.abs(ours - theirs).max() < 1e-4
    assert f"{100 * accuracy:.2f}%" in printed and "before" in printed


def test_the_shipped_network_does_not_know_the_other_digits():
    data = np.load(FOLDER / "digits.npz")
    model = df.replace_head(df.load(str(FOLDER / "digits5.onnx")), classes=10, keep=range(5))
    found = model(data["x"])["logits"].argmax(1)
    labels = data["labels"]
    assert (found[labels < 5] == labels[labels < 5]).mean() > 0.8
    assert (found == labels).mean() < 0.75


@pytest.mark.parametrize("name", ["digits.npz", "digits5.onnx"])
def test_what_is_shipped_is_small(name):
    assert (FOLDER / name).stat().st_size < 200_000
