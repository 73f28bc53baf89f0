"""Networks by hand: layers, first values, and gradients as graphs, of which there are gradients again."""

from __future__ import annotations

import math

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow_numpy.evaluate import evaluate


def network(g: df.GraphBuilder, x: df.Value) -> df.Value:
    with g.scope("encoder"):
        h = ops.gelu(df.nn.linear(g, x, 5, name="fc1"))
    return df.nn.linear(g, h, 3, name="head", bias=False)


def test_layers_name_and_begin_their_parameters() -> None:
    g = df.GraphBuilder()
    tokens = g.input("tokens", df.int64, ("batch", 6))
    h = df.nn.layer_norm(g, df.nn.embedding(g, tokens, 10, 8))
    h = df.nn.conv(g, ops.transpose(h, perm=(0, 2, 1)), 4, 3, pad=1, groups=2, name="mix")
    g.output("y", network(g, ops.reduce_mean(h, axes=(2,), keepdims=False)))
    model = df.Model(g.build())
    shapes = {name: p.array.shape for name, p in model.parameters.items()}
    assert shapes == {
        "embedding/weight": (10, 8), "layer_norm/weight": (8,), "layer_norm/bias": (8,), "mix/weight": (4, 4, 3),
        "mix/bias": (4,), "encoder/fc1/weight": (4, 5), "encoder/fc1/bias": (5,), "head/weight": (5, 3),
    }  # fmt: skip
    bound = 1 / np.sqrt(12)
    weight = model.parameters["mix/weight"].array
    assert np.abs(weight).max() <= bound and weight.std() == pytest.approx(bound / np.sqrt(3), rel=0.25)
    assert model({"tokens": np.arange(12).reshape(2, 6) % 10})["y"].shape == (2, 3)
    batch = {"tokens": np.arange(12).reshape(2, 6) % 10, "labels": np.array([0, 2])}
    with df.Trainer(model, devices=["cpu"], optimizer=df.optim.AdamW(lr=0.05)) as trainer:
        losses = [trainer.step(batch) for _ in range(5)]
    assert losses[-1] < losses[0]


def test_layers_refuse_what_does_not_fit() -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, "k"))
    with pytest.raises(df.InputError, match=r"nn.linear: axis -1 of x.*has no fixed size"):
        df.nn.linear(g, x, 3)
    y = g.input("y", df.float32, (2, 4))
    with pytest.raises(df.InputError, match=r"linear.weight is \[2, 2\]; expected \[4, 3\]"):
        df.nn.linear(g, y, 3, weight=np.zeros((2, 2)))
    df.nn.linear(g, y, 3)
    with pytest.raises(df.ModelError, match="names are unique"):
        df.nn.linear(g, y, 3)


def test_parameters_by_hand_are_named_within_scopes() -> None:
    g = df.GraphBuilder()
    y = x = g.input("x", df.float32, (2, 3))
    for scope in ("a", "b"):
        with g.scope(scope), g.scope("inner"):
            y = y * g.parameter("w", np.ones(3, np.float32))
            y = df.nn.linear(g, y, 3, bias=False)
    g.output("y", y + x * g.initializer("w", np.ones(3, np.float32)))
    names = [f"{scope}/inner/{name}" for scope in ("a", "b") for name in ("w", "linear/weight")]
    assert [*df.Model(g.build()).parameters] == [*names, "w"]


INITS = {
    "normal": (df.init.normal, {"mean": 1.0, "deviation": 2.0}, 1.0, 2.0),
    "truncated_normal": (df.init.truncated_normal, {"deviation": 2.0}, 0.0, 2 * 0.8796),
    "uniform": (df.init.uniform, {"low": -3.0, "high": 1.0}, -1.0, 4 / np.sqrt(12)),
    "xavier_uniform": (df.init.xavier_uniform, {}, 0.0, np.sqrt(2 / 240)),
    "xavier_normal": (df.init.xavier_normal, {"gain": 2.0}, 0.0, 2 * np.sqrt(2 / 240)),
    "kaiming_uniform": (df.init.kaiming_uniform, {}, 0.0, np.sqrt(2 / 160)),
    "kaiming_normal": (df.init.kaiming_normal, {"gain": 1.0}, 0.0, np.sqrt(1 / 160)),
}


@pytest.mark.parametrize("name", INITS)
def test_first_values_have_the_moments_of_their_formulas(name: str) -> None:
    make, settings, mean, deviation = INITS[name]
    found = make((160, 80), 3, **settings)
    assert found.dtype == np.float32
    assert found.mean() == pytest.approx(mean, abs=5 * deviation / np.sqrt(found.size))
    assert found.std() == pytest.approx(deviation, rel=0.03)
    np.testing.assert_array_equal(found, make((160, 80), 3, **settings))
    assert not np.array_equal(found, make((160, 80), 4, **settings))


