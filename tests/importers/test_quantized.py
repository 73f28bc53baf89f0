"""Quantized operators and graphs in QDQ form against ONNX Runtime: sums are equal, rounded results within one step."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.importers.peer_weights import weights
from tests.support import onnx_model, ops_of

node = helper.make_node
KINDS = {np.dtype(np.uint8): TensorProto.UINT8, np.dtype(np.int8): TensorProto.INT8}
PAIRS = [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)]


def integers(random, dtype, shape=()):
    limits = np.iinfo(dtype)
    return random.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def scales(random, shape=()):
    return (2.0 ** random.uniform(-9, -5, shape)).astype(np.float32)


def model(nodes, feeds, stored, out):
    inputs = [(name, KINDS.get(a.dtype, TensorProto.FLOAT), list(a.shape)) for name, a in feeds.items()]
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in stored.items()]
    proto = onnx_model(nodes, inputs, [("y", out, None)], tensors, opset=18, ir_version=9)
    return proto.SerializeToString()


def both(data, feeds, optimized=True):
    """What ONNX Runtime gives, what the device cpu gives, and the ops that it ran."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    expected = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    session = df.Session(load_bytes(data), devices=["cpu"])
    found = session.run(feeds)["y"]
    assert found.dtype == expected.dtype and found.shape == expected.shape
    return expected, found, ops_of(session.plan())


def window(random, spatial, kernel):
    pads = [int(random.integers(0, k)) for k in (*kernel, *kernel)]
    strides = [int(random.integers(1, 3)) for _ in range(spatial)]
    dilations = [int(random.integers(1, 3)) for _ in range(spatial)]
    return {"pads": pads, "strides": strides, "dilations": dilations}


def convolution(random, pair):
    """A random image and weight with their attributes."""
    spatial = int(random.integers(1, 3))
    group = int(random.choice([1, 1, 2, 5]))
    channels, filters = (int(n) for n in random.integers(1, 9, 2))
    if random.random() < 0.2:
        group, channels, filters = 6, 1, 1
    kernel = [int(n) for n in random.integers(1, 5, spatial)]
    size = [int(n) for n in random.integers(8, 22, spatial)]
    x = integers(random, pair[0], (int(random.integers(1, 3)), group * channels, *size))
    w = weights(random, pair[1], (group * filters, channels, *kernel))
    return x, w, {"group": group, **window(random, spatial, kernel)}


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_sums_are_equal(pair):
    random = np.random.default_rng(7)
    for trial in range(12):
        m, k, n = (int(v) for v in random.choice([1, 3, 17, 33, 70, 200], 3))
        shape = random.choice([0, 2])
        a = integers(random, pair[0], (int(shape), m, k) if shape else (m, k))
        b = weights(random, pair[1], (k, n))
        zeros = {"a_zero": integers(random, pair[0]), "b_zero": integers(random, pair[1], (n,) if trial % 2 else ())}
        data = model(
            [node("MatMulInteger", ["a", "b", "a_zero", "b_zero"], ["y"])],
            {"a": a},
            {"b": b, **zeros},
            TensorProto.INT32,
        )
        expected, found, ran = both(data, {"a": a})
        np.testing.assert_array_equal(found, expected)
        assert ran == ["matmul_integer"]


def test_sums_of_convolutions_are_equal():
    random = np.random.default_rng(8)
    for _ in range(12):
        x, w, given = convolution(random, (np.uint8, np.uint8))
        stored = {"w": w, "x_zero": integers(random, np.uint8), "w_zero": integers(random, np.uint8)}
        data = model(
            [node("ConvInteger", ["x", "w", "x_zero", "w_zero"], ["y"], **given)], {"x": x}, stored, TensorProto.INT32
        )
        expected, found, ran = both(data, {"x": x})
        np.testing.assert_array_equal(found, expected)
        assert ran == ["conv_integer"]


