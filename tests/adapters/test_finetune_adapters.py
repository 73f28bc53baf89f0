"""Adapters on the command line."""

import json
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


def test_a_new_last_layer_is_not_quantized(tmp_path, capsys):
    digits = Path(__file__).parents[2] / "examples" / "digits"
    with np.load(digits / "digits.npz") as file:
        np.savez(tmp_path / "few.npz", **{name: file[name][:24] for name in ("x", "labels")})
    options = ["--quantize", 4, "--lora", 2, "--lora-targets", "features.*", "--classes", 10, "--save", "adapters"]
    target = tmp_path / "adapters"
    assert finetune(tmp_path / "few.npz", target, *options, model=digits / "digits5.onnx") == 0
    config = json.loads((target / "adapter_config.json").read_text())
    assert config["modules_to_save"] == ["classifier"]
    assert config["target_modules"] == ["features.0", "features.2", "features.6"]
    again = ["--quantize", 4, "--classes", 10, "--adapters", target, "--save", "nodes"]
    assert finetune(tmp_path / "few.npz", tmp_path / "tuned.onnx", *again, model=digits / "digits5.onnx") == 0
    assert df.load(str(tmp_path / "tuned.onnx")).graph.outputs["logits"].type.shape[1] == 10
    assert finetune(tmp_path / "few.npz", tmp_path / "a.onnx", "--adapters", target, model=digits / "digits5.onnx") == 2
    assert "df.replace_head(model, classes=10), or --classes" in capsys.readouterr().err
