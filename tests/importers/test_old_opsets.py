"""Models of opset 1 to 8: ONNX's own files that PyTorch wrote, what opset 7 changed, and the batches of Scan."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

DATA = Path(onnx.__file__).parent / "backend/test/data"
FILES = sorted([*DATA.glob("pytorch-converted/*/model.onnx"), *DATA.glob("pytorch-operator/*/model.onnx")])
node = helper.make_node


def arrays(folder, kind):
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    return [numpy_helper.to_array(TensorProto.FromString(path.read_bytes())) for path in files]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.parent.name)
def test_files_of_old_exporters(path):
    proto = onnx.load(path)
    model = load_bytes(path.read_bytes())
    stored = {tensor.name for tensor in proto.graph.initializer}
    names = [value.name for value in proto.graph.input if value.name not in stored]
    for folder in path.parent.glob("test_data_set_*"):
        feeds = dict(zip(names, arrays(folder, "input"), strict=True))
        found = df.Session(model, devices=["cpu"]).run({name: feeds[name] for name in model.inputs})
        for value, expected in zip(proto.graph.output, arrays(folder, "output"), strict=True):
            assert found[value.name].dtype == expected.dtype and found[value.name].shape == expected.shape
            np.testing.assert_allclose(found[value.name], expected, rtol=1e-4, atol=1e-6)


X = np.random.default_rng(0).standard_normal((2, 3, 4, 5)).astype(np.float32)


def run(op, opset, *operands, stored=(), kind=TensorProto.FLOAT, outputs=("y",), **attributes):
    names = [f"x{i}" for i in range(len(operands))]
    inputs = [(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in zip(names, operands, strict=True)]
    made = node(op, [*names, *(name for name, _ in stored)], [*outputs], **attributes)
    model = onnx_model([made], inputs, [(name, kind, None) for name in outputs], stored, opset=opset, ir_version=3)
    found = df.Session(load_bytes(model.SerializeToString())).run(dict(zip(names, operands, strict=True)))
    return [found[name] for name in outputs]


@pytest.mark.parametrize("opset", [1, 6])
def test_operands_broadcast_from_an_axis(opset):
    b, channels = X[0, 0] + 2, X[0, :, 0, 0] + 1
    hints = {"consumed_inputs": [0, 0]} if opset == 1 else {}
    for op, function in (("Add", np.add), ("Sub", np.subtract), ("Mul", np.multiply), ("Div", np.divide)):
        (y,) = run(op, opset, X, channels, broadcast=1, axis=1, **hints)
        np.testing.assert_allclose(y, function(X, channels[:, None, None]), rtol=1e-6)
        (y,) = run(op, opset, X, b, broadcast=1, **hints)
        np.testing.assert_allclose(y, function(X, b), rtol=1e-6)
        (y,) = run(op, opset, X, X + 1)
        np.testing.assert_allclose(y, function(X, X + 1), rtol=1e-6)
    (y,) = run("Less", opset, X, X[0], broadcast=1, axis=-3, kind=TensorProto.BOOL)
    np.testing.assert_array_equal(y, X[0] > X)
    (y,) = run("Pow", opset, np.abs(X), np.array(2.0, np.float32), broadcast=1)
    np.testing.assert_allclose(y, X**2, rtol=1e-6)
    (y,) = run("PRelu", opset, X, channels)
    np.testing.assert_allclose(y, np.where(X < 0, X * channels[:, None, None], X), rtol=1e-6)


def test_attributes_that_became_operands():
    np.testing.assert_array_equal(run("Reshape", 1, X, shape=[0, -1], consumed_inputs=[0])[0], X.reshape(2, 60))
    np.testing.assert_array_equal(run("Concat", 1, X, X)[0], np.concatenate([X, X], 1))
    np.testing.assert_array_equal(run("Cast", 1, X, to="INT64", kind=TensorProto.INT64)[0], X.astype(np.int64))
    a, b = run("Split", 1, X, stored=[("s", np.array([1, 3], np.int64))], axis=2, outputs=("a", "b"))
    np.testing.assert_array_equal(np.concatenate([a, b], 2), X)
    assert a.shape == (2, 3, 1, 5)
    tiles = [("n", np.array(3, np.int64)), ("axis", np.array(1, np.int64))]
    np.testing.assert_array_equal(run("Tile", 1, X, stored=tiles)[0], np.tile(X, (1, 3, 1, 1)))
    (y,) = run("Upsample", 1, X, height_scale=2.0, width_scale=3.0, mode="nearest")
    np.testing.assert_array_equal(y, X.repeat(2, 2).repeat(3, 3))
    (y,) = run("Pad", 1, X, paddings=[0, 0, 1, 0, 0, 0, 0, 2], value=1.5)
    np.testing.assert_array_equal(y, np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 2)), constant_values=1.5))
    (y,) = run("GlobalLpPool", 1, X, p=2.0)
    np.testing.assert_allclose(y, np.sqrt((X**2).sum((2, 3), keepdims=True)), rtol=1e-5)
    (y,) = run("Selu", 1, X)
    np.testing.assert_allclose(y, np.where(X > 0, X, 1.6732 * np.expm1(X)) * 1.0507, rtol=1e-5)
    np.testing.assert_array_equal(run("Dropout", 6, X, is_test=1)[0], X)


def test_what_has_no_counterpart_is_refused():
    for op, attributes, text in (
        ("Dropout", {}, "is_test is 0"), ("Cast", {"to": "FLOAT7"}, "no element type 'FLOAT7'"),
        ("Reshape", {}, "'shape' is missing"), ("GlobalLpPool", {"p": 1.5}, "expected an integer"),
        ("Pad", {}, "'paddings' is missing"),
    ):  # fmt: skip
        with pytest.raises(df.ModelError, match=f"model: opset 1: .*{text}"):
            run(op, 1, X, **attributes)
    with pytest.raises(df.ModelError, match="the sizes 'x1' are computed"):
        run("Split", 1, X, np.array([1, 3]), axis=2, outputs=("a", "b"))
    with pytest.raises(df.ModelError, match="doesn't broadcast"):
        run("Add", 6, X, X[0], broadcast=1, axis=2)


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("lengths", [None, [3, 1], [1, 2]])
def test_a_scan_of_opset_8_has_a_batch(lengths, direction):
    """Behind the length of an example results are undefined in ONNX; here and in onnxruntime they are 0."""
    floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("h", "x", "g", "y")]
    body = helper.make_graph(
        [node("Mul", ["h", "w"], ["m"]), node("Add", ["m", "x"], ["g"]), node("Neg", ["g"], ["y"])], "body", floats[:2],
        floats[2:],
    )  # fmt: skip
    inputs = [("h0", TensorProto.FLOAT, ("n", 2)), ("xs", TensorProto.FLOAT, ("n", 3, 2))]
    inputs += [] if lengths is None else [("lengths", TensorProto.INT64, ("n",))]
    operands = ["" if lengths is None else "lengths", "h0", "xs"]
    scan = node("Scan", operands, ["last", "ys"], body=body, num_scan_inputs=1, directions=[direction])
    results = [("last", TensorProto.FLOAT, ("n", 2)), ("ys", TensorProto.FLOAT, ("n", 3, 2))]
    model = onnx_model([scan], inputs, results, [("w", np.float32([0.5, -2]))], opset=8, ir_version=4)
    feeds = {"h0": X[0, :2, 0, :2], "xs": X[:, :, 1, :2]}
    if lengths is not None:
        feeds["lengths"] = np.array(lengths)
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    for device in ("cpu", "numpy"):
        found = df.Session(load_bytes(model.SerializeToString()), devices=[device]).run(feeds)
        for name, array in zip(("last", "ys"), expected, strict=True):
            np.testing.assert_allclose(found[name], array, rtol=1e-6)