def test_fans_and_orthogonal_weights() -> None:
    assert df.init.fans((3, 7)) == (3, 7)
    assert df.init.fans((8, 4, 3, 3)) == (36, 72)
    for shape in ((6, 4), (4, 6), (5, 2, 3)):
        rows = df.init.orthogonal(shape, 1, gain=2.0).reshape(shape[0], -1)
        product = rows.T @ rows if rows.shape[0] >= rows.shape[1] else rows @ rows.T
        np.testing.assert_allclose(product, 4 * np.eye(len(product)), atol=1e-5)
    with pytest.raises(df.InputError, match=r"shape \(3,\) has 1 axes; expected 2 or more"):
        df.init.xavier_normal((3,))


def penalty(graph: df.Graph, names: list[str]) -> df.Graph:
    """The graph with the sum of the squares of its gradients."""
    g = df.GraphBuilder("penalty")
    new = g.adopt(graph)
    total = None
    for name in names:
        square = ops.mul(new[graph.outputs[f"grad.{name}"]], new[graph.outputs[f"grad.{name}"]])
        square = ops.reduce_sum(square, axes=tuple(range(square.type.rank)), keepdims=False)
        total = square if total is None else ops.add(total, square)
    assert total is not None
    g.output("penalty", total)
    return g.build()


def losses(kind: str) -> tuple[df.Graph, dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    g = df.GraphBuilder("network")
    x = g.input("x", df.float32, (4, 4))
    y = network(g, x)
    if kind == "cross_entropy":
        labels = g.constant(np.array([0, 2, 1, -100]))
        found = ops.softmax_cross_entropy(y, labels, axis=1, ignore_index=-100, label_smoothing=0.1)
    elif kind == "softmax":
        found = ops.mul(ops.softmax(y, axis=1), ops.log_softmax(ops.sin(y), axis=1))
    elif kind == "layer_norm":
        found = ops.mul(ops.layer_norm(y, g.constant(np.array([1.0, -2.0, 0.5], np.float32)), axis=1), ops.sin(y))
    elif kind.startswith("batch_norm"):
        vectors = [g.constant(np.array(row, np.float32)) for row in ([1, -2, 0.5], [0.3, 0.2, 0.1], [0] * 3, [1] * 3)]
        made = g.add(ops.batch_norm_train_relu if "relu" in kind else ops.batch_norm_train, (y, *vectors), {})
        found = ops.mul(made.outputs[0], ops.sin(y))
    elif kind == "max_pool":
        window = {"kernel": (2,), "strides": (1,), "pads": (0, 0), "dilations": (1,)}
        found = ops.exp(ops.max_pool(ops.reshape(y, shape=(1, 4, 3)), **window))
    else:
        window = g.constant(np.ones((2, 4, 2), np.float32))
        attributes = {"strides": (1,), "pads": (0, 0), "dilations": (1,), "groups": 1}
        found = ops.exp(ops.tanh(ops.conv(ops.reshape(y, shape=(1, 4, 3)), window, None, **attributes)))
    g.output("loss", ops.reduce_sum(found, axes=tuple(range(found.type.rank)), keepdims=False))
    return g.build(), {"x": random.standard_normal((4, 4))}


@pytest.mark.parametrize(
    "kind", ["cross_entropy", "softmax", "conv", "layer_norm", "batch_norm", "batch_norm_relu", "max_pool"]
)
def test_gradients_of_gradients_are_those_of_finite_differences(kind: str) -> None:
    graph, feeds = losses(kind)
    names = [v.name for v, data in graph.initializers.items() if data.trainable]
    assert names == ["encoder/fc1/weight", "encoder/fc1/bias", "head/weight"]
    first = df.value_and_grad(graph)
    assert [*first.outputs] == ["loss", *(f"grad.{name}" for name in names)]
    twice = df.value_and_grad(penalty(first, names), ["x"])
    found = evaluate(twice, feeds, dtype=np.float64)
    direction = np.random.default_rng(1).standard_normal((4, 4))
    step = 1e-5
    up, down = (
        evaluate(penalty(first, names), {"x": feeds["x"] + sign * step * direction}, dtype=np.float64)["penalty"]
        for sign in (1, -1)
    )
    assert (found["grad.x"] * direction).sum() == pytest.approx((up - down) / (2 * step), rel=1e-6)
    on_cpu = df.Session(df.Model(twice), devices=["cpu"]).run({"x": feeds["x"].astype(np.float32)})
    np.testing.assert_allclose(on_cpu["grad.x"], found["grad.x"], rtol=2e-3, atol=2e-4)


def test_values_and_gradients_refuse_what_does_not_fit() -> None:
    graph, _ = losses("softmax")
    with pytest.raises(df.InputError, match="'none' is no float input or stored tensor"):
        df.value_and_grad(graph, ["none"])
    with pytest.raises(df.InputError, match=r"there is an output 'grad\.x' already; give another prefix="):
        df.value_and_grad(df.value_and_grad(graph, "x"), "x", of="loss")
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 3))
    g.output("y", ops.sin(x))
    g.output("rows", ops.reduce_sum(x, axes=(1,), keepdims=True))
    for of in ("y", "rows"):
        with pytest.raises(df.InputError, match="expected one float, a sum or mean"):
            df.value_and_grad(g.build(), of=of)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_the_output_that_is_differentiated_has_one_element_whatever_its_rank(shape: tuple[int, ...]) -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, 3))
    g.output("y", ops.reshape(ops.reduce_sum(x * x, axes=(0, 1), keepdims=False), shape=shape))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = df.Session(df.value_and_grad(g.build())).run({"x": array})
    assert found["y"].shape == shape
    np.testing.assert_array_equal(found["grad.x"], 2 * array)