def near(found, expected, most=0.002):
    """Whether results differ by one step at most, and few of them."""
    difference = np.abs(found.astype(np.int64) - expected.astype(np.int64))
    return difference.max(initial=0) <= 1 and (difference > 0).sum() <= max(1, most * difference.size)


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_requantized_products_and_convolutions_are_within_a_step(pair):
    random = np.random.default_rng(9)
    kind = KINDS[np.dtype(pair[0])]
    for trial in range(10):
        x, w, given = convolution(random, pair)
        per = (len(w),) if trial % 2 else ()
        stored = {
            "xs": scales(random), "xz": integers(random, pair[0]), "w": w, "ws": scales(random, per),
            "wz": np.zeros(per, pair[1]) if pair[1] == np.int8 else np.full(per, 128, np.uint8),
            "ys": scales(random) * 4, "yz": integers(random, pair[0]),
            "bias": random.integers(-3000, 3000, len(w)).astype(np.int32),
        }  # fmt: skip
        names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "bias"]
        data = model([node("QLinearConv", names, ["y"], **given)], {"x": x}, stored, kind)
        expected, found, ran = both(data, {"x": x})
        assert near(found, expected) and ran == ["conv_requantized"]
        a, b = integers(random, pair[0], (9, 40)), weights(random, pair[1], (40, 21))
        stored |= {"b": b, "ws": scales(random), "wz": integers(random, pair[1]), "ys": scales(random) * 30}
        names = ["x", "xs", "xz", "b", "ws", "wz", "ys", "yz"]
        data = model([node("QLinearMatMul", names, ["y"])], {"x": a}, stored, kind)
        expected, found, ran = both(data, {"x": a})
        assert near(found, expected) and ran == ["matmul_requantized"]


# ---- QDQ ----------------------------------------------------------------------------------------------


class Graph:
    """A graph in QDQ form, grown by one quantized value after the other, and its stored tensors."""

    def __init__(self, random, pair):
        self.random, self.pair = random, pair
        self.nodes, self.stored = [], {}

    def keep(self, name, array):
        self.stored[name] = np.asarray(array)
        return name

    def dequantized(self, name, scale, zero, axis=0):
        operands = [name, self.keep(f"{name}_s", scale), self.keep(f"{name}_z", zero)]
        self.nodes.append(node("DequantizeLinear", operands, [f"{name}_f"], axis=axis))
        return f"{name}_f"

    def weight(self, name, array, axis=None):
        per = () if axis is None else (array.shape[axis],)
        scale = scales(self.random, per)
        return self.dequantized(self.keep(name, array), scale, np.zeros(per, array.dtype), axis or 0), scale

    def quantized(self, value, name, scale):
        zero = integers(self.random, self.pair[0])
        operands = [value, self.keep(f"{name}_s", scale), self.keep(f"{name}_z", zero)]
        self.nodes.append(node("QuantizeLinear", operands, [name]))
        return scale, zero


def test_products_between_quantized_values_are_one_op():
    random = np.random.default_rng(10)
    for pair in PAIRS:
        for trial in range(6):
            g = Graph(random, pair)
            g.keep("x_s", scales(random)), g.keep("x_z", integers(random, pair[0]))
            x = g.dequantized("x", g.stored["x_s"], g.stored["x_z"])
            if trial % 2:
                array, weight, given = convolution(random, pair)
                w, scale = g.weight("w", weight, 0 if trial % 3 else None)
                operator, count, op = "Conv", len(weight), "conv_requantized"
            else:
                array, weight = integers(random, pair[0], (5, 24)), weights(random, pair[1], (19, 24))
                w, scale = g.weight("w", weight, 0 if trial % 3 else None)
                operator, count, op, given = "Gemm", 19, "matmul_requantized", {"transB": 1}
            unit = g.stored["x_s"] * scale
            bias = g.keep("bias", random.integers(-9000, 9000, count).astype(np.int32))
            added = g.dequantized(bias, np.broadcast_to(unit, (count,)), np.zeros(count, np.int32))
            g.nodes.append(node(operator, [x, w, added], ["sums"], **given))
            if trial >= 3:
                g.nodes.append(node("Relu", ["sums"], ["rectified"]))
            g.quantized("rectified" if trial >= 3 else "sums", "y", scales(random) * 8)
            data = model(g.nodes, {"x": array}, g.stored, KINDS[np.dtype(pair[0])])
            for optimized in (True, False):
                expected, found, ran = both(data, {"x": array}, optimized)
                assert near(found, expected) and ran == [op]


