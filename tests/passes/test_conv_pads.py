"""Zeros added before a convolution are among its own pads; other padding stays."""

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.conv_pads import pad_in_convs
from dataflow.passes.dead_code import eliminate_dead_code

RANDOM = np.random.default_rng(6)
X = RANDOM.standard_normal((2, 4, 5, 6)).astype(np.float32)

# pads of the added elements, their value, the mode, and whether they go
CASES = {
    "asymmetric": ((0, 0, 0, 1, 0, 0, 2, 3), None, "constant", True),
    "a stored zero": ((0, 0, 1, 1, 0, 0, 1, 1), -0.0, "constant", True),
    "another number": ((0, 0, 1, 1, 0, 0, 1, 1), 0.5, "constant", False),
    "the nearest": ((0, 0, 1, 1, 0, 0, 1, 1), None, "edge", False),
    "a crop": ((0, 0, 1, -1, 0, 0, 1, 1), None, "constant", False),
    "an image": ((1, 0, 0, 0, 0, 0, 0, 0), None, "constant", False),
    "channels": ((0, 0, 0, 0, 0, 4, 0, 0), None, "constant", False),
}


def graph_of(pads, value, mode, also_read=False):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, X.shape)
    channels = X.shape[1] + pads[1] + pads[5]
    w = g.parameter("w", RANDOM.standard_normal((6, channels // 2, 3, 2)).astype(np.float32))
    added = df.ops.pad(x, None if value is None else g.constant(np.float32(value)), pads=pads, mode=mode)
    g.output("y", df.ops.conv(added, w, None, strides=(2, 1), pads=(1, 0, 0, 1), dilations=(1, 1), groups=2))
    if also_read:
        g.output("added", added)
    return g.build()


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_stay(case):
    *padding, goes = CASES[case]
    graph = graph_of(*padding)
    kept = [node.op.name for node in eliminate_dead_code(pad_in_convs(graph)).nodes]
    assert kept == (["conv"] if goes else ["pad", "conv"])
    right = df.Session(graph, "numpy", fuse=False, fold=False).run({"x": X})["y"]
    np.testing.assert_allclose(df.Session(graph, "cpu").run({"x": X})["y"], right, rtol=1e-5, atol=1e-5)
    u = RANDOM.standard_normal(right.shape).astype(np.float32)
    found = df.vjp(df.Model(graph), {"x": X}, {"y": u}, devices=["numpy"])
    without = df.vjp(df.Model(pad_in_convs(graph)), {"x": X}, {"y": u}, devices=["cpu"])
    for name in ("x", "w"):
        np.testing.assert_allclose(without[name], found[name], rtol=1e-4, atol=1e-4)


def test_what_others_read_is_computed_too():
    graph = pad_in_convs(graph_of((0, 0, 1, 0, 0, 0, 0, 1), None, "constant", also_read=True))
    found = df.Session(graph, "cpu").run({"x": X})["added"]
    np.testing.assert_array_equal(found, np.pad(X, ((0, 0), (0, 0), (1, 0), (0, 1))))


def test_a_value_that_may_change_is_no_constant():
    graph = graph_of((0, 0, 1, 1, 0, 0, 1, 1), 0.0, "constant")
    names = [value.name for value in graph.initializers]
    assert pad_in_convs(graph, names) is graph
