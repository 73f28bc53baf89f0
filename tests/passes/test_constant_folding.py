"""What depends on constants alone is computed when a plan is made."""

import numpy as np

import dataflow as df
from dataflow.passes import constant_folding
from tests.support import ops_of

ops = df.ops


def planned(size):
    """The ops of the plan and the result of a matrix of ones under a causal mask that is made for its size."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", "n"))
    (positions,) = g.add(ops.range_, (), {"limit": x.type.shape[0]}).outputs
    seen = ops.less_equal(positions, ops.reshape(positions, shape=(x.type.shape[0], 1)))
    g.output("y", ops.add(x, ops.where(seen, np.float32(0), np.float32(-np.inf))))
    session = df.Session(g.build(), devices=["cpu"], fuse=False)
    y = session.run({"x": np.ones((size, size), np.float32)})["y"]
    np.testing.assert_array_equal(y, np.where(np.tri(size, dtype=bool), 1, -np.inf))
    return ops_of(session.plan({"x": (size, size)}))


def test_a_mask_of_a_known_size_is_a_constant():
    assert planned(6) == ["add"]


def test_large_results_of_nodes_without_inputs_are_made_at_each_run(monkeypatch):
    monkeypatch.setattr(constant_folding, "SMALL", 30)  # bytes; the mask has 36
    assert planned(6) == ["range_", "less_equal", "where", "add"]


def test_what_is_counted_of_large_ones_is_a_constant():
    """Losses count the elements that they are the mean of: ones that were made and added up at each step."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 300))
    (full,) = g.add(ops.full, (), {"shape": x.type.shape, "value": 1.0}).outputs
    ones = full.reshape(-1)
    g.output("mean", ops.div(ops.reduce_sum(x, axes=(0, 1), keepdims=0), ops.reduce_sum(ones, axes=(0,), keepdims=0)))
    g.output("sums", ops.add(ones, 1.0))  # as large as they are: made at each run
    session = df.Session(g.build(), devices=["cpu"], fuse=False)
    data = np.random.default_rng(0).random((200, 300), np.float32)
    found = session.run({"x": data})
    np.testing.assert_allclose(found["mean"], data.astype(np.float64).mean(), rtol=1e-6)
    np.testing.assert_array_equal(found["sums"], np.full(60000, 2, np.float32))
    assert sorted(ops_of(session.plan({"x": (200, 300)}))) == ["add", "div", "full", "reduce_sum"]


def test_constants_that_overflow_are_infinite_without_a_warning():
    """Warnings are errors in these tests."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2,))
    large = g.constant(np.array([3e38, -3e38], np.float32))
    g.output("y", df.ops.add(x, df.ops.mul(large, 10.0)))
    found = df.Session(g.build(), devices=["cpu"]).run(np.zeros(2, np.float32))["y"]
    np.testing.assert_array_equal(found, [np.inf, -np.inf])


def test_elements_of_a_weight_that_lie_apart_are_not_copied_at_each_run():
    """Of 3x3 taps 4 apart only the middle one reads a map of 3x3: elements of the weight that lie apart."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((5, 4, 3, 3), dtype=np.float32)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, 4, 3, 3))
    parameter = g.parameter("w", weight)
    conv = ops.conv(x, parameter, strides=(1, 1), pads=(4, 4, 4, 4), dilations=(4, 4), groups=1)
    g.output("y", conv)
    model = df.Model(g.build())
    session = df.Session(model, devices=["cpu"])
    x = rng.standard_normal((2, 4, 3, 3), dtype=np.float32)
    assert "copy" not in [step.kernel.op for step in session.plan().segments[0].steps]
    for data in (weight, -2 * weight):
        model.parameters["w"].set(data)
        session.reload()
        expected = np.einsum("ncij,oc->noij", x, data[:, :, 1, 1])
        np.testing.assert_allclose(session.run(x)["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_weight_in_another_order_is_not_copied_at_each_run():
    """As onnxruntime stores weights in blocks: a reshape of moved axes is no view."""
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((2, 3, 5, 4), dtype=np.float32)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, 15, 4, 4))
    moved = ops.transpose(g.parameter("w", weight), perm=(0, 3, 1, 2))
    kernel = ops.reshape(moved, shape=(8, 15, 1, 1))
    conv = ops.conv(x, kernel, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1), groups=1)
    g.output("y", conv)
    model = df.Model(g.build())
    session = df.Session(model, devices=["cpu"])
    x = rng.standard_normal((2, 15, 4, 4), dtype=np.float32)
    assert "copy" not in [step.kernel.op for step in session.plan().segments[0].steps]
    for data in (weight, -2 * weight):
        model.parameters["w"].set(data)
        session.reload()
        expected = np.einsum("ncij,oc->noij", x, data.transpose(0, 3, 1, 2).reshape(8, 15))
        np.testing.assert_allclose(session.run(x)["y"], expected, rtol=1e-5, atol=1e-6)
