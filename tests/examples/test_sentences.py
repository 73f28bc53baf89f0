"""A fine-tune of an encoder of sentences with real weights, beside PyTorch, Transformers and PEFT."""

import json
import runpy
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import dataflow as df
from tests.support import RECORDINGS

FOLDER = Path(__file__).parents[2] / "examples/sentences"
RECORDED = json.loads((RECORDINGS / "sentences.json").read_text())
SHORT = ["--layers", "2", "--epochs", "1", "--lr", "1e-3"]  # as record_sentences.py has it
RUNS = {"full": SHORT, "lora": [*SHORT, "--lora", "8", "--lr", "1e-2"]}


@pytest.fixture(scope="module")
def weights():
    """The folder of the encoder's weights."""
    try:
        return runpy.run_path(str(FOLDER / "weights.py"))["fetched"](Path("~/.cache/dataflow-examples").expanduser())
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("run", RUNS)
def test_a_fine_tune_of_real_weights_is_as_good_as_pytorchs(run, weights, tmp_path, monkeypatch, capsys):
    """The first two layers of the encoder, for an epoch: the same losses at first, the same accuracy at the end."""
    target = tmp_path / "topics.onnx"
    monkeypatch.syspath_prepend(FOLDER)
    monkeypatch.setattr("sys.argv", ["main.py", *RUNS[run], "--weights", str(weights), "-o", str(target)])
    losses = []
    monkeypatch.setattr(df.Trainer, "fit", recording_fit(df.Trainer.fit, losses))
    try:
        names = runpy.run_path(str(FOLDER / "main.py"), run_name="__main__")
    finally:
        for name in ("bert", "weights"):  # they lie beside a script: their names are nobody's
            sys.modules.pop(name, None)
    recorded = RECORDED[f"short/{run}/0"]
    np.testing.assert_allclose(losses[:8], recorded["losses"][:8], rtol=1e-4)
    np.testing.assert_allclose(losses, recorded["losses"], rtol=0.05)

    _, validation, topics = names["read"](names["parsed"](RUNS[run]), weights)
    found, right = accuracy(target, validation, len(topics))
    error = np.sqrt(recorded["accuracy"] * (1 - recorded["accuracy"]) / right)
    assert abs(found - recorded["accuracy"]) <= error
    assert f"after:  validation accuracy {100 * found:.1f}%" in capsys.readouterr().out


def recording_fit(fit, losses):
    def recorded(trainer, *arguments, **options):
        history = fit(trainer, *arguments, **options, progress=False)
        losses.extend(history.steps["loss"])
        return history

    return recorded


def accuracy(path, validation, classes):
    """Of the written file in onnxruntime, and the number of texts."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    with df.Trainer(df.load(str(path)), trainable=["classifier.*"]) as trainer:
        right = []
        for batch in trainer._dataset(validation).batches(64):
            arrays = {key: batch.arrays[key] for key in ("input_ids", "attention_mask")}
            (logits,) = session.run(["logits"], arrays)
            assert logits.shape[1] == classes
            right += (logits.argmax(1) == batch.arrays["labels"]).tolist()
    return float(np.mean(right)), len(right)
