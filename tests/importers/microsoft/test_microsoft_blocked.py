"""Weights that onnxruntime laid out in blocks of channels, for one kind of processor."""

import logging

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.importers.microsoft.test_microsoft_files import MODELS, agrees, losses, operators, session_of
from tests.models import data as made
from tests.support import onnx_model

NCHWC = "com.microsoft.nchwc"
random = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def quiet():
    """Of files that do not say their blocks there are warnings."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("file", ["mobile", "unet"])
def test_files_for_one_processor_run_and_train_as_they_do_there(file, tmp_path):
    path, saved = tmp_path / "blocked.onnx", tmp_path / "saved.onnx"
    session_of(MODELS / f"{file}.onnx", "ALL", path)
    assert "ReorderOutput" in operators(path)
    (feeds, *_) = made.probes(file)
    agrees(path, feeds)
    found, model = losses(path, feeds)
    assert found[-1] < found[0]
    df.save(model, saved)
    agrees(saved, feeds)


def in_blocks(weight, block, of_inputs):
    """A weight (outputs, inputs, height, width), padded to whole blocks, as onnxruntime stores it."""
    outputs, inputs, *window = weight.shape
    more = -inputs % block if of_inputs else 0
    padded = np.pad(weight, ((0, -outputs % block), (0, more), (0, 0), (0, 0)))
    split = padded.reshape(
        -1, block, (inputs + more) // (block if of_inputs else 1), block if of_inputs else 1, *window
    )
    return np.ascontiguousarray(split.transpose(0, 2, 4, 5, 3, 1)).reshape(padded.shape)


@pytest.mark.parametrize(
    ("block", "channels"), [(8, (3, 20, 9)), (16, (3, 20, 7)), (8, (12, 17, 5)), (16, (18, 17, 5))]
)
@pytest.mark.parametrize("last", [0, 1])
def test_padding_says_how_large_blocks_are(block, channels, last):
    first, middle, end = channels
    w1, w2 = (random.standard_normal(s).astype(np.float32) for s in ((middle, first, 3, 3), (end, middle, 1, 1)))
    depth = random.standard_normal((middle, 1, 3, 3)).astype(np.float32)
    bias = random.standard_normal(end).astype(np.float32)
    reads = first >= block  # fewer channels are read as they are
    image = [2, 6, 5, first] if last and reads else [2, first, 6, 5]
    x = random.standard_normal(image).astype(np.float32)
    padded = -(-middle // block) * block
    nodes = [
        *([helper.make_node("ReorderInput", ["x"], ["r"], domain=NCHWC, channels_last=last)] if reads else []),
        helper.make_node("Conv", ["r" if reads else "x", "w1"], ["a"], domain=NCHWC, pads=[1] * 4, activation="Relu"),
        helper.make_node("Conv", ["a", "d", "", "a"], ["b"], domain=NCHWC, pads=[1] * 4, group=padded),
        helper.make_node("Conv", ["b", "w2", "bias"], ["c"], domain=NCHWC, activation="HardSwish"),
        helper.make_node("Upsample", ["c"], ["u"], domain=NCHWC, scales=[1, 1, 2, 3]),
        helper.make_node("ReorderOutput", ["u"], ["y"], domain=NCHWC, channels=end, channels_last=last),
        helper.make_node("ReorderOutput", ["c"], ["z"], domain=NCHWC, channels=end),
    ]
    stored = [
        ("w1", in_blocks(w1, block, reads)),
        ("d", in_blocks(depth, block, False)),
        ("w2", in_blocks(w2, block, True)),
        ("bias", np.pad(bias, (0, -end % block))),
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in "yz"]
    proto = onnx_model(nodes, [("x", TensorProto.FLOAT, image)], outputs, stored, domains=[NCHWC], opset=17)
    found = df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"]).run({"x": x})["y"]
    plain = [
        *([helper.make_node("Transpose", ["x"], ["r"], perm=[0, 3, 1, 2])] if last and reads else []),
        helper.make_node("Conv", ["r" if last and reads else "x", "w1"], ["a0"], pads=[1] * 4),
        helper.make_node("Relu", ["a0"], ["a"]),
        helper.make_node("Conv", ["a", "d"], ["b0"], pads=[1] * 4, group=middle),
        helper.make_node("Add", ["b0", "a"], ["b"]),
        helper.make_node("Conv", ["b", "w2", "bias"], ["c0"]),
        helper.make_node("HardSwish", ["c0"], ["c"]),
    ]
    arrays = [("w1", w1), ("d", depth), ("w2", w2), ("bias", bias), ("scales", np.array([1, 1, 2, 3], np.float32))]
    plain.append(
        helper.make_node(
            "Resize",
            ["c", "", "scales"],
            ["y"],
            mode="nearest",
            nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )
    )
    output = [onnx.ValueInfoProto(name="y")]
    expected = ReferenceEvaluator(onnx_model(plain, [("x", 1, image)], output, arrays, opset=17)).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, expected.transpose(0, 2, 3, 1) if last else expected, rtol=1e-4, atol=1e-4)
