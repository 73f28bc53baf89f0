"""Between convolutions channels lie last, forward and backward; results and gradients stay what they are."""

import numpy as np
import pytest

import dataflow as df
from dataflow.lower.placement import Pins, targets_of
from dataflow.ops.conv import conv_last, conv_last_grad_input, conv_last_grad_weight
from dataflow.passes.autodiff import vjp_graph
from dataflow.passes.fuse import fuse
from dataflow.passes.layout.convolutions import put_convs_last
from dataflow.plugin.registry import default_registry

RANDOM = np.random.default_rng(11)
REGISTRY = default_registry()
TARGETS = targets_of(Pins(("numpy",)), REGISTRY)


class Network:
    """A graph whose parameters get names and random data."""

    def __init__(self, image):
        self.g = df.GraphBuilder()
        self.x = self.g.input("x", df.float32, image)

    def parameter(self, *shape):
        array = RANDOM.uniform(-1.0, 1.0, shape) / np.sqrt(np.prod(shape[1:]))
        return self.g.parameter(f"p{len(self.g.initializers())}", array.astype(np.float32))

    def conv(self, x, filters, kernel, stride=1, pads=None, groups=1):
        n = x.type.rank - 2
        window = {"strides": (stride,) * n, "pads": pads or (kernel // 2,) * 2 * n, "dilations": (1,) * n}
        weight = self.parameter(filters, x.type.shape[1] // groups, *(kernel,) * n)
        return df.ops.conv(x, weight, self.parameter(filters), groups=groups, **window)


def pool(op, x, **given):
    n = x.type.rank - 2
    window = {"kernel": (3,) * n, "strides": (2,) * n, "pads": (1,) * 2 * n, "dilations": (1,) * n, **given}
    y = op(x, **window)
    return y[0] if isinstance(y, tuple) else y


def residual(image=(2, 3, 13, 14), filters=16, average=False):
    """A stem, a pool, a block with a convolution beside it, a mean and a product."""
    net = Network(image)
    relu, n = df.ops.relu, len(image) - 2
    stem = relu(net.conv(net.x, filters, 5, 2))
    pooled = pool(df.ops.avg_pool, stem) if average else pool(df.ops.max_pool, stem)
    inner = relu(net.conv(relu(net.conv(pooled, filters, 1)), filters, 3, 2))
    block = relu(df.ops.add(net.conv(inner, 2 * filters, 1), net.conv(pooled, 2 * filters, 1, 2)))
    scaled = df.ops.mul(block, net.parameter(1, 2 * filters, *[1] * n))
    both = df.ops.concat(block, scaled, axis=1)
    last = relu(net.conv(both, 24, 3))
    mean = df.ops.reduce_mean(last, axes=tuple(range(2, n + 2)), keepdims=True)
    flat = df.ops.reshape(mean, shape=(image[0], 24))
    net.g.output("y", df.ops.matmul(flat, net.parameter(24, 5)))
    return net.g.build()


def with_gradients(graph):
    """Results and gradients by all parameters and the input, convolutions fused with what follows them."""
    graph = vjp_graph(graph, [*graph.inputs, *graph.initializers])
    return fuse(graph, TARGETS, REGISTRY.ops.values(), [v.name for v in graph.initializers])


def run(graph, feeds):
    return df.Session(df.Model(graph), devices=["numpy"], fold=False, fuse=False).run(feeds)


def agree(graph, made):
    feeds = {v.name: RANDOM.standard_normal(v.type.sizes).astype(np.float32) for v in graph.inputs}
    expected, found = run(graph, feeds), run(made, feeds)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=2e-5 * np.abs(array).max())


def count(graph, *ops):
    return sum(node.op in ops for node in graph.nodes)


@pytest.mark.parametrize("average", [False, True])
def test_a_residual_network_is_transposed_at_its_borders(average):
    graph = with_gradients(residual(average=average))
    made = put_convs_last(graph, TARGETS)
    agree(graph, made)
    convs = df.ops.conv, df.ops.conv_relu, df.ops.conv_add_relu, df.ops.conv_grad_input, df.ops.conv_grad_weight
    assert count(made, *convs) == 0
    assert count(made, conv_last) == 6
    assert count(made, conv_last_grad_input) == count(made, conv_last_grad_weight) == 6
    # The images and their gradient, but nothing that lies between convolutions.
    moved = {n.outputs[0].type.shape for n in made.nodes if n.op is df.ops.transpose}
    assert {shape for shape in moved if len(shape) == 4 and shape[0] == 2} == {(2, 13, 14, 3), (2, 3, 13, 14)}


@pytest.mark.parametrize("image", [(2, 4, 21), (1, 2, 7, 6, 9)])
def test_other_numbers_of_axes(image):
    net = Network(image)
    y = net.conv(df.ops.relu(net.conv(net.x, 8, 3)), 8, 3)
    net.g.output("y", df.ops.relu(df.ops.add(y, y)))
    graph = with_gradients(net.g.build())
    made = put_convs_last(graph, TARGETS)
    assert count(made, conv_last) == 2
    agree(graph, made)


def test_the_gradient_of_maxima_may_be_planar():
    net = Network((2, 4, 9, 8))
    pooled = pool(df.ops.max_pool, df.ops.relu(net.conv(df.ops.relu(net.conv(net.x, 8, 3)), 8, 3)))
    net.g.output("y", df.ops.matmul(df.ops.reshape(pooled, shape=(2, 160)), net.parameter(160, 3)))
    graph = with_gradients(net.g.build())
    made = put_convs_last(graph, TARGETS)
    assert count(made, conv_last) == 2
    agree(graph, made)


def test_maxima_whose_indices_are_read_elsewhere_are_planar():
    net = Network((2, 4, 9, 8))
    inner = net.x
    for _ in range(3):
        inner = df.ops.relu(net.conv(inner, 16, 3))
    window = {"kernel": (2, 2), "strides": (2, 2), "pads": (0,) * 4, "dilations": (1, 1)}
    largest, indices = net.g.add(df.ops.max_pool, [inner], window).outputs
    net.g.output("y", df.ops.relu(net.conv(largest, 8, 3)))
    net.g.output("indices", indices)
    graph = with_gradients(net.g.build())
    made = put_convs_last(graph, TARGETS)
    assert count(made, conv_last) == 4
    agree(graph, made)


def test_where_transposes_cost_more_all_stays():
    net = Network((2, 8, 16, 16))
    y = net.x
    for _ in range(3):
        y = df.ops.softmax(net.conv(y, 8, 1), axis=1)  # planes are normalized, and a convolution of single elements
    net.g.output("y", y)
    graph = with_gradients(net.g.build())
    assert put_convs_last(graph, TARGETS) is graph


def test_pinned_convolutions_stay():
    graph = with_gradients(residual())
    pins = Pins(("numpy",), {node.name: "numpy" for node in graph.nodes if node.op.name.startswith("conv")})
    assert put_convs_last(graph, targets_of(pins, REGISTRY)) is graph