@pytest.mark.parametrize("axes", [(1,), (-1, 0), (0, 1, 2)])
@pytest.mark.parametrize("shape", [(2, 3, 2), ("a", 3, "b"), (1, 3, 1)])
def test_products_with_zeros_have_derivatives_of_any_order(shape: tuple[int | str, ...], axes: tuple[int, ...]) -> None:
    """Against the coefficients of the product of the other (x + t v), a polynomial in t."""
    sizes = [size if isinstance(size, int) else 2 for size in shape]
    random = np.random.default_rng(2)
    x, v = random.normal(size=sizes), random.normal(size=sizes)
    x[:, 0] = x[:, 2] = 0
    g = df.GraphBuilder()
    y = ops.reduce_prod(g.input("x", df.float64, shape), axes=axes, keepdims=False)
    g.output("y", ops.reduce_sum(y, axes=tuple(range(y.type.rank)), keepdims=False))
    graph = df.value_and_grad(g.build(), "x")
    for order in range(4):
        expected = np.zeros(sizes)
        for at in np.ndindex(*sizes):
            group = tuple(slice(None) if axis in axes or axis - 3 in axes else at[axis] for axis in range(3))
            chosen = np.zeros(sizes, bool)
            chosen[group] = True
            chosen[at] = False
            polynomial = np.polynomial.Polynomial([1.0])
            for factor, slope in zip(x[chosen], v[chosen], strict=True):
                polynomial *= np.polynomial.Polynomial([factor, slope])
            coefficients = polynomial.coef
            expected[at] = coefficients[order] * math.factorial(order) if order < len(coefficients) else 0.0
        found = df.Session(graph, devices=["cpu"]).run({"x": x})["grad.x"]
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
        g = df.GraphBuilder()
        slope = g.adopt(graph)[graph.outputs["grad.x"]]
        g.output("y", ops.reduce_sum(ops.mul(slope, v), axes=(0, 1, 2), keepdims=False))
        graph = df.value_and_grad(g.build(), "x")


def test_noise_is_drawn_anew_in_each_run_and_is_that_of_its_gradient() -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 3))
    g.output("flat", df.nn.uniform(g, (4000,), low=2.0, high=6.0))
    for name in ("first", "second"):
        g.output(name, df.nn.normal(g, x.shape, mean=1.0, scale=0.5))
    y = x * g.parameter("scale", np.ones(3, np.float32)) * df.nn.normal(g, x.shape)
    g.output("noise", y)
    g.output("y", y.sum())
    graph = df.value_and_grad(g.build(), ["x"], of="y")
    feeds = {"x": np.ones((4000, 3), np.float32)}
    session = df.Session(graph, devices=["cpu"], seed=5)
    runs = [session.run(feeds) for _ in range(2)]
    drawn = [run[name].ravel() for run in runs for name in ("first", "second", "noise")]
    assert np.abs(np.corrcoef(drawn) - np.eye(6)).max() < 0.05  # none is another again
    for run in runs:
        np.testing.assert_array_equal(run["grad.x"], run["noise"])
        assert run["first"].mean() == pytest.approx(1, abs=0.03) and run["first"].std() == pytest.approx(0.5, abs=0.03)
        assert run["flat"].min() >= 2 and run["flat"].max() < 6
        assert run["flat"].mean() == pytest.approx(4, abs=0.1)
    again = df.Session(graph, devices=["cpu"], seed=5).run(feeds)
    np.testing.assert_array_equal(again["noise"], runs[0]["noise"])
    g = df.GraphBuilder()
    for shape in (3, ("batch", 3), (2.5,)):
        with pytest.raises(df.InputError, match="expected a list of sizes; named ones are those of a value"):
            df.nn.normal(g, shape)  # type: ignore[arg-type]


