"""Straight-through training where rounding is a tie, where x is not finite, and where integers are moved in between."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import dataflow as df
from dataflow_onnx.loading import load_bytes

SCALE = np.float32(0.125)
X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)
STORED = {
    "s": SCALE, "z": np.int8(3), "other": np.float32(0.5), "far": np.int8(-2), "sizes": np.array([-1, 2]),
    "from": np.array([1]), "to": np.array([3]), "axis": np.array([1]), "chosen": np.array([2, 0]),
    "pads": np.array([0, 1, 0, 0]), "edge": np.int8(7), "six": np.int8(6), "image": np.array([1, 1, 6, 4]),
}  # fmt: skip


def loaded(nodes, stored, opset=21):
    """A model from x (N, 4) to y; nodes are (operator, inputs, output, attributes)."""
    made = [helper.make_node(op, inputs, [output], **how) for op, inputs, output, how in nodes]
    types = [helper.make_tensor_value_info(n, 1, s) for n, s in (("x", ["N", 4]), ("y", None))]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in stored.items()]
    graph = helper.make_graph(made, "g", types[:1], types[1:], tensors)
    return load_bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10).SerializeToString()
    )


def gradient(model, x, of):
    """Of the sum of squares of y."""
    with df.Trainer(model, loss=lambda g, outputs, batch: outputs["y"] * outputs["y"], metrics=[]) as trainer:
        terms = trainer.forward({"x": x})
        trainer.backward()
        found = np.array(trainer.gradients[of])
        trainer.discard()
    return found, terms


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int4", "uint4"])
@pytest.mark.parametrize("offset", [0, 1, 2, -1])
def test_ties_at_the_ends_of_the_range(dtype, offset):
    """A value half a step beyond an end belongs to the range where rounding to even leads back into it."""
    bits = int(dtype[-2:] if dtype.endswith("16") else dtype[-1])
    low, high = (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    zero = (low + high + 1) // 2 + offset
    w = (np.array([low - 0.5, high + 0.5, low - 0.75, high + 0.75, low, high, zero, zero + 0.5]) - zero) * SCALE
    tensors = {"w": w.astype(np.float32), "s": SCALE}
    code = getattr(onnx.TensorProto, dtype.upper())
    nodes = [
        ("Constant", [], "z", {"value": helper.make_tensor("z", code, (), [zero])}),
        ("QuantizeLinear", ["w", "s", "z"], "q", {}),
        ("DequantizeLinear", ["q", "s", "z"], "d", {}),
        ("ReduceSum", ["x"], "one", {"keepdims": 0}),
        ("Mul", ["d", "one"], "y", {}),
    ]
    model = df.straight_through(loaded(nodes, tensors))
    x = np.full((1, 4), 0.25, np.float32)
    steps = np.rint(w / SCALE) + zero
    expected = (np.clip(steps, low, high) - zero) * SCALE
    np.testing.assert_array_equal(model({"x": x})["y"], expected.astype(np.float32))
    inside = (steps >= low) & (steps <= high)
    found, _ = gradient(model, x, "w")
    np.testing.assert_array_equal(found != 0, inside & (expected != 0))


MOVES = {
    "transpose": ([("Transpose", ["q"], "m", {"perm": [1, 0]})], lambda v: v.T),
    "reshape": ([("Reshape", ["q", "sizes"], "m", {})], lambda v: v.reshape(-1, 2)),
    "slice": ([("Slice", ["q", "from", "to", "axis"], "m", {})], lambda v: v[:, 1:3]),
    "gather": ([("Gather", ["q", "chosen"], "m", {"axis": 1})], lambda v: v[:, [2, 0]]),
    "concat": ([("Concat", ["q", "q"], "m", {"axis": 0})], lambda v: np.concatenate([v, v])),
    "split": ([("Split", ["q"], "m", {"axis": 1, "num_outputs": 1})], lambda v: v),
    "pad": ([("Pad", ["q", "pads", "edge"], "m", {})], lambda v: np.pad(v, [(0, 0), (1, 0)], constant_values=7)),
    "max": ([("Max", ["q", "six"], "m", {})], lambda v: np.maximum(v, 6)),
    "pool": (
        [("Reshape", ["q", "image"], "i", {}), ("MaxPool", ["i"], "m", {"kernel_shape": [2, 2], "strides": [2, 2]})],
        lambda v: v.reshape(1, 1, 3, 2, 2, 2).max((3, 5)),
    ),
}


@pytest.mark.parametrize("back", ["same", "other"])
@pytest.mark.parametrize("name", MOVES)
def test_gradients_pass_integers_that_are_moved(name, back):
    """Differences of the same net without rounding, of which each value lies at its step; scales may be others."""
    between, move = MOVES[name]
    scale, zero = ("s", "z") if back == "same" else ("other", "far")
    nodes = [
        ("Mul", ["x", "w"], "h", {}),
        ("QuantizeLinear", ["h", "s", "z"], "q", {}),
        *between,
        ("DequantizeLinear", ["m", scale, zero], "y", {}),
    ]
    w = np.array([0.5, 1.0, 25.0, 2.0], np.float32)  # of the third column some are beyond the range
    model = df.straight_through(loaded(nodes, {**STORED, "w": w}))
    steps = np.rint((X * w).astype(np.float64) / SCALE) + 3
    inside = (steps >= -128) & (steps <= 127)
    assert not inside.all()

    def squares(change):
        moved = np.clip(steps, -128, 127) + inside * X * change / SCALE
        return np.square((move(moved) - float(STORED[zero])) * float(STORED[scale])).sum()

    y = (move(np.clip(steps, -128, 127)) - float(STORED[zero])) * float(STORED[scale])
    np.testing.assert_array_equal(model({"x": X})["y"], y.astype(np.float32))
    found, _ = gradient(model, X, "w")
    differences = [(squares(1e-6 * row) - squares(-1e-6 * row)) / 2e-6 for row in np.eye(4)]
    np.testing.assert_allclose(found, differences, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("code", [onnx.TensorProto.INT32, onnx.TensorProto.INT64])
def test_what_chooses_integers_stays_integers(code):
    """Indices may have the dtype of the integers that they choose, and be such integers themselves."""
    index = helper.tensor_dtype_to_np_dtype(code)
    nodes = [
        ("Mul", ["x", "w"], "h", {}),
        ("QuantizeLinear", ["h", "s", "z"], "q", {}),
        ("Cast", ["q"], "i", {"to": code}),
        ("Gather", ["i", "chosen"], "m", {"axis": 1}),
        ("Cast", ["m"], "f", {"to": onnx.TensorProto.FLOAT}),
        ("Clip", ["i", "none", "most"], "k", {}),
        ("Gather", ["table", "k"], "t", {}),
        ("Cast", ["t"], "g", {"to": onnx.TensorProto.FLOAT}),
        ("ReduceSum", ["g"], "r", {"keepdims": 0}),
        ("Add", ["f", "r"], "y", {}),
    ]
    numbers = {"chosen": [2, 0], "none": 0, "most": 6, "table": [3, 1, 4, 1, 5, 9, 2]}
    stored = {**STORED, **{name: np.array(n, index) for name, n in numbers.items()}, "w": np.ones(4, np.float32)}
    plain = loaded(nodes, stored)
    model = df.straight_through(plain)
    np.testing.assert_array_equal(model({"x": X})["y"], plain({"x": X})["y"])
    found, _ = gradient(model, X, "w")
    assert found[[0, 2]].all() and not found[[1, 3]].any()


@pytest.mark.parametrize("name", ["slice", "gather", "concat", "split", "pool"])
def test_moved_integers_give_the_same_bits_where_steps_are_no_binary_fractions(name):
    """Of images: shifts and scales of these are joined into one op, which would round otherwise."""
    nodes = [
        ("QuantizeLinear", ["x", "tenth", "z"], "f", {}),
        ("Reshape", ["f", "image"], "q", {}),
        *([("MaxPool", ["q"], "m", {"kernel_shape": [2, 2]})] if name == "pool" else MOVES[name][0]),
        ("DequantizeLinear", ["m", "tenth", "z"], "y", {}),
    ]
    stored = {**STORED, "tenth": np.float32(0.1), "axis": np.array([2]), "chosen": np.array([0, 0])}
    plain = loaded(nodes, stored)
    np.testing.assert_array_equal(df.straight_through(plain)({"x": X})["y"], plain({"x": X})["y"])


def test_what_is_not_finite_gives_the_ends_of_the_range():
    nodes = [
        ("QuantizeLinear", ["x", "s", "z"], "q", {}),
        ("DequantizeLinear", ["q", "s", "z"], "d", {}),
        ("Mul", ["d", "w"], "y", {}),
        ("QuantizeLinear", ["w0", "s", "z"], "wq", {}),
        ("DequantizeLinear", ["wq", "s", "z"], "w", {}),
    ]
    nodes = [*nodes[3:], *nodes[:3]]
    model = loaded(nodes, {**STORED, "w0": np.ones(4, np.float32)})
    x = np.array([[np.nan, np.inf, -np.inf, 3e38]], np.float32)
    y = model({"x": x})["y"]
    assert np.isfinite(y).all()
    through = df.straight_through(model)
    np.testing.assert_array_equal(through({"x": x})["y"], y)
    found, _ = gradient(through, x, "w0")
    assert np.isfinite(found).all() and found.all()


def test_products_of_integers_are_named(caplog):
    """As files in QOperator form have them: what is before one gets no gradient through it."""
    operands = ["q", "s", "z", "b", "s", "z", "other", "far"]
    nodes = [
        ("Mul", ["x", "w"], "h", {}),
        ("QuantizeLinear", ["h", "s", "z"], "q", {}),
        ("DequantizeLinear", ["q", "s", "z"], "d", {}),
        ("QLinearMatMul", operands, "p", {}),
        ("DequantizeLinear", ["p", "other", "far"], "e", {}),
        ("Add", ["d", "e"], "y", {}),
    ]
    stored = {**STORED, "w": np.ones(4, np.float32), "b": np.ones((4, 4), np.int8)}
    df.straight_through(loaded(nodes, stored))
    assert "no gradient passes 1 nodes that compute with integers, first" in caplog.text
    caplog.clear()
    df.straight_through(loaded([*nodes[:2], ("DequantizeLinear", ["q", "s", "z"], "y", {})], stored))
    assert "no gradient" not in caplog.text
