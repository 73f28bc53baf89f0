"""The cpu device's kernels for inference, on every instruction set: convolution with constant weights, products with
few rows, pooling by rows; each against float64 arithmetic."""

from functools import partial

import numpy as np
import pytest

import dataflow as df
from tests import support
from tests.support import again_on, graph_of

RANDOM = np.random.default_rng(11)


normal = partial(support.normal, RANDOM)


def run(build, *inputs):
    """The result of a graph and its plan; ``build`` makes it from the inputs' values and its own constants."""
    graph, feeds = graph_of(build, *inputs)
    session = df.Session(df.Model(graph), devices=["cpu"], threads=2)
    return session.run(feeds)["y"], session.plan()


def near(found, exact, terms):
    """Within a few units of the last place, scaled by what a sum of ``terms`` products of normal numbers is."""
    assert found.shape == exact.shape
    assert np.abs(found - exact).max() <= 4e-6 * np.sqrt(terms) * (1 + np.log2(max(terms, 2)))


def convolved(x, w, bias, strides, pads, dilations, groups):
    x, w = x.astype(np.float64), w.astype(np.float64)
    spatial = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:spatial], pads[spatial:], strict=True)])
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, w.shape[2:], strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(2, x.ndim)))
    steps = tuple(slice(None, None, s) for s in strides)
    windows = windows[(slice(None), slice(None), *steps, *(slice(None, None, d) for d in dilations))]
    n, c = x.shape[:2]
    windows = windows.reshape(n, groups, c // groups, *windows.shape[2:])
    w = w.reshape(groups, -1, *w.shape[1:])
    summed = ((1, *range(2 + spatial, 2 + 2 * spatial)), tuple(range(1, 2 + spatial)))
    # Products of matrices: einsum's own loops took two thirds of the time of this file.
    y = np.stack([np.tensordot(windows[:, group], w[group], summed) for group in range(groups)], 1)
    y = np.moveaxis(y, -1, 2)
    return y.reshape(n, -1, *y.shape[3:]) + bias.reshape(-1, *[1] * spatial)


def reference(dy, w, shape, strides, pads, dilations, groups):
    """The input gradient: every element of dy, times the weights, added to where its window lies."""
    spatial = len(shape) - 2
    n, g, c = shape[0], groups, shape[1] // groups
    padded = np.zeros((n, g, c, *(s + pads[i] + pads[i + spatial] for i, s in enumerate(shape[2:]))))
    dy = dy.astype(np.float64).reshape(n, g, -1, *dy.shape[2:])
    w = w.astype(np.float64).reshape(g, -1, *w.shape[1:]).swapaxes(1, 2)
    rows = dy.reshape(*dy.shape[:3], -1)
    for tap in np.ndindex(*w.shape[3:]):
        at = tuple(
            slice(t * d, t * d + s * (o - 1) + 1, s)
            for t, d, s, o in zip(tap, dilations, strides, dy.shape[3:], strict=True)
        )
        padded[(..., *at)] += (w[(..., *tap)] @ rows).reshape(n, g, c, *dy.shape[3:])
    inside = tuple(slice(pads[i], pads[i] + s) for i, s in enumerate(shape[2:]))
    return padded[(..., *inside)].reshape(shape)


def added(x, w, bias, z, window):
    """A convolution onto what was computed before and may be overwritten."""
    z = df.ops.tanh(z)
    return df.ops.relu(df.ops.add(df.ops.conv(x, w, bias, **window), z))


CONVOLUTIONS = [  # channels, filters, size, kernel, strides, pads, dilations, groups
    (3, 64, (20, 23), (7, 7), (2, 2), (3, 3, 3, 3), (1, 1), 1),
    (64, 48, (14, 14), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (70, 33, (7, 7), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    (100, 17, (7, 7), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),  # more than one block of k
    (15, 40, (28, 29), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    (5, 3, (56, 57), (3, 3), (1, 1), (0, 1, 2, 0), (1, 1), 1),
    (8, 16, (13, 11), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    (8, 16, (13, 11), (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    (8, 20, (15, 16), (3, 2), (1, 3), (2, 0, 1, 1), (2, 1), 1),
    (12, 24, (9, 10), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 4),
    (12, 12, (9, 40), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 12),
    (12, 24, (19, 10), (5, 3), (2, 1), (2, 0, 1, 1), (1, 2), 12),
    (6, 10, (50,), (5,), (1,), (2, 2), (1,), 2),
    (4, 9, (5, 6, 7), (3, 1, 2), (1, 2, 1), (1, 0, 0, 1, 1, 1), (1, 1, 2), 1),
    (2, 5, (3, 3), (3, 3), (1, 1), (2, 2, 2, 2), (1, 1), 1),
    (20, 40, (29, 28), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 2),  # a product of matrices
    (16, 40, (28, 29), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),  # squares of outputs
    (17, 33, (60, 23), (3, 3), (1, 1), (0, 1, 2, 0), (1, 1), 1),
    (40, 70, (24, 57), (3, 3), (1, 1), (2, 2, 2, 2), (1, 1), 1),
    (70, 18, (21, 26), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),  # with a workspace
    (130, 200, (22, 30), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    (64, 70, (13, 14), (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),  # smaller squares
    (130, 96, (14, 15), (3, 3), (1, 1), (0, 1, 2, 0), (1, 1), 1),
    (40, 33, (7, 50), (3, 3), (1, 1), (2, 2, 2, 2), (1, 1), 1),
    (400, 31, (28, 28), (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (4, 9, (21, 21), (1, 1), (2, 2), (10, 10, 10, 10), (1, 1), 1),  # as many outputs as inputs, but other ones
    (3, 5, (1, 3, 140), (1, 1, 1), (1, 1, 1), (0, 0, 0, 0, 0, 0), (1, 1, 1), 1),
    (6, 38, (3, 5), (3, 5), (2, 2), (0, 0, 0, 0), (1, 1), 2),  # the only window is the source
    (7, 20, (2, 3, 4), (2, 3, 4), (1, 1, 1), (0, 0, 0, 1, 0, 0), (1, 1, 1), 1),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("constant", [True, False])
def test_convolution(case, batch, constant):
    channels, filters, size, kernel, strides, pads, dilations, groups = case
    x, w = normal(batch, channels, *size), normal(filters, channels // groups, *kernel)
    bias = normal(filters)
    window = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    exact = convolved(x, w, bias, *window.values())
    terms = w[0].size
    z = normal(*exact.shape)
    if constant:
        found, plan = run(lambda g, x: df.ops.conv(x, g.parameter("w", w), g.constant(bias), **window), x)
        if filters // groups > 16:  # a vector of filters; fewer are read as they are
            assert plan.memory["prepacks"] >= w.nbytes
        if channels <= 64:
            assert plan.lower_bound_bytes <= 2 << 20  # what two threads have room for in their second caches
        near(found, exact, terms)
        found, _ = run(lambda g, x: df.ops.relu(df.ops.conv(x, g.parameter("w", w), g.constant(bias), **window)), x)
        near(found, np.maximum(exact, 0), terms)
        found, plan = run(lambda g, x, z: added(x, g.parameter("w", w), g.constant(bias), z, window), x, z)
    else:
        found, plan = run(lambda g, x, w, b: df.ops.conv(x, w, b, **window), x, w, bias)
        assert "prepacks" not in plan.memory
        near(found, exact, terms)
        found, plan = run(lambda g, x, w, b, z: added(x, w, b, z, window), x, w, bias, z)
    assert [step.node.op.name for step in plan.segments[0].steps] == ["tanh", "conv_add_relu"]
    near(found, np.maximum(exact + np.tanh(z.astype(np.float64)), 0), terms)


STRIDED = [  # the same; the channels are what the gradient's sums have as filters
    (40, 20, (17, 18), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    (40, 20, (4, 3), (4, 3), (2, 2), (0, 0, 0, 0), (1, 1), 2),  # the only window is the source
    (34, 40, (15, 14), (1, 1), (2, 2), (0, 0, 0, 0), (1, 1), 1),
    (20, 24, (9, 40), (1, 1), (1, 2), (1, 1, 1, 1), (1, 1), 1),  # padded beyond the kernel's reach
    (64, 18, (11, 12), (4, 4), (2, 2), (1, 1, 1, 1), (1, 1), 1),
    (33, 17, (20, 23), (5, 4), (3, 2), (2, 1, 0, 2), (1, 3), 1),
    (36, 68, (12, 30), (6, 6), (2, 2), (2, 2, 2, 2), (1, 1), 1),  # a phase has 3 x 3 taps
    (48, 40, (9, 10), (3, 2), (1, 2), (1, 0, 1, 1), (2, 2), 2),
    (18, 20, (9, 8), (4, 4), (4, 4), (0, 0, 0, 0), (1, 1), 1),
    (20, 18, (41,), (5,), (2,), (2, 1), (1,), 1),
    (24, 18, (5, 6, 7), (3, 2, 3), (2, 1, 2), (1, 0, 0, 1, 1, 1), (1, 1, 1), 1),
    (24, 5, (110, 120), (2, 3), (2, 2), (0, 1, 0, 1), (1, 1), 1),  # some images at a time
]


@pytest.mark.parametrize("case", CONVOLUTIONS + STRIDED, ids=str)
@pytest.mark.parametrize("constant", [True, False])
def test_input_gradient_of_convolution(case, constant):
    channels, filters, size, kernel, strides, pads, dilations, groups = case
    x, w = (3, channels, *size), normal(filters, channels // groups, *kernel)
    window = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    dy = normal(*convolved(np.zeros(x), w, np.zeros(filters), *window.values()).shape)
    found, plan = (
        run(lambda g, dy: df.ops.conv_grad_input(dy, g.parameter("w", w), input_shape=x, **window), dy)
        if constant
        else run(lambda g, dy, w: df.ops.conv_grad_input(dy, w, input_shape=x, **window), dy, w)
    )
    near(found, reference(dy, w, x, **window), w[0].size // w.shape[1] * (filters // groups))
    prepacked = channels // groups > 16 and np.prod(strides) <= 9 and max(pads) < min(kernel)
    assert ("prepacks" in plan.memory) == constant or not prepacked


CHANNEL_BY_CHANNEL = [c for c in CONVOLUTIONS if c[-1] == c[0]] + [
    (6, 6, (7, 7), (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 6),
    (6, 18, (8, 30), (4, 3), (3, 2), (1, 2, 0, 1), (1, 2), 6),
    (3, 3, (300, 90), (5, 5), (1, 1), (2, 2, 2, 2), (1, 1), 3),  # several bands
    (4, 8, (70,), (9,), (2,), (4, 4), (1,), 4),
    (4, 4, (5, 5), (1, 1), (1, 1), (2, 2, 2, 2), (1, 1), 4),  # padded beyond the kernel's reach
]


@pytest.mark.parametrize("case", CHANNEL_BY_CHANNEL, ids=str)
def test_gradients_of_convolution_channel_by_channel(case):
    channels, filters, size, kernel, strides, pads, dilations, groups = case
    x, w = normal(3, channels, *size), normal(filters, channels // groups, *kernel)
    window = {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups}
    dy = normal(*convolved(x, w, np.zeros(filters), *window.values()).shape)
    near(
        run(lambda g, x, w: df.ops.conv(x, w, **window), x, w)[0],
        convolved(x, w, np.zeros(filters), *window.values()),
        9,
    )
    exact = df.GraphBuilder()
    doubles = [exact.input(n, df.float64, a.shape) for n, a in (("x", x), ("w", w), ("dy", dy))]
    exact.output("dx", df.ops.conv_grad_input(doubles[2], doubles[1], input_shape=x.shape, **window))
    exact.output("dw", df.ops.conv_grad_weight(doubles[0], doubles[2], weight_shape=w.shape, **window))
    feeds = {"x": x.astype(np.float64), "w": w.astype(np.float64), "dy": dy.astype(np.float64)}
    wanted = df.Session(df.Model(exact.build()), devices=["numpy"]).run(feeds)
    found, _ = run(lambda g, dy, w: df.ops.conv_grad_input(dy, w, input_shape=x.shape, **window), dy, w)
    near(found, wanted["dx"], w[0].size * filters // groups)
    found, _ = run(lambda g, x, dy: df.ops.conv_grad_weight(x, dy, weight_shape=w.shape, **window), x, dy)
    near(found, wanted["dw"], dy[:, 0].size)


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
@pytest.mark.parametrize(("k", "columns"), [(1, 1), (7, 33), (300, 16), (5000, 70), (64, 2100)])
@pytest.mark.parametrize("transposed", ["", "a", "b", "ab"])
def test_products_with_few_rows(rows, k, columns, transposed):
    a, b, bias = normal(rows, k), normal(k, columns), normal(columns)
    left = np.ascontiguousarray(a.T) if "a" in transposed else a
    right = np.ascontiguousarray(b.T) if "b" in transposed else b

    def build(g, x):
        x = df.ops.transpose(x, perm=(1, 0)) if "a" in transposed else x
        w = g.constant(right)
        w = df.ops.transpose(w, perm=(1, 0)) if "b" in transposed else w
        return df.ops.relu(df.ops.add(df.ops.matmul(x, w), g.constant(bias)))

    exact = np.maximum(a.astype(np.float64) @ b.astype(np.float64) + bias, 0)
    near(run(build, left)[0], exact, k)


def pooled(x, kind, kernel, strides, pads, count_pads):
    fill = -np.inf if kind == "max_pool" else 0.0
    border = [(0, 0), (0, 0), *zip(pads[:2], pads[2:], strict=True)]
    steps = (slice(None), slice(None), *(slice(None, None, s) for s in strides))

    def windows(a, fill):
        a = np.pad(a.astype(np.float64), border, constant_values=fill)
        return np.lib.stride_tricks.sliding_window_view(a, kernel, (2, 3))[steps]

    if kind == "max_pool":
        return windows(x, fill).max((-1, -2))
    ones = windows(np.ones_like(x), 1.0 if count_pads else 0.0).sum((-1, -2))
    return windows(x, 0.0).sum((-1, -2)) / ones


@pytest.mark.parametrize("kind", ["max_pool", "avg_pool"])
@pytest.mark.parametrize(
    ("size", "kernel", "strides", "pads"),
    [
        ((7, 7), (3, 3), (1, 1), (1, 1, 1, 1)),
        ((40, 57), (3, 3), (2, 2), (0, 1, 1, 0)),
        ((40, 57), (2, 2), (2, 2), (0, 0, 0, 0)),
        ((9, 70), (5, 4), (3, 3), (2, 1, 0, 2)),
        ((6, 5), (6, 5), (1, 1), (0, 0, 0, 0)),
        ((3, 4100), (2, 3), (1, 2), (0, 1, 0, 1)),  # rows too long for the stack
        ((24, 33), (8, 4), (8, 5), (0, 2, 1, 3)),  # strides that leave no windows together
    ],
)
def test_pooling(kind, size, kernel, strides, pads):
    x = normal(2, 3, *size)
    window = {"kernel": kernel, "strides": strides, "pads": pads, "dilations": (1, 1)}
    for count_pads in (0, 1) if kind == "avg_pool" else (0,):
        more = {"count_include_pad": count_pads} if kind == "avg_pool" else {}
        found, _ = run(lambda g, x, more=more: getattr(df.ops, kind)(x, **window, **more), x)
        np.testing.assert_allclose(found, pooled(x, kind, kernel, strides, pads, count_pads), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 16), (7, 17), (28, 28), (9, 33), (3, 70)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (1, 2), (2, 1)])
@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (2, 0, 1, 2), (0, 2, 2, 1)])
def test_a_kernel_of_3x3_for_every_channel(size, strides, pads):
    x, bias = normal(2, 3, *size), normal(6)
    w = normal(6, 1, 3, 3)
    if min(s + pads[i] + pads[i + 2] for i, s in enumerate(size)) < 3:
        pads = (1, 1, 1, 1)
    window = {"strides": strides, "pads": pads, "dilations": (1, 1), "groups": 3}
    exact = convolved(x, w, bias, strides, pads, (1, 1), 3)
    found, _ = run(lambda g, x: df.ops.conv(x, g.parameter("w", w), g.parameter("b", bias), **window), x)
    near(found, exact, 9)
    z = normal(*exact.shape)

    def build(g, x, z):
        return df.ops.relu(df.ops.add(df.ops.conv(x, g.parameter("w", w), g.parameter("b", bias), **window), z))

    found, _ = run(build, x, z)
    near(found, np.maximum(exact + z, 0.0), 9)


def test_the_largest_of_a_window_with_a_nan_is_nan():
    x = normal(1, 2, 9, 40)
    x[0, 1, 4, 20] = np.nan
    window = {"kernel": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    found, _ = run(lambda g, x: df.ops.max_pool(x, **window), x)
    where = np.zeros(x.shape, bool)
    where[0, 1, 3:6, 19:22] = True
    np.testing.assert_array_equal(np.isnan(found), where)


@pytest.mark.parametrize("position", [(0, 0), (3, 1), (4, 20), (8, 39), (5, 32), (8, 0)])
@pytest.mark.parametrize("columns", [2, 3])
def test_a_nan_wins_wherever_it_lies_in_windows_two_apart(position, columns):
    x = normal(1, 2, 9, 40)
    x[0, 1][position] = np.nan
    kernel, pads = (3, columns), (1, 1, 1, 1) if columns == 3 else (1, 0, 1, 0)
    window = {"kernel": kernel, "strides": (2, 2), "pads": pads, "dilations": (1, 1)}
    found, _ = run(lambda g, x: df.ops.max_pool(x, **window), x)
    np.testing.assert_array_equal(found, pooled(x, "max_pool", kernel, (2, 2), pads, 0).astype(np.float32))


def test_a_convolution_with_the_pool_behind_it_is_one_kernel_and_keeps_nan():
    x, w = normal(2, 3, 70, 66), normal(40, 3, 3, 3)
    x[1, 2, 30, 40] = np.nan

    def build(g, x):
        window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
        y = df.ops.relu(df.ops.conv(x, g.parameter("w", w), **window))
        return df.ops.max_pool(y, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))

    found, plan = run(build, x)
    assert [step.node.op.name for s in plan.segments for step in s.steps] == ["conv_relu_max_pool"]
    planes = np.maximum(convolved(x, w, np.zeros(40), (1, 1), (1, 1, 1, 1), (1, 1), 1), 0.0)
    expected = pooled(planes, "max_pool", (3, 3), (2, 2), (1, 1, 1, 1), 0)
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 31, 47, 64, 169, 1024, 1025])
@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
def test_short_rows_are_reduced(kind, n):
    x = normal(5, 7, n + 3)[:, :, 1 : n + 1]
    transposed = x.transpose(1, 0, 2)
    x[2, 3, n // 2] = np.inf
    x[4, 6, n - 1] = np.nan
    for given in (np.ascontiguousarray(x), transposed):
        found, _ = run(lambda g, v: getattr(df.ops, f"reduce_{kind}")(v, axes=(2,), keepdims=False), given)
        expected = getattr(np, kind)(given.astype(np.float64), 2)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=2e-6 * n)


@pytest.mark.parametrize(
    ("image", "weight", "stride", "groups"),
    [
        ((1, 3, 64, 64), (32, 3, 3, 3), 1, 1),  # few_channels
        ((1, 16, 30, 30), (32, 16, 3, 3), 2, 1),  # padded
        ((1, 24, 28, 28), (48, 24, 1, 1), 1, 1),  # pointwise
        ((2, 40, 7, 7), (24, 40, 1, 1), 1, 1),  # direct
        ((1, 32, 20, 20), (32, 32, 3, 3), 1, 1),  # winograd
        ((1, 9, 20, 20), (7, 9, 3, 3), 1, 1),  # shifted
        ((2, 18, 15, 17), (18, 1, 3, 3), 1, 18),  # depthwise
        ((2, 18, 15, 17), (18, 1, 5, 5), 2, 18),  # depthwise
        ((3, 40, 5, 5), (40, 1, 3, 3), 1, 40),  # depthwise
    ],
)
@pytest.mark.parametrize("high", [0.75, np.inf])
def test_convolutions_are_clipped_where_their_sums_are_stored(image, weight, stride, groups, high):
    x, w, bias = normal(*image), normal(*weight) / np.sqrt(np.prod(weight[1:]), dtype=np.float32), normal(weight[0])
    x[0, 0, 2, 3] = np.nan
    pads = (weight[2] // 2,) * 4

    def build(g, x):
        window = {"strides": (stride,) * 2, "pads": pads, "dilations": (1, 1), "groups": groups}
        y = df.ops.conv(x, g.parameter("w", w), g.parameter("b", bias), **window)
        return df.ops.relu(y) if np.isinf(high) else df.ops.clip(y, 0.0, high)

    found, plan = run(build, x)
    (step,) = (step for s in plan.segments for step in s.steps)
    assert step.node.op.name == ("conv_relu" if np.isinf(high) else "conv_clip")
    expected = np.clip(convolved(x, w, bias, (stride, stride), pads, (1, 1), groups), 0.0, high)
    kept = ~np.isnan(found)  # a NaN may spread within a tile of Winograd's
    assert not kept[np.isnan(expected)].any()
    np.testing.assert_allclose(found[kept], expected[kept], rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("isa", ["avx2", "portable"])
def test_the_same_on_other_instruction_sets(isa):
    again_on(isa, __file__, but="other_instruction_sets")
