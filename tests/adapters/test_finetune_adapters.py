"""Adapters on the command line."""

from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow.cli import main as cli

RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.fixture
def data(tmp_path):
    with np.load(RECORDINGS / "adapters.npz") as file:
        arrays = {name: np.concatenate([file[name]] * 2) for name in ("words", "labels")}
    np.savez(tmp_path / "data.npz", **arrays)
    return tmp_path / "data.npz"


def finetune(data, target, *options, model=RECORDINGS / "adapters.onnx"):
    """The exit code of a short run."""
    given = ["finetune", model, "--data", data, "--batch-size", 6, "--epochs", 2, "-o", target, *options]
    with pytest.raises(SystemExit) as done:
        cli.main([str(option) for option in given])
    return done.value.code


def results(model, data):
    with np.load(data) as file:
        (found,) = model({"words": file["words"][:6]}).values()
    return found


@pytest.mark.parametrize("form", ["merged", "nodes", "adapters"])
def test_finetune_writes_adapters_in_three_forms(data, tmp_path, form):
    options = ["--lora", 2, "--lora-alpha", 4, "--lora-targets", "q", "--lora-targets", "conv", "--dora"]
    target = tmp_path / ("folder" if form == "adapters" else "tuned.onnx")
    assert finetune(data, tmp_path / "plain.onnx", *options, "--classes", 4) == 0
    assert finetune(data, target, *options, "--save", form) == 0
    base = df.load(str(RECORDINGS / "adapters.onnx"))
    if form == "adapters":
        model = df.load_adapters(base, target)
        assert sorted(adapter.path for adapter in model.adapters) == ["conv", "layers.0.q", "layers.1.q"]
        assert finetune(data, target, "--adapters", target, "--save", "adapters") == 2  # it exists
        assert finetune(data, target, "--adapters", target, "--save", "adapters", "--force") == 0
        again = df.load_adapters(base, target)
        assert abs(results(again, data) - results(model, data)).max() > 1e-5
    else:
        model = df.load(str(target))
        nodes = len(df.load(str(RECORDINGS / "adapters.onnx")).graph.nodes)
        assert (len(model.graph.nodes) > nodes) == (form == "nodes")
    assert abs(results(model, data) - results(base, data)).max() > 1e-5


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--save", "nodes"], "--save needs --lora"),
        (["--lora-targets", "q"], "--lora-targets needs --lora"),
        (["--lora", 2, "--lora-targets", "nothing"], "matches no layer"),
        (["--lora", 2, "--adapters", "."], "--adapters goes on"),
    ],
)
def test_options_that_do_not_fit_are_refused(data, tmp_path, capsys, options, text):
    assert finetune(data, tmp_path / "tuned.onnx", *options) == 2
    assert text in capsys.readouterr().err
