"""Convolutions with channels last by the vendor's library, over a stand-in for it and on a card."""

from __future__ import annotations

import numpy as np
import pytest

import dataflow as df
from dataflow.passes import pipeline
from dataflow.plugin.registry import default_registry
from tests.cuda.test_products import vendor as vendor

DEVICES = ["cuda", "cpu"]
RANDOM = np.random.default_rng(31)


@pytest.fixture(params=["vendor", pytest.param("card", marks=pytest.mark.card)])
def library(request):
    """A registry whose device has the vendor's library."""
    return default_registry() if request.param == "card" else request.getfixturevalue("vendor")[0]


class Network:
    """A graph of convolutions with the norms behind them, whose statistics are fixed."""

    def __init__(self, *image):
        self.g = df.GraphBuilder()
        self.x = self.g.input("x", df.float32, image)

    def data(self, array, trained=True):
        name = f"p{len(self.g.initializers())}"
        array = np.asarray(array, np.float32)
        return self.g.parameter(name, array) if trained else self.g.constant(array, name)

    def conv(self, x, filters, kernel, stride=1):
        shape = (filters, x.type.shape[1], kernel, kernel)
        window = {"strides": (stride,) * 2, "pads": (kernel // 2,) * 4, "dilations": (1, 1), "groups": 1}
        y = df.ops.conv(x, self.data(RANDOM.uniform(-1, 1, shape) * np.sqrt(3 / np.prod(shape[1:]))), **window)
        ones = [self.data(RANDOM.uniform(0.5, 1.5, filters)), self.data(RANDOM.uniform(-1, 1, filters))]
        fixed = [self.data(RANDOM.uniform(low, 1.5, filters), trained=False) for low in (-1, 0.5)]
        return df.ops.batch_norm(y, *ones, *fixed, epsilon=1e-5)


def residual():
    """What a residual network has: a stem, a pool, a block with a convolution beside it, one without, a mean."""
    net, relu = Network(3, 3, 20, 18), df.ops.relu
    stem = relu(net.conv(net.x, 16, 5, 2))
    x = df.ops.max_pool(stem, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))
    x = relu(df.ops.add(net.conv(relu(net.conv(relu(net.conv(x, 8, 1)), 8, 3, 2)), 32, 1), net.conv(x, 32, 1, 2)))
    x = relu(df.ops.add(net.conv(relu(net.conv(x, 16, 3)), 32, 3), x))
    mean = df.ops.reduce_mean(x, axes=(2, 3), keepdims=False)
    logits = df.ops.add(df.ops.matmul(mean, net.data(RANDOM.uniform(-1, 1, (32, 7)))), net.data(np.zeros(7)))
    net.g.output("logits", logits)
    return net.g.build()


def train(graph, batch, registry, devices, **options):
    """Losses of three steps, gradients of one before, and the kernels of the plans."""
    with df.Trainer(
        df.Model(graph), loss="cross_entropy", optimizer=df.optim.SGD(lr=1e-3), metrics=[], devices=devices,
        registry=registry, **options,
    ) as trainer:  # fmt: skip
        trainer.forward(batch)
        trainer.backward()
        gradients = {name: np.array(g) for name, g in trainer.programs.gradients().items()}
        trainer.update()
        losses = [trainer.step(batch) for _ in range(3)]
        steps = [s for plan in trainer.programs.plans().values() for i in plan.segments for s in i.steps]
    return losses, gradients, [s.kernel.name for s in steps if s.kernel is not None]


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_a_network_trains_with_channels_last(precision, library, monkeypatch):
    graph = residual()
    batch = {"x": RANDOM.standard_normal((3, 3, 20, 18)).astype(np.float32), "labels": np.array([1, 6, 0])}
    losses, gradients, kernels = train(graph, batch, library, DEVICES, precision=precision)
    count = {op: sum(k.startswith(f"{op} f32") for k in kernels) for op in ("conv_last", "conv_last_grad_weight")}
    assert count == {"conv_last": 14, "conv_last_grad_weight": 14}  # of a step, and of its programs apart
    assert all(any(k.startswith(f"{op} f32 {by}") for k in kernels) for op in count for by in ("cudnn", "cuda"))
    assert not [k for k in kernels if k.startswith(("conv f", "conv_relu", "conv_add_relu", "conv_grad"))]
    assert sum(k.startswith("fused_elementwise_sums") for k in kernels) >= 10  # sums over positions
    assert sum(k.startswith("copy") for k in kernels) <= 4  # the image, and a seed

    exact = train(graph, batch, None, ["cpu"])
    monkeypatch.setattr(pipeline, "put_convs_last", lambda graph, targets: graph)
    planar = train(graph, batch, library, DEVICES, precision=precision)
    assert not [k for k in planar[2] if k.startswith("conv_last")]
    np.testing.assert_allclose(losses, exact[0], rtol={"tf32": 5e-3, "bf16": 2e-2}[precision])
    error, allowed = 0.0, 0.0
    for name, array in exact[1].items():
        size = np.linalg.norm(array)
        error = max(error, np.linalg.norm(gradients[name].reshape(array.shape) - array) / size)
        allowed = max(allowed, np.linalg.norm(planar[1][name].reshape(array.shape) - array) / size)
    assert error < max(2 * allowed, 1e-3)


def test_exact_products_keep_their_planes(library):
    batch = {"x": RANDOM.standard_normal((3, 3, 20, 18)).astype(np.float32), "labels": np.array([1, 6, 0])}
    *_, kernels = train(residual(), batch, library, DEVICES)
    assert not [k for k in kernels if k.startswith("conv_last")]


@pytest.mark.parametrize("channels", [6, 12])  # by a kernel of our own, by the library
@pytest.mark.parametrize("end", ["nothing", "bias", "relu", "addend", "all", "addend and relu alone"])
def test_ends_of_convolutions(end, channels, library):
    """Behind a bias the library computes the rest, else we do; what is no number stays none."""
    g = df.GraphBuilder()
    shapes = {"x": (2, 9, 8, channels), "w": (12, 3, 3, channels), "bias": (12,), "addend": (2, 9, 8, 12)}
    has = {"bias": end in ("bias", "relu", "addend", "all"), "addend": "addend" in end or end == "all"}
    feeds = {k: RANDOM.uniform(-1, 1, s).astype(np.float32) for k, s in shapes.items() if has.get(k, True)}
    values = {k: g.input(k, df.float32, array.shape) for k, array in feeds.items()}
    relu = end in ("relu", "all") or end.endswith("alone")
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1, "relu": relu}
    g.output("y", df.ops.conv_last(values["x"], values["w"], values.get("bias"), values.get("addend"), **window))
    graph = g.build()
    feeds["x"][1, 4, 4, 2] = np.nan
    expected = df.Session(df.Model(graph), devices=["numpy"]).run(feeds)["y"]
    session = df.Session(df.Model(graph), devices=["cuda"], registry=library, precision="tf32", fuse=False)
    for _ in range(3):
        found = session.run(feeds)["y"]
        np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
        np.testing.assert_allclose(found, expected, atol=5e-3)


