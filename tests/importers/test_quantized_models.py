"""Models that onnxruntime's tools quantized: statically, dynamically and by blocks of 4 bits, against onnxruntime."""

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnxruntime import quantization as tools
from onnxruntime.quantization.matmul_nbits_quantizer import DefaultWeightOnlyQuantConfig, MatMulNBitsQuantizer

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.importers.peer_weights import saturates
from tests.support import onnx_model

INT8, UINT8, INT16, UINT16 = (getattr(tools.QuantType, name) for name in ("QInt8", "QUInt8", "QInt16", "QUInt16"))
INT4, UINT4, FLOAT8 = (getattr(tools.QuantType, name) for name in ("QInt4", "QUInt4", "QFLOAT8E4M3FN"))
X = np.random.default_rng(0).standard_normal((2, 3, 12, 12)).astype(np.float32)


def network(opset=21):
    """Convolutions, a pool, a sum, products and a softmax."""
    random = np.random.default_rng(1)
    shapes = {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 4, 3, 3), "w3": (8, 32), "w4": (32, 5)}
    stored = [(name, random.standard_normal(shape).astype(np.float32) * 0.3) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=2),
        helper.make_node("Add", ["c2", "p1"], ["s"]),
        helper.make_node("GlobalAveragePool", ["s"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w3"], ["m1"]),
        helper.make_node("Relu", ["m1"], ["r2"]),
        helper.make_node("MatMul", ["r2", "w4"], ["m2"]),
        helper.make_node("Softmax", ["m2"], ["y"]),
    ]
    results = [helper.make_tensor_value_info("y", 1, [2, 5])]
    return onnx_model(nodes, [("x", 1, X.shape)], results, stored, opset=opset, ir_version=10)


class Batches(tools.CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": X}, {"x": X / 2}]

    def get_next(self):
        return self.left.pop() if self.left else None


def check(proto):
    """The same result as of onnxruntime, which quantizes where the file says so."""
    assert any("Linear" in node.op_type or "Integer" in node.op_type for node in proto.graph.node)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = proto.SerializeToString()
    expected = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]
    found = df.Session(load_bytes(data), devices=["cpu"]).run({"x": X})["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


STATIC = [
    (UINT8, INT8, True), (INT8, INT8, True), (INT8, INT8, False), (UINT8, UINT8, False), (UINT16, INT8, False),
    (INT16, INT16, False), (UINT8, INT4, True), (UINT8, UINT4, False), (FLOAT8, FLOAT8, False),
]  # fmt: skip


@pytest.fixture(autouse=True)
def quiet():
    """The tools log what they calibrate."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    found = tmp_path_factory.mktemp("models") / "float.onnx"
    onnx.save(network(), found)
    return found


@pytest.mark.parametrize(("activations", "weights", "per_channel"), STATIC, ids=str)
def test_static_quantization_by_pairs_of_conversions(activations, weights, per_channel, path, tmp_path):
    small = activations == FLOAT8
    tools.quantize_static(
        path,
        tmp_path / "m.onnx",
        Batches(),
        quant_format=tools.QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=activations,
        weight_type=weights,
        calibrate_method=tools.CalibrationMethod.Distribution if small else tools.CalibrationMethod.MinMax,
        op_types_to_quantize=["Conv"] if small else None,
    )
    check(onnx.load(tmp_path / "m.onnx"))


@pytest.mark.parametrize(("weights", "per_channel"), [(INT8, True), (UINT8, False)], ids=str)
def test_static_quantization_by_quantized_operators(weights, per_channel, path, tmp_path):
    tools.quantize_static(
        path,
        tmp_path / "m.onnx",
        Batches(),
        quant_format=tools.QuantFormat.QOperator,
        per_channel=per_channel,
        activation_type=UINT8,
        weight_type=weights,
        reduce_range=saturates(),
        op_types_to_quantize=["Conv", "MatMul"],
    )
    check(onnx.load(tmp_path / "m.onnx"))


@pytest.mark.parametrize(("weights", "per_channel"), [(INT8, True), (UINT8, False)], ids=str)
def test_dynamic_quantization(weights, per_channel, path, tmp_path):
    tools.quantize_dynamic(
        path, tmp_path / "m.onnx", weight_type=weights, per_channel=per_channel, reduce_range=saturates()
    )
    check(onnx.load(tmp_path / "m.onnx"))


@pytest.mark.parametrize("symmetric", [True, False])
def test_weights_in_blocks_of_4_bits(symmetric, path):
    chosen = DefaultWeightOnlyQuantConfig(block_size=16, is_symmetric=symmetric, quant_format=tools.QuantFormat.QDQ)
    quantizer = MatMulNBitsQuantizer(onnx.load(path), algo_config=chosen)
    quantizer.process()
    made = quantizer.model.model
    assert {t.data_type for t in made.graph.initializer} & {onnx.TensorProto.INT4, onnx.TensorProto.UINT4}
    check(made)
