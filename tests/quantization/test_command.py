"""``dataflow quantize``: its forms, and options that don't fit each other."""

import json

import numpy as np
import onnx
import pytest

import dataflow as df
from dataflow.cli.main import commands
from dataflow.errors import InputError
from tests.quantization.models import DATA, DIGITS


def quantize(*arguments):
    commands.main(["quantize", *map(str, arguments)], standalone_mode=False)


def dtypes(path):
    tensors = [onnx.numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer]
    return {str(array.dtype) for array in tensors if array.ndim > 1}


def test_samples_choose_the_ranges(tmp_path, capsys):
    path = tmp_path / "bytes.onnx"
    quantize(DIGITS, "--data", DATA, "--samples", 100, "-o", path, "--json")
    figures = json.loads(capsys.readouterr().out)
    assert figures["bytes"] < 0.3 * figures["bytes_before"]
    assert dtypes(path) == {"int8"}
    first = np.load(DATA)["x"][:100]
    np.testing.assert_allclose(df.load(str(path)).arrays()["x.scale"], (first.max() - first.min()) / 255, rtol=1e-6)


def test_without_data_weights_alone_have_fewer_bits(tmp_path, capsys):
    quantize(DIGITS, "--bits", 8, "--block", 16, "-o", tmp_path / "blocks.onnx")
    assert "0.152 before" in capsys.readouterr().out
    assert "MatMulNBits" in {node.op_type for node in onnx.load(tmp_path / "blocks.onnx").graph.node}


def test_what_was_rounded_for_training_is_stored(tmp_path):
    quantize(DIGITS, "--data", DATA, "--train", "--target", "*", "--target", "!classifier*", "-o", tmp_path / "a.onnx")
    assert dtypes(tmp_path / "a.onnx") == {"float32"}
    quantize(tmp_path / "a.onnx", "--store", "-o", tmp_path / "b.onnx")
    assert dtypes(tmp_path / "b.onnx") == {"int8", "float32"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--samples", 3], "--samples doesn't fit weights alone"),
        (["--data", DATA, "--block", 32], "--block doesn't fit --data"),
        (["--data", DATA, "--bits", 4], "--bits 4 doesn't fit --data"),
        (["--bits", 7], "--bits 7 doesn't fit weights alone: give --data"),
        (["--store", "--bits", 8], "--bits doesn't fit --store"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        quantize(DIGITS, *options, "-o", tmp_path / "none.onnx")
    assert not (tmp_path / "none.onnx").exists()
