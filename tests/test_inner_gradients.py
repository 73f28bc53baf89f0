"""``df.grad``: gradients within the graph that is being built, of which losses and inner loops are made."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow_numpy.evaluate import evaluate


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def test_derivatives_of_a_polynomial_of_any_order_by_an_input() -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float64, ("batch", 2))
    y = x**5 - 2 * x**3
    for order in range(4):
        g.output(f"d{order}", y)
        y = df.grad(y, x)
    array = drawn(3, 2)
    found = df.Session(g.build(), devices=["cpu"]).run({"x": array})
    polynomial = np.polynomial.Polynomial([0, 0, 0, -2, 0, 1])
    for order in range(4):
        expected = (polynomial.deriv(order) if order else polynomial)(array)
        np.testing.assert_allclose(found[f"d{order}"], expected, rtol=1e-12, atol=1e-12)


def gradient_penalty(dtype: df.DType) -> df.Graph:
    """That of a Wasserstein critic, whose slope is taken between data and what a generator makes of noise."""
    g = df.GraphBuilder()
    x, z, share = g.input("x", dtype, ("n", 3)), g.input("z", dtype, ("n", 2)), g.input("share", dtype, ("n", 1))
    make = g.parameter("make", drawn(2, 3).astype(dtype.numpy))
    w, v = (
        g.parameter("w", drawn(3, 5, seed=1).astype(dtype.numpy)),
        g.parameter("v", drawn(5, 1, seed=2).astype(dtype.numpy)),
    )
    mixed = share * x + (1 - share) * (z @ make)
    slope = df.grad(ops.tanh(mixed @ w) @ v, mixed)
    g.output("slope", slope)
    g.output("loss", ((ops.sqrt((slope * slope).sum(1)) - 1) ** 2).mean())
    return g.build()


def test_the_slope_at_a_computed_value_is_that_of_its_formula_and_is_trained_through() -> None:
    feeds = {"x": drawn(4, 3, seed=3), "z": drawn(4, 2, seed=4), "share": np.random.default_rng(5).random((4, 1))}
    graph = gradient_penalty(df.float64)
    make, w, v = (data.array for data in graph.initializers.values() if data.trainable)
    mixed = feeds["share"] * feeds["x"] + (1 - feeds["share"]) * (feeds["z"] @ make)
    expected = ((1 - np.tanh(mixed @ w) ** 2) * v.T) @ w.T
    found = df.Session(df.value_and_grad(graph, of="loss"), devices=["cpu"]).run(feeds)
    np.testing.assert_allclose(found["slope"], expected, rtol=1e-12)
    assert found["loss"] == pytest.approx(((np.linalg.norm(expected, axis=1) - 1) ** 2).mean(), rel=1e-12)

    def penalty(values: dict[str, np.ndarray]) -> float:
        mixed = feeds["share"] * feeds["x"] + (1 - feeds["share"]) * (feeds["z"] @ values["make"])
        slope = ((1 - np.tanh(mixed @ values["w"]) ** 2) * values["v"].T) @ values["w"].T
        return float(((np.linalg.norm(slope, axis=1) - 1) ** 2).mean())

    stored = {"make": make, "w": w, "v": v}
    for name, array in stored.items():
        direction = drawn(*array.shape, seed=6)
        up, down = (penalty({**stored, name: array + step * direction}) for step in (1e-6, -1e-6))
        assert (found[f"grad.{name}"] * direction).sum() == pytest.approx((up - down) / 2e-6, rel=1e-6)


def test_a_trainer_learns_the_rate_of_an_inner_loop() -> None:
    """Three steps of gradient descent on a w^2 / 2 leave w (1 - rate a)^3, whose derivative by the rate is known."""
    steps, start = 3, 2.0
    g = df.GraphBuilder()
    a = g.input("a", df.float32, ("n",))
    rate = g.parameter("rate", np.float32(0.1))
    w = 0 * a + start
    for _ in range(steps):
        w = w - rate * df.grad(0.5 * a * w * w, w)
    g.output("loss", w * w)
    curvatures, expected = np.array([0.5, 1.0, 1.5], np.float32), 0.1
    with df.Trainer(
        df.Model(g.build()), df.losses.output("loss"), "sgd:lr=0.01,momentum=0", devices=["cpu"]
    ) as trainer:
        for _ in range(5):
            left = 1 - expected * curvatures
            assert trainer.step({"a": curvatures}) == pytest.approx((start**2 * left ** (2 * steps)).mean(), rel=1e-5)
            slope = (start**2 * 2 * steps * left ** (2 * steps - 1) * -curvatures).mean()
            expected -= 0.01 * slope
            assert trainer.model.parameters["rate"].array == pytest.approx(expected, rel=1e-5)


def test_a_loss_of_ones_own_takes_gradients_by_what_the_model_computes() -> None:
    """The step of x'^2 x = x^3, of an energy w x^2 whose force is to be 6 x: 2 w x, so w goes to 3."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n",))
    g.output("at", x * 1.0)
    g.output("energy", g.parameter("w", np.float32(1)) * (x * 1.0) ** 2)
    model = df.Model(g.build())

    def force(g: df.GraphBuilder, outputs: dict[str, df.Value], batch: dict[str, df.Value]) -> df.Value:
        return (df.grad(outputs["energy"], batch["x"]) - batch["wanted"]) ** 2

    points = np.array([-1, 0.5, 2], np.float32)
    with df.Trainer(model, force, "sgd:lr=0.05,momentum=0", devices=["cpu"]) as trainer:
        expected = 1.0
        for _ in range(4):
            wrong = 2 * expected * points - 6 * points
            assert trainer.step({"x": points, "wanted": 6 * points}) == pytest.approx((wrong**2).mean(), rel=1e-5)
            expected -= 0.05 * (2 * wrong * 2 * points).mean()