def test_a_dequantized_value_with_several_readers_stays_integers_for_each():
    random = np.random.default_rng(11)
    g = Graph(random, PAIRS[0])
    x = g.dequantized("x", np.float32(0.05), np.uint8(120))
    for name in ("a", "b"):
        w, _ = g.weight(f"w{name}", weights(random, np.int8, (8, 6, 1, 1)))
        g.nodes.append(node("Conv", [x, w], [f"{name}_sums"]))
        g.quantized(f"{name}_sums", name, np.float32(2.0))
    second = [g.dequantized(name, np.float32(2.0), g.stored[f"{name}_z"]) for name in ("a", "b")]
    g.nodes.append(node("Add", second, ["y"]))
    array = integers(random, np.uint8, (2, 6, 7, 5))
    data = model(g.nodes, {"x": array}, g.stored, TensorProto.FLOAT)
    expected, found, ran = both(data, {"x": array})
    np.testing.assert_allclose(found, expected, atol=4.001)
    assert (np.abs(found - expected) > 1e-4).mean() < 0.01
    assert ran.count("conv_requantized") == 2


@pytest.mark.parametrize(("shape", "one"), [((2, 6, 7, 5), True), ((6, 1, 1), False)])
def test_sums_between_quantized_values_are_one_op_where_nothing_broadcasts(shape, one):
    random = np.random.default_rng(13)
    for rectified in (False, True):
        g = Graph(random, PAIRS[0])
        arrays = {"a": integers(random, np.uint8, (2, 6, 7, 5)), "b": integers(random, np.uint8, shape)}
        read = [g.dequantized(name, scales(random), integers(random, np.uint8)) for name in arrays]
        g.nodes.append(node("Add", read, ["sum"]))
        if rectified:
            g.nodes.append(node("Relu", ["sum"], ["positive"]))
        g.quantized("positive" if rectified else "sum", "y", scales(random))
        data = model(g.nodes, arrays, g.stored, KINDS[np.dtype(np.uint8)])
        expected, found, ran = both(data, arrays, False)
        np.testing.assert_array_equal(found, expected)
        assert (ran == ["add_requantized"]) == one


@pytest.mark.parametrize("ratio", [1e3, 1e6, 1e7, 1e12, 1e30])
def test_a_sum_of_operands_of_very_different_scales_keeps_the_smaller(ratio):
    """Where the operand of the larger scale is zero, the result is what the other says."""
    random = np.random.default_rng(17)
    g = Graph(random, PAIRS[0])
    arrays = {"a": integers(random, np.uint8, (3, 300)), "b": integers(random, np.uint8, (3, 300))}
    arrays["b"][:, ::2] = 121
    small = np.float32(3.9e-10)
    read = [
        g.dequantized("a", small, np.uint8(90)),
        g.dequantized("b", np.float32(small * ratio), np.uint8(121)),
    ]
    g.nodes.append(node("Add", read, ["sum"]))
    g.quantized("sum", "y", np.float32(6.4e-10))
    expected, found, ran = both(model(g.nodes, arrays, g.stored, KINDS[np.dtype(np.uint8)]), arrays, False)
    np.testing.assert_array_equal(found, expected)
    assert ran == ["add_requantized"] and len(np.unique(found[:, ::2])) > 100


def test_movement_between_quantized_values_moves_the_integers():
    random = np.random.default_rng(12)
    scale, zero = np.float32(0.03), np.uint8(7)
    stored = {"s": scale, "z": zero, "shape": np.array([2, 6, 4], np.int64)}
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["f"]),
        node("Transpose", ["f"], ["t"], perm=[0, 2, 1]),
        node("Reshape", ["t", "shape"], ["r"]),
        node("QuantizeLinear", ["r", "s", "z"], ["y"]),
    ]
    array = integers(random, np.uint8, (2, 8, 3))
    expected, found, ran = both(model(nodes, {"x": array}, stored, TensorProto.UINT8), {"x": array})
    np.testing.assert_array_equal(found, expected)
    assert set(ran) <= {"copy"}


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_the_largest_of_quantized_values_are_found_among_the_integers(kind):
    random = np.random.default_rng(15)
    array, stored = integers(random, kind, (2, 5, 11, 9)), {"s": np.float32(0.03), "z": integers(random, kind)}
    window = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1], "strides": [2, 1], "ceil_mode": 1}
    for dilations in ([1, 1], [1, 2]):
        pool = {**window, "dilations": dilations}
        nodes = [
            node("DequantizeLinear", ["x", "s", "z"], ["f"]),
            node("MaxPool", ["f"], ["p"], **pool),
            node("QuantizeLinear", ["p", "s", "z"], ["y"]),
        ]
        expected, found, ran = both(model(nodes, {"x": array}, stored, KINDS[np.dtype(kind)]), {"x": array}, False)
        np.testing.assert_array_equal(found, expected)
        assert (ran == ["max_pool"]) == (dilations == [1, 1])
        alone = model([node("MaxPool", ["x"], ["y"], **pool)], {"x": array}, {}, KINDS[np.dtype(kind)])
        expected, found, ran = both(alone, {"x": array})
        np.testing.assert_array_equal(found, expected)


