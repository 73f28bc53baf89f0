"""Constant scales and shifts per channel are joined into the convolution before them, or into one op."""

import numpy as np
import pytest

import dataflow as df
from dataflow.cdevice.host_memory import data_of
from dataflow.passes.fold_affine import fold_affine

WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 2}
RANDOM = np.random.default_rng(3)
X = RANDOM.standard_normal((2, 4, 6, 5)).astype(np.float32)
W = RANDOM.standard_normal((8, 2, 3, 3)).astype(np.float32)
BIAS = RANDOM.standard_normal(8).astype(np.float32)


def vectors(count):
    return [RANDOM.uniform(0.5, 1.5, count).astype(np.float32) for _ in range(4)]


def normed(g, x):
    """Batch norm, then a product and sums with constants per channel, one of them through a view."""
    count = x.type.sizes[1]
    x = df.ops.batch_norm(x, *[g.constant(v) for v in vectors(count)], epsilon=1e-3)
    x = df.ops.mul(g.constant(RANDOM.uniform(0.5, 2, (count, 1, 1)).astype(np.float32)), x)
    shift = df.ops.reshape(g.constant(RANDOM.standard_normal(count).astype(np.float32)), shape=(1, count, 1, 1))
    return df.ops.sub(df.ops.add(x, shift), g.constant(np.full((1, 1, 1), 0.25, np.float32)))


def convolved(g, x, bias=None, **parameter):
    w = g.parameter("w", W, **parameter)
    return df.ops.conv(x, w, None if bias is None else g.parameter("b", bias), **WINDOW)


def sessions(build):
    """The same graph joined on the device, and as it is in the reference."""
    g = df.GraphBuilder()
    for name, value in build(g, g.input("x", df.float32, X.shape)).items():
        g.output(name, value)
    model = df.Model(g.build())
    return df.Session(model, devices=["cpu"]), df.Session(model, devices=["numpy"], fold=False, fuse=False)


def ops_of(session):
    return [p.op for p in session.placement()]


@pytest.mark.parametrize("bias", [None, BIAS])
def test_a_chain_behind_a_convolution_costs_nothing(bias):
    ours, reference = sessions(lambda g, x: {"y": df.ops.relu(normed(g, convolved(g, x, bias)))})
    assert ops_of(ours) == ["conv_relu"]
    np.testing.assert_allclose(ours.run(X)["y"], reference.run(X)["y"], rtol=1e-5, atol=1e-5)


def test_a_shift_alone_leaves_the_weight_as_it_is():
    ours, reference = sessions(lambda g, x: {"y": df.ops.add(convolved(g, x), g.constant(BIAS.reshape(1, 8, 1, 1)))})
    assert ops_of(ours) == ["conv"]
    assert "w" in ours.plan().stored
    np.testing.assert_allclose(ours.run(X)["y"], reference.run(X)["y"], rtol=1e-5, atol=1e-5)


def test_a_chain_elsewhere_is_one_op():
    ours, reference = sessions(lambda g, x: {"y": normed(g, df.ops.tanh(x)), "z": normed(g, x)})
    assert sorted(ops_of(ours)) == ["batch_norm", "batch_norm", "tanh"]
    found, expected = ours.run(X), reference.run(X)
    for name in ("y", "z"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)


def test_what_others_read_stays():
    def build(g, x):
        inner = convolved(g, x)
        norm = normed(g, inner)
        return {"inner": inner, "y": norm, "z": df.ops.tanh(norm)}

    ours, reference = sessions(build)
    found, expected = ours.run(X), reference.run(X)
    assert "conv" in ops_of(ours) and "batch_norm" in ops_of(ours)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)


def test_a_weight_that_two_convolutions_read_is_not_copied():
    def build(g, x):
        w = g.parameter("w", W)
        return {n: normed(g, df.ops.conv(v, w, **WINDOW)) for n, v in (("y", x), ("z", df.ops.tanh(x)))}

    ours, reference = sessions(build)
    assert [n for n in ours.plan().stored if "scaled" in n] == []
    found, expected = ours.run(X), reference.run(X)
    for name in ("y", "z"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)


def test_a_scale_along_another_axis_or_from_an_input_stays():
    row = RANDOM.standard_normal((1, 8, 6, 1)).astype(np.float32)
    ours, reference = sessions(lambda g, x: {"y": df.ops.mul(convolved(g, x), g.constant(row))})
    assert "mul" in ops_of(ours)
    np.testing.assert_allclose(ours.run(X)["y"], reference.run(X)["y"], rtol=1e-5, atol=1e-5)


def test_what_is_trained_later_is_not_joined_by_an_earlier_evaluation():
    g = df.GraphBuilder()
    g.output("y", normed(g, convolved(g, g.input("x", df.float32, X.shape), trainable=True)))
    model = df.Model(g.build())
    target = np.zeros((2, 8, 6, 5), np.float32)
    with df.Trainer(model, loss="mse", optimizer=df.optim.SGD(lr=0.05), accumulate=1, devices=["cpu"]) as trainer:
        before = trainer.evaluate({"x": X, "labels": target})
        for _ in range(3):
            trainer.step({"x": X, "labels": target})
        after = trainer.evaluate({"x": X, "labels": target})
    assert after["loss"] < 0.9 * before["loss"]
    found = df.Session(model, devices=["cpu"]).run(X)["y"]
    np.testing.assert_allclose(np.mean(found.astype(np.float64) ** 2), after["loss"], rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_a_scaled_weight_is_made_when_it_is_needed(dtype):
    g = df.GraphBuilder()
    weight = W.astype(dtype)
    y = df.ops.conv(g.input("x", dtype, X.shape), g.parameter("w", weight), None, **WINDOW)
    scale, bias, mean, variance = (v.astype(dtype) for v in vectors(8))
    y = df.ops.batch_norm(y, *[g.constant(v) for v in (scale, bias, mean, variance)], epsilon=1e-3)
    g.output("y", y)
    graph = fold_affine(g.build(), {})
    (node,) = graph.nodes
    stored = graph.initializers[node.inputs[1]]
    assert np.shares_memory(stored.array, weight)
    factor = scale.astype(np.float64) / np.sqrt(variance.astype(np.float64) + 1e-3)
    made = data_of(stored)
    assert made.dtype == dtype
    assert not made.flags.writeable
    expected = weight.astype(np.float64) * factor.reshape(8, 1, 1, 1)
    np.testing.assert_allclose(made, expected, rtol=1.1 * np.finfo(dtype).eps, atol=0)
