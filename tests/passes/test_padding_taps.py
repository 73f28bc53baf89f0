"""Taps of a convolution that read padding alone are dropped; what is computed stays."""

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.padding_taps import drop_padding_taps

RANDOM = np.random.default_rng(5)

# size of the plane, kernel, strides, pads, dilations, and the kernel that is left
CASES = {
    "all but the middle": ((6, 6), (3, 3), (1, 1), (12, 12, 12, 12), (12, 12), (1, 1)),
    "one axis": ((6, 20), (3, 3), (1, 1), (8, 8, 8, 8), (8, 8), (1, 3)),
    "none": ((6, 6), (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), (3, 3)),
    "the last element is read": ((6, 6), (3, 3), (1, 1), (5, 5, 5, 5), (5, 5), (3, 3)),
    "the first taps": ((4, 5), (4, 1), (1, 1), (9, 0, 0, 0), (3, 1), (2, 1)),
    "the last taps": ((4, 5), (4, 1), (1, 1), (0, 0, 9, 0), (3, 1), (2, 1)),
    "strides": ((7, 7), (5, 3), (3, 2), (14, 6, 14, 6), (7, 6), (1, 3)),
    "padding that is no multiple": ((4, 4), (3, 3), (1, 1), (7, 7, 9, 9), (8, 8), (2, 2)),
    "nothing is read": ((2, 2), (1, 1), (9, 9), (1, 1, 0, 0), (1, 1), (1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_results_and_gradients_stay(case):
    plane, kernel, strides, pads, dilations, left = CASES[case]
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, 4, *plane))
    w = g.parameter("w", RANDOM.standard_normal((6, 2, *kernel)).astype(np.float32))
    b = g.parameter("b", RANDOM.standard_normal(6).astype(np.float32))
    y = df.ops.conv(x, w, b, strides=strides, pads=pads, dilations=dilations, groups=2)
    g.output("y", y)
    graph = g.build()
    (node,) = [n for n in drop_padding_taps(graph).nodes if n.op.name == "conv"]
    assert node.inputs[1].type.sizes[2:] == left
    feeds = {"x": RANDOM.standard_normal((2, 4, *plane)).astype(np.float32)}
    right = df.Session(graph, "numpy", fuse=False, fold=False).run(feeds)["y"]
    np.testing.assert_allclose(df.Session(graph, "cpu").run(feeds)["y"], right, rtol=1e-5, atol=1e-5)
    u = RANDOM.standard_normal(y.type.sizes).astype(np.float32)
    found = df.vjp(df.Model(graph), feeds, {"y": u}, devices=["cpu"])
    reduced = df.vjp(df.Model(drop_padding_taps(graph)), feeds, {"y": u}, devices=["cpu"])
    for name in ("x", "w", "b"):
        np.testing.assert_allclose(reduced[name], found[name], rtol=1e-4, atol=1e-4)


def test_a_training_step_computes_gradients_of_the_small_kernel():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 4, 6, 6))
    w = g.parameter("w", RANDOM.standard_normal((4, 4, 3, 3)).astype(np.float32))
    g.output("y", df.ops.conv(x, w, None, strides=(1, 1), pads=(9,) * 4, dilations=(9, 9), groups=1))
    batch = {key: RANDOM.standard_normal((3, 4, 6, 6)).astype(np.float32) for key in ("x", "labels")}
    with df.Trainer(df.Model(g.build()), "mse", devices="cpu") as trainer:
        trainer.forward(batch)
        trainer.backward()
        gradient = trainer.gradients["w"]
        (plan,) = [p for name, p in trainer.programs.plans().items() if name.startswith("joint")]
    steps = [step.node for segment in plan.segments for step in segment.steps]
    assert all(n.inputs[1].type.sizes[2:] == (1, 1) for n in steps if n.op.name == "conv")
    assert np.count_nonzero(gradient) == np.count_nonzero(gradient[:, :, 1, 1]) == 16


# size of the input, channels, kernel, strides, pads, dilations, groups, and whether it is a product
TRANSPOSED = {
    "a map of one position": ((1, 1), (4, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1, True),
    "strides don't count": ((1, 1), (2, 2), (2, 2), (0, 0, 0, 0), (1, 1), 1, True),
    "one axis": ((1,), (5,), (1,), (0, 0), (1,), 1, True),
    "a single tap": ((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1, False),
    "padding takes some taps off": ((1, 1), (4, 4), (1, 1), (1, 1, 1, 1), (1, 1), 1, False),
    "dilations": ((1, 1), (3, 3), (1, 1), (0, 0, 0, 0), (2, 2), 1, False),
    "groups": ((1, 1), (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 2, False),
    "two positions": ((2, 1), (3, 3), (1, 1), (0, 0, 0, 0), (1, 1), 1, False),
}


@pytest.mark.parametrize("case", TRANSPOSED)
@pytest.mark.parametrize("batch", [2, 7])
def test_transposed_convolutions_of_one_position_are_products(case, batch):
    plane, kernel, strides, pads, dilations, groups, product = TRANSPOSED[case]
    rank = len(plane)
    axes = zip(plane, kernel, strides, pads[:rank], pads[rank:], dilations, strict=True)
    sizes = [(n - 1) * stride + (k - 1) * gap + 1 - before - after for n, k, stride, before, after, gap in axes]
    window = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (batch, 6, *plane))
    w = g.parameter("w", RANDOM.standard_normal((6, 5, *kernel)).astype(np.float32))
    y = df.ops.conv_grad_input(x, w, input_shape=(batch, 5 * groups, *sizes), **window)
    g.output(
        "y",
        df.ops.relu(
            df.ops.add(y, g.parameter("b", RANDOM.standard_normal((1, 5 * groups, *(1,) * rank)).astype(np.float32)))
        ),
    )
    graph = g.build()
    assert [n.op.name for n in drop_padding_taps(graph).nodes].count("matmul") == product
    feeds = {"x": RANDOM.standard_normal((batch, 6, *plane)).astype(np.float32)}
    right = df.Session(graph, "numpy", fuse=False, fold=False).run(feeds)["y"]
    np.testing.assert_allclose(df.Session(graph, "cpu").run(feeds)["y"], right, rtol=1e-5, atol=1e-5)
    u = RANDOM.standard_normal(right.shape).astype(np.float32)
    found = df.vjp(df.Model(graph), feeds, {"y": u}, devices=["cpu"])
    expected = df.vjp(df.Model(graph), feeds, {"y": u}, devices=["numpy"])
    for name in ("x", "w", "b"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-4)
