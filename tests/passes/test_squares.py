"""Squares as products: where the exponent is the constant 2 and nothing else changes."""

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.squares import multiply_squares
from tests.support import ops_of

ops = df.ops


def graph_of(shape, exponent, dtype=df.float32, parameter=False):
    g = df.GraphBuilder()
    x = g.input("x", dtype, shape)
    b = g.parameter("b", exponent) if parameter else g.constant(exponent)
    g.output("y", ops.pow(x, b))
    return g.build()


@pytest.mark.parametrize(
    ("shape", "exponent", "dtype"),
    [
        ((2, 3), np.float32(2), df.float32),
        ((2, 3), np.full((1, 1), 2, np.float32), df.float32),
        ((3,), np.float16(2), df.float16),
        ((), np.float64(2), df.float64),
    ],
)
def test_squares_are_products(shape, exponent, dtype):
    assert [node.op.name for node in multiply_squares(graph_of(shape, exponent, dtype)).nodes] == ["mul"]


@pytest.mark.parametrize(
    ("shape", "exponent", "dtype", "mutable"),
    [
        ((2, 3), np.float32(3), df.float32, ()),
        ((3,), np.full((1, 1), 2, np.float32), df.float32, ()),  # the result has another axis
        ((3,), np.full(3, 2, np.float32), df.float32, ()),
        ((3,), np.int32(2), df.int32, ()),  # overflow is the kernel's
        ((3,), np.float32(2), df.float32, ("b",)),
    ],
)
def test_what_is_no_square_stays(shape, exponent, dtype, mutable):
    graph = graph_of(shape, exponent, dtype, parameter=bool(mutable))
    assert multiply_squares(graph, mutable) is graph


def test_an_rms_norm_and_its_gradient_hold_no_power():
    """Against float64."""
    random = np.random.default_rng(0)
    x, w = random.standard_normal((4, 6)), random.standard_normal(6)
    g = df.GraphBuilder()
    value = g.input("x", df.float32, (4, 6))
    weight = g.parameter("w", w.astype(np.float32))
    mean = ops.reduce_mean(ops.pow(value, 2.0), axes=(-1,), keepdims=True)
    g.output("y", ops.mul(ops.mul(value, ops.reciprocal(ops.sqrt(ops.add(mean, 1e-6)))), weight))
    model = df.Model(g.build())
    assert "pow" not in ops_of(df.Session(model, devices=["cpu"]).plan())
    with df.Trainer(model, df.losses.output("y"), devices=["cpu"]) as trainer:
        trainer.forward({"x": x.astype(np.float32)})
        trainer.backward()
        found = trainer.gradients["w"]
        assert all("pow" not in ops_of(plan) for plan in trainer.programs.plans().values())
    expected = (x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)).sum(0)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