def test_noise_trains_what_it_is_scaled_by() -> None:
    """The mean of (x + s n)^2 over noise n is x^2 + s^2: s goes to 0, and each step has other noise."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch",))
    g.output("y", x + g.parameter("s", np.float32(1)) * df.nn.normal(g, x.shape))
    model = df.Model(g.build())
    batch = {"x": np.zeros(4096, np.float32), "labels": np.zeros(4096, np.float32)}
    with df.Trainer(model, "mse", "sgd:lr=0.1,momentum=0", devices=["cpu"]) as trainer:
        losses = np.array([trainer.step(batch) for _ in range(10)])
    np.testing.assert_allclose(losses, 0.8 ** (2 * np.arange(10)), rtol=0.25)
    assert len(set(losses[1:] / losses[:-1])) == 9


def test_states_of_a_graph_by_hand_are_refused_with_what_to_do() -> None:
    """A session computed what depends on one once, as of a constant."""
    g = df.GraphBuilder()
    x, mean = g.input("x", df.float32, (2,)), g.parameter("mean", np.zeros(2, np.float32), trainable=False)
    g.state("mean", mean, 0.5 * mean + x)
    g.output("y", x - mean)
    graph = g.build()
    with pytest.raises(df.ModelError, match=r"state 'mean', which 'add' replaces.*state=\{output: input\}"):
        df.Model(graph)
    with pytest.raises(df.ModelError, match="state 'mean'"):
        df.Session(graph)


# ---- the logarithm of a sum of exponentials -----------------------------------------------------------


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [None, 1, -1, (0,), (0, -1), ()])
def test_a_log_of_sums_and_its_derivatives(axes: int | tuple[int, ...] | None, keepdims: bool) -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float64, ("n", 3, 4))
    y = df.nn.logsumexp(x, axes, keepdims=keepdims)
    g.output("y", y)
    weight = np.arange(1.0, 5.0)
    slope = df.grad(y.sum(), x)
    g.output("slope", slope)
    g.output("second", df.grad((slope * weight).sum(), x))
    array = 3.0 * np.random.default_rng(0).standard_normal((2, 3, 4)) + 800.0  # e^800 is no number
    found = df.Session(g.build(), devices=["cpu"]).run({"x": array})
    over = (0, 1, 2) if axes is None else (axes,) if isinstance(axes, int) else axes
    powers = np.exp(array - 800.0)
    expected = np.log(powers.sum(over, keepdims=True)) + 800.0
    np.testing.assert_allclose(found["y"], expected if keepdims else expected.squeeze(over), rtol=1e-14)
    softmax = powers / powers.sum(over, keepdims=True)
    np.testing.assert_allclose(found["slope"], softmax, rtol=1e-10)
    mean = (softmax * weight).sum(over, keepdims=True)
    np.testing.assert_allclose(found["second"], softmax * (weight - mean), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("device", ["numpy", "cpu"])
def test_a_log_of_sums_of_infinities_is_as_pytorchs(device: str) -> None:
    inf, nan = np.inf, np.nan
    rows = [[-inf, -inf], [-inf, 1], [inf, 1], [inf, -inf], [nan, 1], [1e30, 1e30], [-200, -201]]
    values = [-inf, 1, inf, inf, nan, 1e30, -200 + np.log1p(np.exp(-1))]
    slopes = [[nan, nan], [0, 1], [nan, 0], [nan, 0], [nan, nan], [0.5, 0.5], [1 / (1 + np.exp(-1)), 1 / (1 + np.e)]]
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 2))
    y = df.nn.logsumexp(x, 1)
    g.output("y", y)
    g.output("slope", df.grad(y, x))
    g.output("nothing", df.nn.logsumexp(g.input("empty", df.float32, ("n", 0)), -1))
    given = {"x": np.array(rows, np.float32), "empty": np.zeros((7, 0), np.float32)}
    found = df.Session(g.build(), devices=[device]).run(given)
    np.testing.assert_allclose(found["y"], values, rtol=1e-6)
    np.testing.assert_allclose(found["slope"], slopes, rtol=1e-5)
    np.testing.assert_array_equal(found["nothing"], np.full(7, -inf))


def test_a_log_of_sums_refuses_what_does_not_fit() -> None:
    g = df.GraphBuilder()
    with pytest.raises(df.InputError, match=r"nn\.logsumexp: x is int64\[2\]; expected a float"):
        df.nn.logsumexp(g.input("i", df.int64, (2,)))
    with pytest.raises(df.InputError, match=r"nn\.logsumexp: .*axis"):
        df.nn.logsumexp(g.input("x", df.float32, (2, 3)), 2)
