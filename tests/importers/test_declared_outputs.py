"""Files that are wrong about their outputs: another dtype is refused and other sizes are said, as onnxruntime does."""

import logging

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests import support
from tests.support import onnx_model

F, D, I = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64


def relu(kind, shape, sizes=(1, 3), nodes=None):
    nodes = nodes or [helper.make_node("Relu", ["x"], ["y"])]
    output = helper.make_tensor_value_info("y", kind, shape)
    return onnx_model(nodes, [("x", F, list(sizes))], [output], ir_version=8).SerializeToString()


@pytest.mark.parametrize("shape", [[1, 3], [7], None])
@pytest.mark.parametrize("sizes", [(1, 3), ("n", 3)])
@pytest.mark.parametrize(
    ("kind", "operator", "found"), [(D, "Relu", "float32"), (I, "Relu", "float32"), (F, "Shape", "int64")]
)
def test_another_dtype_is_refused(kind, operator, found, shape, sizes):
    data = relu(kind, shape, sizes, [helper.make_node(operator, ["x"], ["y"])])
    with pytest.raises(Exception, match="Type Error"):
        onnxruntime.InferenceSession(data)
    text = support.refusal(df.ModelError, load_bytes, data)
    assert f"{operator} 'y', opset 18: output 'y' is {found}[" in text and "the file declares it as" in text


@pytest.mark.parametrize(
    ("shape", "warns"),
    [
        ([1, 4], True), ([2, 3], True), ([1, 3, 1], True), ([3], True), ([], True),
        ([1, 3], False), (["n", 3], False), ([None, None], False), ([0, 3], False), (None, False),
    ],
)  # fmt: skip
def test_other_sizes_are_said_and_what_is_computed_counts(caplog, shape, warns):
    x = np.array([[-1, 0, 2]], np.float32)
    data = relu(F, shape)
    with caplog.at_level(logging.WARNING, "dataflow"):
        session = df.Session(load_bytes(data), devices=["cpu"])
    said = [record.getMessage() for record in caplog.records if "shapes of outputs" in record.getMessage()]
    assert len(said) == warns
    assert not warns or "'y' is float32[1, 3], declared as float32[" in said[0]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    expected = onnxruntime.InferenceSession(data, options).run(None, {"x": x})[0] if shape != [0, 3] else x.clip(0)
    np.testing.assert_array_equal(session.run(x)["y"], expected)


def test_a_free_batch_is_no_contradiction(tmp_path, caplog):
    path = tmp_path / "model.onnx"
    path.write_bytes(relu(F, [1, 3]))
    with caplog.at_level(logging.WARNING, "dataflow"):
        assert str(df.load(str(path), batch="free").outputs["y"]) == "float32[batch, 3]"
    assert not caplog.records