DECOMPOSED: dict[str, Callable[[df.Value], df.Value]] = {
    "leaky_relu": lambda x: ops.leaky_relu(x, alpha=0.2),
    "hard_swish": ops.hard_swish,
    "mish": ops.mish,
    "prelu": lambda x: ops.prelu(x, np.array([0.1, -0.3, 0.2])),
    "gelu twice": lambda x: df.grad(ops.gelu(x), x),
    "layer_norm twice": lambda x: df.grad(ops.layer_norm(x) ** 3, x),
}


@pytest.mark.parametrize("name", DECOMPOSED)
def test_ops_that_have_a_decomposition_alone_are_differentiated_by_it(name: str) -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float64, (2, 3))
    y = DECOMPOSED[name](x)
    g.output("y", y)
    g.output("slope", df.grad(y, x, drawn(2, 3, seed=1)))
    graph, array, direction = g.build(), drawn(2, 3, seed=2), drawn(2, 3, seed=3)
    up, down = (evaluate(graph, {"x": array + step * direction}, dtype=np.float64)["y"] for step in (1e-6, -1e-6))
    found = df.Session(graph, devices=["cpu"]).run({"x": array})["slope"]
    expected = ((up - down) / 2e-6 * drawn(2, 3, seed=1)).sum()
    assert (found * direction).sum() == pytest.approx(expected, rel=1e-6)


def _gates(op: df.Op, *sizes: int) -> Callable[[df.Value], df.Value]:
    def build(x: df.Value) -> df.Value:
        r, *more = (0.5 * drawn(*shape, seed=4) for shape in (sizes, sizes[:1]))
        found: df.Value = op(x, r, *more[: op is ops.gru])[0]
        return found

    return build


def _batch_norm(x: df.Value) -> df.Value:
    rows = (drawn(3, seed=4), drawn(3, seed=5), np.zeros(3), np.ones(3))
    found: df.Value = ops.batch_norm_train(x, *rows)[0]
    return found


def _attention(x: df.Value) -> df.Value:
    return ops.attention(x, ops.transpose(ops.sin(x), perm=(0, 1, 3, 2)), ops.exp(x))


THRICE: dict[str, tuple[tuple[int, ...], Callable[[df.Value], df.Value]]] = {
    # PyTorch 2.13 differs in the third derivatives of its batch, layer, group and instance norm: it takes the kept mean
    # and deviation for constants there
    "batch_norm_train": ((4, 3), _batch_norm),
    "layer_norm": ((4, 5), lambda x: ops.layer_norm(x, drawn(5, seed=4))),
    "softmax": ((3, 4), lambda x: ops.softmax(x, axis=1)),
    "log_softmax": ((3, 4), lambda x: ops.log_softmax(x, axis=1)),
    "softmax_cross_entropy": ((3, 4), lambda x: ops.softmax_cross_entropy(x, np.array([0, 2, 1]))),
    "lstm": ((3, 2, 12), _gates(ops.lstm, 12, 3)),
    "gru": ((3, 2, 9), _gates(ops.gru, 9, 3)),
    "max_pool": ((1, 2, 4, 4), lambda x: ops.max_pool(ops.exp(x), kernel=(2, 2), strides=(2, 2))),
    "avg_pool": ((1, 2, 4, 4), lambda x: ops.avg_pool(ops.exp(x), kernel=(2, 2), strides=(1, 1))),
    "conv": ((1, 2, 4, 4), lambda x: ops.conv(ops.sin(x), drawn(3, 2, 3, 3, seed=4))),
    "matmul": ((3, 4), lambda x: ops.exp(x) @ ops.transpose(ops.tanh(x), perm=(1, 0))),
    "attention": ((1, 2, 3, 4), _attention),
}