WINDOWS = {
    "square": ((7, 6), (3, 3), {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}),
    "point": ((5, 4), (1, 1), {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}),
    "far taps": ((9, 11), (2, 3), {"strides": (2, 3), "pads": (2, 0, 1, 3), "dilations": (3, 2)}),
    "line": ((300,), (5,), {"strides": (2,), "pads": (1, 3), "dilations": (1,)}),
    "volume": ((3, 4, 5), (2, 2, 2), {"strides": (1, 2, 1), "pads": (1, 0, 1, 0, 1, 0), "dilations": (1, 1, 2)}),
}


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("window", list(WINDOWS))
def test_few_channels(window, channels, library):
    """Sums of few products are exact float32 at each precision."""
    image, kernel, attributes = WINDOWS[window]
    attributes = {**attributes, "groups": 1}
    filters = int(RANDOM.choice([1, 4, 8, 13, 32]))
    x = RANDOM.standard_normal((2, *image, channels)).astype(np.float32)
    w = RANDOM.standard_normal((filters, *kernel, channels)).astype(np.float32)
    g = df.GraphBuilder()
    of_x, of_w = g.input("x", df.float32, x.shape), g.input("w", df.float32, w.shape)
    y = df.ops.conv_last(of_x, of_w, None, None, **attributes, relu=False)
    g.output("y", y)
    dy = g.input("dy", df.float32, y.type.shape)
    made = df.ops.conv_last_grad_weight(of_x, dy, weight_shape=w.shape, **attributes)
    g.output("dw", made)
    model = df.Model(g.build())
    feeds = {"x": x, "w": w, "dy": RANDOM.standard_normal(y.type.sizes).astype(np.float32)}
    session = df.Session(model, devices=["cuda"], registry=library, precision="tf32", fuse=False)
    assert {step.kernel.name for step in session.plan(feeds).segments[0].steps} == {
        "conv_last f32 cuda", "conv_last_grad_weight f32 cuda"
    }  # fmt: skip
    expected = df.Session(model, devices=["numpy"]).run(feeds)
    for name, found in session.run(feeds).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-4)


def gray():
    """Images of one channel, two convolutions with a pool between."""
    net, relu = Network(3, 1, 14, 12), df.ops.relu
    x = df.ops.max_pool(relu(net.conv(net.x, 8, 3)), kernel=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1))
    mean = df.ops.reduce_mean(relu(net.conv(x, 16, 3)), axes=(2, 3), keepdims=False)
    net.g.output("logits", df.ops.matmul(mean, net.data(RANDOM.uniform(-1, 1, (16, 7)))))
    return net.g.build()


def test_images_of_one_channel_are_read_by_kernels_of_our_own(library):
    graph = gray()
    batch = {"x": RANDOM.uniform(-1, 1, (3, 1, 14, 12)).astype(np.float32), "labels": RANDOM.integers(0, 7, 3)}
    losses, gradients, names = train(graph, batch, library, DEVICES, precision="tf32")
    exact_losses, exact, _ = train(graph, batch, library, ["cpu"])
    assert {"conv_last f32 cuda", "conv_last_grad_weight f32 cuda"} <= set(names)
    assert not any(name.startswith(("conv ", "conv_grad_weight")) for name in names)  # none in planes
    np.testing.assert_allclose(losses, exact_losses, rtol=5e-3)
    for name, gradient in gradients.items():
        assert np.linalg.norm(gradient - exact[name]) < 2e-2 * np.linalg.norm(exact[name])
