"""Networks of quantized convolutions, whose values have their channels last, against ONNX Runtime."""

import numpy as np
import pytest

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.importers.peer_weights import weights
from tests.importers.test_quantized import KINDS, Graph, both, integers, model, near, node, scales


class Network(Graph):
    """Values that are quantized: the name, the scale and the number of channels of each."""

    def __init__(self, random, pair, x):
        super().__init__(random, pair)
        self.channels = {"x": x.shape[1]}
        self.keep("x_s", scales(random)), self.keep("x_z", integers(random, pair[0]))

    def read(self, name):
        if any(f"{name}_f" in n.output for n in self.nodes):
            return f"{name}_f"
        return self.dequantized(name, self.stored[f"{name}_s"], self.stored[f"{name}_z"])

    def write(self, value, name, channels, scale):
        self.quantized(value, name, np.float32(scale))
        self.channels[name] = channels
        return name

    def conv(self, x, filters, kernel, group=1, relu=False, **given):
        name = f"conv{len(self.nodes)}"
        count = self.channels[x] // group
        shape = (filters, count, kernel, kernel)
        w, scale = self.weight(f"{name}_w", weights(self.random, self.pair[1], shape), 0)
        unit = self.stored[f"{x}_s"] * scale
        bias = self.keep(f"{name}_b", self.random.integers(-3000, 3000, filters).astype(np.int32))
        added = self.dequantized(bias, unit, np.zeros(filters, np.int32))
        self.nodes.append(node("Conv", [self.read(x), w, added], [f"{name}_y"], group=group, **given))
        y = f"{name}_y"
        if relu:
            self.nodes.append(node("Relu", [y], [f"{name}_r"]))
            y = f"{name}_r"
        return self.write(y, name, filters, unit.max() * 100 * np.sqrt(count * kernel**2))

    def join(self, operator, names, scale, channels, **given):
        name = f"{operator}{len(self.nodes)}"
        self.nodes.append(node(operator, [self.read(n) for n in names], [f"{name}_y"], **given))
        return self.write(f"{name}_y", name, channels, scale)


def copies(ran):
    return sum(op == "copy" for op in ran)


@pytest.mark.parametrize("pair", [(np.uint8, np.int8), (np.int8, np.int8), (np.uint8, np.uint8)], ids=str)
def test_what_lies_between_convolutions_has_channels_last(pair):
    random = np.random.default_rng(20)
    for channels, batch in ((3, 1), (8, 2)):
        x = integers(random, pair[0], (batch, channels, 13, 17))
        g = Network(random, pair, x)
        stem = g.conv("x", 24, 3, pads=[1, 0, 2, 1], strides=[2, 1], relu=True)
        window = {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}
        pooled = g.join("MaxPool", [stem], g.stored[f"{stem}_s"], 24, **window)
        apart = g.conv(pooled, 24, 3, group=24, pads=[1, 1, 1, 1], relu=True)
        deep = g.conv(apart, 24, 1)
        added = g.join("Add", [deep, pooled], g.stored[f"{deep}_s"] * 1.5, 24)
        g.nodes.append(node("GlobalAveragePool", [g.read(added)], ["gate"]))
        g.nodes.append(node("Sigmoid", ["gate"], ["weighed"]))
        g.nodes.append(node("Mul", [g.read(added), "weighed"], ["gated_y"]))
        gated = g.write("gated_y", "gated", 24, g.stored[f"{added}_s"] / 2)
        narrow = g.conv(gated, 37, 1, strides=[1, 2])
        dilated = g.conv(gated, 37, 3, dilations=[1, 2], pads=[1, 2, 1, 2], strides=[1, 2])
        joined = g.join("Concat", [narrow, dilated], max(g.stored[f"{n}_s"] for n in (narrow, dilated)), 74, axis=1)
        last = g.conv(joined, 18, 1)
        g.nodes.append(node("GlobalAveragePool", [g.read(last)], ["mean"]))
        g.write("mean", "y", 18, g.stored[f"{last}_s"] / 4)
        data = model(g.nodes, {"x": x}, g.stored, KINDS[np.dtype(pair[0])])
        expected, found, ran = both(data, {"x": x})
        assert near(found, expected, 0.1), np.abs(found.astype(int) - expected).max()
        assert copies(ran) == 1 and ran.count("conv_requantized") == 6  # x is planar


def test_planar_readers_get_planar_values():
    random = np.random.default_rng(21)
    x = integers(random, np.uint8, (2, 8, 9, 7))
    g = Network(random, (np.uint8, np.int8), x)
    between = g.conv(g.conv("x", 12, 1), 12, 3)
    grouped = g.conv(between, 12, 3, group=3, pads=[1, 1, 1, 1])  # no kernel has several groups with channels last
    g.nodes.append(node("Add", [g.read(between), g.read(grouped)], ["sum"]))
    g.nodes.append(node("Softmax", ["sum"], ["y"], axis=1))
    data = model(g.nodes, {"x": x}, g.stored, 1)
    expected, found, ran = both(data, {"x": x})
    assert np.mean(np.abs(found - expected) > 1e-5) < 0.1
    assert ran.count("conv_requantized") == 3 and copies(ran) == 2


def test_pinned_nodes_run_where_they_are_pinned():
    random = np.random.default_rng(22)
    x = integers(random, np.uint8, (1, 4, 6, 5))
    g = Network(random, (np.uint8, np.int8), x)
    y = g.conv(g.conv("x", 6, 1), 5, 3)
    g.nodes.append(node("DequantizeLinear", [y, f"{y}_s", f"{y}_z"], ["y"]))
    data = model(g.nodes, {"x": x}, g.stored, 1)
    names = [n.name for n in load_bytes(data).graph.nodes]
    for pin, devices in (dict.fromkeys(names, "numpy"), {"numpy"}), ({}, {"cpu"}):
        session = df.Session(load_bytes(data), devices=["cpu"], pin=pin)
        assert {p.device for p in session.placement({"x": x.shape}) if p.op == "conv_requantized"} == devices
