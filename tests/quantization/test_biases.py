"""Biases whose steps 32 bits barely hold or don't, and weights that several products read, against onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow import ops
from tests.quantization.models import in_runtime, linear, random

NODE = helper.make_node


def pairs(path, units, factor, conv):
    """A product in QDQ form whose bias has the size of its operands' scales times ``factor``, and what rounds it."""
    count = len(units)
    w = np.random.default_rng(0).integers(-60, 60, (count, 4)).astype(np.int8)
    scales, step = np.array([0.01, 0.02, 0.03][:count], np.float32), np.float32(0.02)
    bias, sizes = np.array(units, np.int32), (scales * step * np.float32(factor)).astype(np.float32)
    tensors = {"w": w.reshape(count, 4, 1, 1) if conv else w, "w_scale": scales, "w_zero": np.zeros(count, np.int8)}
    tensors |= {
        "x_scale": step,
        "x_zero": np.uint8(120),
        "b": bias,
        "b_scale": sizes,
        "b_zero": np.zeros(count, np.int32),
    }
    tensors |= {"y_scale": np.float32(np.abs(bias * sizes.astype(np.float64)).max() / 100), "y_zero": np.uint8(128)}
    product = NODE("Conv", ["xd", "wd", "bd"], ["f"]) if conv else NODE("Gemm", ["xd", "wd", "bd"], ["f"], transB=1)
    nodes = [
        NODE("QuantizeLinear", ["x", "x_scale", "x_zero"], ["xq"]),
        NODE("DequantizeLinear", ["xq", "x_scale", "x_zero"], ["xd"]),
        NODE("DequantizeLinear", ["w", "w_scale", "w_zero"], ["wd"], axis=0),
        NODE("DequantizeLinear", ["b", "b_scale", "b_zero"], ["bd"], axis=0),
        product,
        *([NODE("Relu", ["f"], ["r"])] if conv else []),
        NODE("QuantizeLinear", ["r" if conv else "f", "y_scale", "y_zero"], ["yq"]),
        NODE("DequantizeLinear", ["yq", "y_scale", "y_zero"], ["y"]),
    ]
    shape = ("batch", 4, 5, 5) if conv else ("batch", 4)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("factor", [1, 100, 1e4])
@pytest.mark.parametrize("units", [(300, -400, 500), (2147483000, -2147483000, 2147483646), (2147483000,)])
def test_a_bias_of_any_number_of_steps_is_added(tmp_path, units, factor, conv, device):
    pairs(tmp_path / "pairs.onnx", units, factor, conv)
    given = {"x": random(9, 4, *((5, 5) if conv else ()))}
    found = df.Session(df.load(str(tmp_path / "pairs.onnx")), [device]).run(given)["y"]
    expected = in_runtime(tmp_path / "pairs.onnx", given)["y"]
    np.testing.assert_allclose(found, expected, atol=0.011 * np.abs(expected).max())  # a step of a hundred


@pytest.mark.parametrize("size", [1e2, 1e4, 1e6])
def test_the_sum_of_a_large_bias_and_its_products_does_not_wrap(tmp_path, size):
    """Weights that have a few steps each beside a bias that has nearly all there are."""
    g = df.GraphBuilder()
    x, w = g.input("x", df.float32, ("batch", 64)), np.full((64, 2), 3e-5, np.float32) * [1, -1]
    y = ops.add(ops.matmul(x, g.parameter("w", w.astype(np.float32))), g.parameter("b", np.float32([size, -size])))
    g.output("y", ops.matmul(y, g.parameter("v", np.eye(2, dtype=np.float32))))
    model, data = df.Model(g.build()), np.abs(random(16, 64)) * np.float32(size / 1e2)
    small = df.quantize_static(model, data, progress=False)
    df.save(small, tmp_path / "small.onnx")
    for found in (df.Session(small).run({"x": data})["y"], in_runtime(tmp_path / "small.onnx", {"x": data})["y"]):
        np.testing.assert_allclose(found, np.broadcast_to([size, -size], (16, 2)), rtol=0.02)


def test_a_weight_of_several_products_has_one_scale_whatever_their_biases_are(tmp_path):
    g = df.GraphBuilder()
    w = g.parameter("w", random(4, 4))
    y = ops.relu(ops.matmul(g.input("x", df.float32, ("batch", 4)), w))
    y = ops.add(ops.matmul(y, w), g.parameter("b", random(4, seed=1) * 100))
    g.output("y", ops.add(ops.matmul(y, w), g.parameter("c", random(4, seed=2))))
    model, x = df.Model(g.build()), random(32, 4, seed=3) * np.float32(1e-6)
    small = df.quantize_static(model, x, progress=False)
    df.save(small, tmp_path / "small.onnx")
    found = df.Session(small).run({"x": x})["y"]
    expected = df.Session(model).run({"x": x})["y"]
    np.testing.assert_allclose(found, expected, atol=0.02 * np.abs(expected).max())
    np.testing.assert_allclose(in_runtime(tmp_path / "small.onnx", {"x": x})["y"], found, rtol=1e-5)


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_bias_that_is_not_finite_is_refused(broken):
    model = linear()
    model.parameters["b"].set(np.array([0, broken, 0, 0, 0], np.float32))
    with pytest.raises(df.ModelError, match="beside the weight 'w', 'b' has elements that are not finite"):
        df.quantize_static(model, random(4, 12), progress=False)
