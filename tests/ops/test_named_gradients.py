"""Gradients of graphs with named sizes: those of the same graphs with numbers, or an error that names the node."""

import numpy as np
import pytest

import dataflow as df
from dataflow import ops

B, C, H, W, L = (df.Dim(name) for name in "BCHWL")
SIZES = [{"B": 2, "C": 3, "H": 5, "W": 6}, {"B": 1, "C": 2, "H": 7, "W": 4}, {"B": 3, "C": 1, "H": 4, "W": 9}]
BORDER = (0, 0, 2, 1, 0, 0, 1, 3)
CROPPED = (0, 0, -1, 3, 0, 0, 2, -2)
WINDOW = {"kernel": (2, 3), "strides": (2, 1), "pads": (1, 0, 0, 2), "dilations": (1, 2)}


def image(x, B, C, H, W):
    """Of windows that are x with each of six factors."""
    rows = ops.reshape(x, shape=(B, C, 1, H * W))
    taps = ops.reshape(ops.concat(*(rows * tap for tap in range(6)), axis=2), shape=(B, C * 6, H * W))
    return ops.col2im(taps, image=(H * 2, W + 2), **WINDOW)


CASES = {
    **{
        f"{mode} {pads}": (("B", "C", "H", "W"), lambda x, mode=mode, pads=pads, **_: ops.pad(x, pads=pads, mode=mode))
        for mode in ("reflect", "edge", "wrap")
        for pads in (BORDER, CROPPED)
        if mode != "reflect" or pads is BORDER
    },
    "reflect, cropped": (("B", "H", "W"), lambda x, **_: ops.pad(x, pads=(0, -1, 1, 0, 1, -2), mode="reflect")),
    "col2im": (("B", "C", "H", "W"), image),
    "col2im, named samples": (
        ("B", 12, 5 * 6),
        lambda x, **_: ops.col2im(x, image=(6, 7), kernel=(2, 2), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1)),
    ),
    "resize, named samples": (("B", "C", 5, 4), lambda x, B, C, **_: ops.resize(x, sizes=(B, C, 8, 3), mode="linear")),
}


def gradient(shape, function, names):
    g = df.GraphBuilder()
    y = function(g.input("x", df.float32, shape), **names)
    g.output("y", y)
    g.output("l", (ops.sin(y) * 2).sum())
    return df.value_and_grad(g.build(), "x", of="l")


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_the_gradient_with_names_is_that_with_numbers(name, device):
    shape, function = CASES[name]
    session = df.Session(gradient(shape, function, {"B": B, "C": C, "H": H, "W": W}), devices=[device])
    for sizes in SIZES:
        bound = df.TensorType(df.float32, tuple(df.Dim(n) if isinstance(n, str) else n for n in shape)).bind(sizes)
        x = np.random.default_rng(1).standard_normal(bound.shape).astype(np.float32)
        expected = df.Session(gradient(bound.shape, function, sizes), devices=[device]).run({"x": x})
        found = session.run({"x": x})
        for key, array in expected.items():
            np.testing.assert_allclose(found[key], array, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("mode", ["reflect", "edge", "wrap"])
def test_elements_that_a_pad_repeats_are_counted(mode):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("L",))
    g.output("l", ops.pad(x, pads=(2, 1), mode=mode).sum())
    session = df.Session(df.value_and_grad(g.build(), "x"))
    for size in (3, 4, 6):
        expected = np.bincount(np.pad(np.arange(size), (2, 1), mode=mode), minlength=size)
        np.testing.assert_array_equal(session.run({"x": np.ones(size, np.float32)})["grad.x"], expected)


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: ops.resize(x, sizes=(1, 1, 8, 8), mode="linear"), r"^resize 'resize'.*names: .*axis 2.*from H to 8"),
        (lambda x: ops.resize(x, sizes=(1, 1, H * 2, W)), r"^resize 'resize'.*axis 2 is resized from H to 2\*H"),
        (
            lambda x: ops.pad(x, pads=(0, 0, H - 1, 0, 0, 0, 0, 0), mode="edge"),
            r"^pad 'pad'.*named sizes -1 \+ H and 0",
        ),
    ],
    ids=["fixed", "twice", "pads"],
)
def test_what_has_no_gradient_with_names_says_which_node_and_has_one_with_numbers(function, text):
    g = df.GraphBuilder()
    g.output("l", function(g.input("x", df.float32, (1, 1, "H", "W"))).sum())
    graph = g.build()
    with pytest.raises(df.GradientError, match=text + r".*df\.vjp or df\.Trainer"):
        df.value_and_grad(graph)
    found = df.vjp(df.Model(graph), {"x": np.ones((1, 1, 3, 4), np.float32)})["x"]
    assert found.sum() == pytest.approx(df.Model(graph)(np.ones((1, 1, 3, 4), np.float32))["l"].item())
