"""Batch norm with fixed statistics goes into the weights of the convolution before it; gradients stay the same."""

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.autodiff import vjp_graph
from dataflow.passes.training.scaled_convs import scale_convs

RANDOM = np.random.default_rng(5)
WINDOW = {"strides": (1, 2), "pads": (1, 0, 0, 1), "dilations": (1, 1), "groups": 2}
SHAPES = {"w": (6, 2, 3, 3), "b": (6,), "scale": (6,), "bias": (6,), "mean": (6,), "variance": (6,)}
TRAINED = ("w", "b", "scale", "bias")


def graph_of(shift=True, kept=False, dtype=df.float32):
    """A convolution, a norm of it, and what reads that; perhaps something else that reads the convolution."""
    g = df.GraphBuilder()
    x = g.input("x", dtype, (2, 4, 6, 5))
    arrays = {name: RANDOM.uniform(0.5, 1.5, shape).astype(dtype.numpy) for name, shape in SHAPES.items()}
    w, b, *norm = (g.parameter(name, array) for name, array in arrays.items() if shift or name != "b")
    if not shift:
        norm = [b, *norm]
    y = df.ops.conv(x, w, b if shift else None, **WINDOW)
    g.output("y", df.ops.tanh(df.ops.batch_norm(y, *norm, epsilon=1e-2)))
    if kept:
        g.output("inner", y)
    return g.build()


def gradients(graph, feeds):
    """Results and gradients in the reference's arithmetic."""
    found = {value.name: value for value in (*graph.inputs, *graph.initializers)}
    wrt = [found[name] for name in ("x", *TRAINED) if name in found]
    session = df.Session(df.Model(vjp_graph(graph, wrt)), devices=["numpy"], fold=False, fuse=False)
    return session.run(feeds)


@pytest.mark.parametrize("shift", [True, False])
def test_the_weight_is_scaled_and_gradients_stay(shift):
    graph = graph_of(shift)
    scaled = scale_convs(graph, TRAINED)
    ops = [node.op.name for node in scaled.nodes]
    assert "batch_norm" not in ops
    assert ops.count("conv") == 1
    assert scaled.outputs.keys() == graph.outputs.keys()
    feeds = {"x": RANDOM.standard_normal((2, 4, 6, 5)).astype(np.float32)}
    feeds["grad.y"] = RANDOM.standard_normal(graph.outputs["y"].type.sizes).astype(np.float32)
    expected = gradients(graph, feeds)
    for name, array in gradients(scaled, feeds).items():
        np.testing.assert_allclose(array, expected[name], rtol=2e-5, atol=2e-5 * np.abs(expected[name]).max())


@pytest.mark.parametrize(
    ("made", "mutable"),
    [
        ({}, ("scale", "bias")),  # the weight's gradient would be computed for the scale alone
        ({}, (*TRAINED, "mean")),
        ({"kept": True}, TRAINED),
        ({"dtype": df.float64}, TRAINED),
    ],
)
def test_what_may_change_or_is_read_elsewhere_stays(made, mutable):
    graph = graph_of(**made)
    assert scale_convs(graph, mutable) is graph