def test_dynamic_quantization_is_two_ops_and_equal():
    random = np.random.default_rng(13)
    x = random.standard_normal((4, 9, 48)).astype(np.float32)
    stored = {
        "b": weights(random, np.int8, (48, 35)), "bs": scales(random, (35,)), "bz": np.zeros(35, np.int8),
        "bias": random.standard_normal(35).astype(np.float32),
    }  # fmt: skip
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]),
        node("MatMulInteger", ["q", "b", "qz", "bz"], ["sums"]),
        node("Cast", ["sums"], ["floats"], to=TensorProto.FLOAT),
        node("Mul", ["qs", "bs"], ["scale"]),
        node("Mul", ["floats", "scale"], ["scaled"]),
        node("Add", ["bias", "scaled"], ["y"]),
    ]
    for optimized in (True, False):
        expected, found, ran = both(model(nodes, {"x": x}, stored, TensorProto.FLOAT), {"x": x}, optimized)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert sorted(ran) == ["dynamic_quantize", "matmul_dequantized"]


def test_training_keeps_the_floats():
    random = np.random.default_rng(14)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 6))
    w = g.constant(integers(random, np.int8, (6, 5)))
    zero = g.constant(np.int8(0))
    fixed = df.ops.dequantize(w, g.constant(np.float32(0.02)), zero)
    y = df.ops.matmul(
        df.ops.dequantize(df.ops.quantize(x, g.constant(np.float32(0.05)), zero), g.constant(np.float32(0.05)), zero),
        fixed,
    )
    g.output("y", df.ops.matmul(y, g.parameter("head", random.standard_normal((5, 3)).astype(np.float32))))
    trainer = df.Trainer(df.Model(g.build()), optimizer=df.optim.SGD(lr=0.1), metrics=[], devices=["cpu"])
    batch = {"x": random.standard_normal((8, 6)).astype(np.float32), "labels": np.arange(8) % 3}
    losses = [trainer.step(batch) for _ in range(5)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("axis", [0, 1, -2])
def test_a_bias_of_one_row_has_a_scale_for_each_channel(axis):
    """ONNX Runtime's quantizer says axis 0, of one element, and its products take it as it is meant."""
    random = np.random.default_rng(0)
    stored = {
        "w": integers(random, np.int8, (8, 6)), "sw": scales(random, (6,)), "zw": np.zeros(6, np.int8),
        "b": integers(random, np.int8, (1, 6)).astype(np.int32), "sx": scales(random), "zx": np.uint8(128),
        "zb": np.zeros(6, np.int32), "sy": np.float32(0.1), "zy": np.uint8(128),
    }  # fmt: skip
    stored["sb"] = stored["sx"] * stored["sw"]
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["wd"], axis=1),
        helper.make_node("DequantizeLinear", ["b", "sb", "zb"], ["bd"], axis=axis),
        helper.make_node("Gemm", ["xd", "wd", "bd"], ["g"]),
        helper.make_node("QuantizeLinear", ["g", "sy", "zy"], ["y"]),
    ]
    feeds = {"x": integers(random, np.uint8, (3, 8))}
    expected, found, _ = both(model(nodes, feeds, stored, TensorProto.UINT8), feeds)
    assert np.abs(expected.astype(int) - found).max() <= 1