@pytest.mark.parametrize("name", THRICE)
def test_three_derivatives_along_a_line_are_the_differences_of_those_before(name: str) -> None:
    shape, build = THRICE[name]
    g = df.GraphBuilder()
    x, direction, start = g.input("x", df.float64, shape), drawn(*shape, seed=1), drawn(*shape, seed=2)
    y = build(x)
    y = ops.tanh(y * drawn(*y.type.sizes, seed=3)).sum()
    for order in range(4):
        g.output(f"d{order}", y)
        y = (df.grad(y, x) * direction).sum()
    with df.Session(g.build(), devices=["cpu"]) as session:
        found = session.run({"x": start})
        left2, left, right, right2 = (session.run({"x": start + 1e-4 * step * direction}) for step in (-2, -1, 1, 2))
    for order in range(3):
        values = [float(at[f"d{order}"]) for at in (left2, left, right, right2)]
        expected = np.dot(values, [1, -8, 8, -1]) / 12e-4
        assert float(found[f"d{order + 1}"]) == pytest.approx(expected, rel=1e-7, abs=1e-7), order


def test_cotangents_weigh_the_elements_and_what_does_not_matter_has_zeros() -> None:
    g = df.GraphBuilder()
    x, other = g.input("x", df.float32, ("n", 2)), g.input("other", df.float32, (3,))
    with g.scope("inner"):
        y = ops.exp(x)
        one = df.grad(y, x, np.array([1, 10], np.float32))
        two, none = df.grad(y, (x, other), 3.0)
        after = y * 1.0
    g.output("one", one)
    g.output("two", two)
    g.output("none", none)
    g.output("after", after)
    assert after.name.startswith("inner/mul")
    array = drawn(4, 2).astype(np.float32)
    found = df.Session(g.build(), devices=["cpu"]).run({"x": array, "other": np.ones(3, np.float32)})
    np.testing.assert_allclose(found["one"], np.exp(array) * [1, 10], rtol=1e-6)
    np.testing.assert_allclose(found["two"], np.exp(array) * 3, rtol=1e-6)
    np.testing.assert_array_equal(found["none"], np.zeros(3))


def test_gradients_within_a_graph_refuse_what_does_not_fit() -> None:
    g, h = df.GraphBuilder(), df.GraphBuilder()
    x, i = g.input("x", df.float32, (2,)), g.input("i", df.int64, (2,))
    foreign = h.input("foreign", df.float32, (2,))
    y = ops.sin(x)
    with pytest.raises(df.InputError, match=r"grad: 'i' is int64\[2\]; expected a float"):
        df.grad(y, i)
    with pytest.raises(df.InputError, match="grad: 'sin' and 'foreign' belong to two graphs; adopt one"):
        df.grad(y, [x, foreign])
    with pytest.raises(df.InputError, match="grad: wrt is 3; expected a value, or a list of them"):
        df.grad(y, 3)  # type: ignore[call-overload]
    with pytest.raises(df.InputError, match=r"the cotangent makes float32\[3, 2\] of 'sin', which is float32\[2\]"):
        df.grad(y, x, np.ones((3, 1), np.float32))
    free = ops.exp(g.input("free", df.float32, ("batch", 3)))
    assert df.grad(free, free, np.ones((1, 3), np.float32)).type == free.type
    with pytest.raises(
        df.InputError, match=r"float32\[4, 3\] of 'exp', .*along batch it has 1, or that size, as an input"
    ):
        df.grad(free, free, np.ones((4, 3), np.float32))
    p = g.input("p", df.float32, (1, 4, 3))
    ctc = ops.ctc_loss(p, np.array([[1, 2]]), np.array([4]), np.array([2]))
    twice = df.grad(df.grad(ctc, p), p)
    with pytest.raises(df.GradientError, match=r"ctc_loss_product.*this op has no gradient, and it lies between"):
        df.grad(twice, p)
    g.output("y", y)
    g.build()
    with pytest.raises(df.ModelError, match="built already"):
        df.grad(y, x)
    finished = df.Value("z", y.type)
    with pytest.raises(df.ModelError, match=r"'z' belongs to a finished graph; df\.value_and_grad differentiates such"):
        df.grad(finished, finished)


def test_a_gradient_that_is_refused_leaves_the_origin_of_nodes() -> None:
    """What an importer or a caller set stays, so that messages of later nodes don't speak of that gradient."""
    g = df.GraphBuilder()
    g.origin = "mine"
    x = g.input("x", df.float32, (3,))
    y = ops.encode_blocks(ops.exp(x), g.constant(np.linspace(-1, 1, 256, dtype=np.float32)), block=4)[1]
    with pytest.raises(df.GradientError, match="encode_blocks"):
        df.grad(y, x)
    assert g.origin == "mine"
