"""QuantizeLinear and DequantizeLinear of every type and granularity, against the reference of ONNX."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import dataflow as df
from dataflow_onnx.loading import load_bytes

P = TensorProto
INTEGERS = (P.INT8, P.UINT8, P.INT16, P.UINT16, P.INT4, P.UINT4, P.INT2, P.UINT2)
FLOAT8 = (P.FLOAT8E4M3FN, P.FLOAT8E4M3FNUZ, P.FLOAT8E5M2, P.FLOAT8E5M2FNUZ)
QUANTIZED = (*INTEGERS, *FLOAT8, P.FLOAT4E2M1)
FLOATS = (P.FLOAT, P.FLOAT16, P.BFLOAT16)
ROUNDING = {P.FLOAT: 2.5e-7, P.FLOAT16: 1e-3, P.BFLOAT16: 8e-3}  # one of a product


def model(op, arrays, stored, result, attributes, opset=25):
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in arrays.items()
        if name not in stored
    ]
    graph = helper.make_graph(
        [helper.make_node(op, list(arrays), ["y"], **attributes)],
        "g",
        infos,
        [helper.make_tensor_value_info("y", result, None)],
        [numpy_helper.from_array(arrays[name], name) for name in stored],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=13)


def session(proto):
    return df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"])


def bits_of(dtype):
    return df.plugin.dtype(helper.tensor_dtype_to_np_dtype(dtype)).bits


def quantized(random, dtype, shape):
    if dtype == P.INT32:
        return random.integers(-(1 << 20), 1 << 20, shape).astype(np.int32)
    size = 2 if bits_of(dtype) == 16 else 1
    found = random.integers(0, 1 << bits_of(dtype), shape).astype(f"u{size}")
    found = found.view(helper.tensor_dtype_to_np_dtype(dtype)) if shape else found
    return np.where(np.isnan(found.astype(np.float32)), np.zeros_like(found), found) if dtype in FLOAT8 else found


def floats(random, dtype, shape):
    found = random.standard_normal(shape) * 10.0 ** random.integers(-2, 3)
    if random.random() < 0.4:
        found = np.round(found * 2) / 2  # ties
    return found.astype(helper.tensor_dtype_to_np_dtype(dtype))


def granularity(random, shape):
    """Shape of the scale and the attributes that say so."""
    axis = int(random.integers(-len(shape), len(shape)))
    chosen = random.choice(["tensor", "axis", "block"])
    if chosen == "tensor":
        return (1,), {}
    if chosen == "axis":
        return (shape[axis],), {"axis": axis}
    block = int(random.integers(1, shape[axis] + 1))
    sizes = list(shape)
    sizes[axis] = -(-shape[axis] // block)
    return tuple(sizes), {"axis": axis, "block_size": block}


def draw(random, op):
    """A random use of an operator: its operands, the type of the result and attributes."""
    kind, dtype, scale_dtype = (int(random.choice(types)) for types in (QUANTIZED, FLOATS, FLOATS))
    scale_dtype = dtype if random.random() < 0.7 else scale_dtype
    shape = tuple(int(n) for n in random.integers(1, 7, random.integers(1, 4)))
    sizes, attributes = granularity(random, shape)
    scale = random.uniform(0.01, 2, sizes) if random.random() < 0.5 else 2.0 ** random.integers(-6, 2, sizes)
    arrays = {"x": None, "scale": scale.astype(helper.tensor_dtype_to_np_dtype(scale_dtype))}
    zero = quantized(random, kind, sizes)
    if random.random() < 0.6:
        arrays["zero"] = zero if kind in INTEGERS else np.zeros_like(zero)
    if op == "QuantizeLinear":
        arrays["x"] = floats(random, dtype, shape)
        if "zero" not in arrays:
            attributes["output_dtype"] = kind
        if kind in FLOAT8:
            attributes["saturate"] = int(random.integers(0, 2))
        if random.random() < 0.2:
            attributes["precision"] = int(random.choice([P.FLOAT, P.FLOAT16]))
        return arrays, kind, attributes
    if "zero" not in arrays and random.random() < 0.2:
        kind = P.INT32
    arrays["x"] = quantized(random, kind, shape)
    if random.random() < 0.3:
        attributes["output_dtype"] = int(random.choice(FLOATS))
    return arrays, attributes.get("output_dtype", scale_dtype), attributes


@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_random_uses_give_what_the_reference_gives(op):
    for seed in range(120):
        random = np.random.default_rng(seed)
        arrays, result, attributes = draw(random, op)
        stored = [name for name in arrays if name != "x"] if random.random() < 0.5 else []
        proto = model(op, arrays, stored, result, attributes)
        feeds = {name: a for name, a in arrays.items() if name not in stored}
        found = session(proto).run(feeds)["y"]
        with np.errstate(all="ignore"):
            expected = ReferenceEvaluator(proto).run(None, feeds)[0]
        where = f"seed {seed}: {attributes}, {[(n, a.dtype, a.shape) for n, a in arrays.items()]}"
        assert found.dtype == expected.dtype, where
        limit = ROUNDING[result] if op == "DequantizeLinear" else 0
        found, expected = (a.astype(np.float64) for a in (found, expected))
        np.testing.assert_allclose(found, expected, rtol=limit, atol=0, err_msg=where)


@pytest.mark.parametrize(
    ("dtype", "kind"), [(np.int8, P.INT8), (np.uint8, P.UINT8), (np.int16, P.INT16), (np.uint16, P.UINT16)]
)
def test_numbers_out_of_range_take_the_nearest_end(dtype, kind):
    x = np.array([-np.inf, -1e30, -1e6, 1e6, 1e30, np.inf], np.float32)
    arrays = {"x": x, "scale": np.float32(0.5), "zero": np.array(3, dtype)}
    found = session(model("QuantizeLinear", arrays, ["scale", "zero"], kind, {})).run({"x": x})["y"]
    limits = np.iinfo(dtype)
    assert found.tolist() == [limits.min] * 3 + [limits.max] * 3


def test_what_equals_the_zero_point_is_zero():
    x = np.full((2, 3, 4), -57, np.int8)
    arrays = {"x": x, "scale": np.full(3, 0.14296249, np.float32), "zero": np.full(3, -57, np.int8)}
    proto = model("DequantizeLinear", arrays, ["scale", "zero"], P.FLOAT, {"axis": 1})
    assert not session(proto).run({"x": x})["y"].any()


def test_dequantized_tensors_have_gradients_by_their_scales():
    x = np.arange(24, dtype=np.int8).reshape(2, 3, 4)
    arrays = {"x": x, "scale": np.full((2, 3, 2), 0.5, np.float32), "zero": np.full((2, 3, 2), 5, np.int8)}
    proto = model("DequantizeLinear", arrays, ["x", "zero"], P.FLOAT, {"axis": 2, "block_size": 2})
    dy = np.random.default_rng(0).standard_normal(x.shape).astype(np.float32)
    found = df.vjp(load_bytes(proto.SerializeToString()), {"scale": arrays["scale"]}, {"y": dy}, devices=["cpu"])
    expected = (dy * (x - 5.0)).reshape(2, 3, 2, 2).sum(-1)
    np.testing.assert_allclose(found["scale"], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("op", "scale", "attributes", "message"),
    [
        ("QuantizeLinear", (), {"output_dtype": P.INT8}, "output_dtype is int8, the zero point uint8"),
        ("QuantizeLinear", (2, 2), {"axis": 1, "block_size": 2}, "slice|broadcast"),
        ("QuantizeLinear", (2, 2), {"axis": 1}, "expected one number, or one per index of the axis"),
        ("QuantizeLinear", (5,), {"axis": 1, "block_size": 2}, "expected one for each block"),
        ("DequantizeLinear", (2,), {"axis": 1}, "expected 5 numbers"),
        ("DequantizeLinear", (5,), {"axis": 2}, "axis 2"),
        ("DequantizeLinear", (), {"output_dtype": P.INT8}, "give output_dtype, a float of 16 bits or more"),
    ],
)
def test_operands_that_do_not_fit_are_refused(op, scale, attributes, message):
    dtype = np.float32 if op == "QuantizeLinear" else np.uint8
    arrays = {"x": np.zeros((2, 5), dtype), "scale": np.ones(scale, np.float32), "zero": np.zeros(scale, np.uint8)}
    with pytest.raises(df.ModelError, match=message):
        load_bytes(model(op, arrays, ["scale", "zero"], P.UINT8, attributes).SerializeToString())
