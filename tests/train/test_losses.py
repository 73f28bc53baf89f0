"""Losses and metrics against PyTorch 2.13's results in float64, and closed forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.ir.types import dtype
from dataflow.passes.autodiff import vjp_graph
from dataflow.passes.bind_shapes import bind
from dataflow.train.metrics.sample_moments import EACH, EACH_WEIGHT
from dataflow.train.objective import Objective
from dataflow_numpy.evaluate import evaluate

Z = np.array(
    [[1.5, -0.3, 0.2, 2.2], [0.1, 0.4, -1.2, 0.7], [3.0, 1.0, -2.0, 0.5], [0.0, 0.0, 0.0, 0.0], [-1.0, 2.5, 0.3, 1.1]],
    np.float32,
)
Y = np.array([3, 1, -100, 2, 0])
W = (0.5, 1.0, 2.0, 0.25)


def model_of(shape: tuple[Any, ...], *, names: tuple[str, ...] = ("y",), after: Any = None) -> df.Model:
    """A model that returns its inputs, perhaps through an op."""
    g = df.GraphBuilder("m")
    for name in names:
        x = g.input(f"x_{name}", df.float32, shape)
        g.output(name, (after or ops.copy)(x))
    return df.Model(g.build())


def terms(objective: Objective, outputs: Mapping[str, np.ndarray], **batch: np.ndarray) -> dict[str, float]:
    """What the objective's graph computes, given the model's inputs."""
    inputs = {f"x_{name}": array for name, array in outputs.items()}
    entries = objective.prepare({**inputs, **batch}, None)
    sizes = {"batch": len(next(iter(inputs.values())))}
    g = df.GraphBuilder("objective")
    new = g.adopt(objective.graph)
    values = {name: new[value] for name, value in objective.graph.outputs.items()}
    types = {name: value.type.bind(sizes) for name, value in values.items()}
    given = {value.name: value for old, value in new.items() if old in objective.graph.inputs}
    arrays = {**inputs, **entries}
    bound = objective.for_batch({n: df.TensorType(dtype(a), np.shape(a)) for n, a in arrays.items()})
    for name, type_ in bound.entries(types).items():
        given[name] = g.input(name, type_.dtype, type_.shape)
    for name, value in bound.build(g, values, given).items():
        each = name.endswith((EACH, EACH_WEIGHT))
        assert value.type == df.TensorType(df.float32, (sizes["batch"],) if each else ())
        g.output(name, value)
    found = evaluate(bind(g.build(), sizes), arrays)
    for name, array in found.items():
        if name.endswith(EACH):
            assert array.sum() == pytest.approx(float(found[name.removesuffix(EACH) + ":sum"]))
    return {name: float(array) for name, array in found.items() if not array.ndim}


def mean(found: Mapping[str, float], name: str = "") -> float:
    return found[f"{name}:sum" if name else "loss"] / found[f"{name}:weight" if name else "weight"]


def softmax(z: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(z.astype(np.float64) - z.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


# torch.nn.functional.cross_entropy(Z, Y, weight=, label_smoothing=), its mean and its sum, in float64
@pytest.mark.parametrize(
    ("weights", "smoothing", "average", "total"),
    [
        (None, 0.0, 1.7360926926482305, 6.944370770592922),
        (None, 0.1, 1.7354676926482306, 6.941870770592923),
        (W, 0.0, 1.6034009075124591, 6.012753403171722),
        (W, 0.1, 1.6400034193593698, 6.1500128225976365),
    ],
)
def test_cross_entropy_is_pytorchs(weights: Any, smoothing: float, average: float, total: float) -> None:
    loss = df.losses.CrossEntropy(class_weights=weights, label_smoothing=smoothing)
    found = terms(Objective(model_of(("batch", 4)), loss), {"y": Z}, labels=Y)
    assert mean(found) == pytest.approx(average, rel=1e-6)
    assert found["loss"] == pytest.approx(total, rel=1e-6)


def test_cross_entropy_over_an_inner_class_axis_is_pytorchs() -> None:
    z = np.sin(np.arange(24.0)).reshape(2, 3, 2, 2).astype(np.float32)
    y = (np.arange(8) % 3).reshape(2, 2, 2).astype(np.int32)
    loss = df.losses.CrossEntropy(class_weights=W[:3], label_smoothing=0.2)
    found = terms(Objective(model_of(("batch", 3, 2, 2)), loss), {"y": z}, labels=y)
    assert mean(found) == pytest.approx(1.3890235241579272, rel=1e-6)


def test_sample_weights_multiply_sum_and_weight() -> None:
    factors = np.array([1.0, 0.0, 5.0, 0.5, 2.0])
    found = terms(Objective(model_of(("batch", 4)), "cross_entropy"), {"y": Z}, labels=Y, sample_weight=factors)
    counted = [0, 3, 4]
    each = -np.log(softmax(Z)[counted, Y[counted]])
    assert found["loss"] == pytest.approx((each * factors[counted]).sum(), rel=1e-6)
    assert found["weight"] == pytest.approx(3.5)
    assert mean(found, "accuracy") == pytest.approx(0.25)  # of the four labels, whatever they weigh


def test_mean_squared_error_and_its_shapes() -> None:
    rng = np.random.default_rng(0)
    y, t = rng.normal(size=(2, 6, 3)).astype(np.float32)
    found = terms(Objective(model_of(("batch", 3)), "mse"), {"y": y}, labels=t)
    assert mean(found) == pytest.approx(np.mean((y.astype(np.float64) - t) ** 2), rel=1e-6)
    assert mean(found, "mae") == pytest.approx(np.mean(np.abs(y.astype(np.float64) - t)), rel=1e-6)
    weights = np.arange(6.0)
    found = terms(Objective(model_of(("batch", 3)), "mse"), {"y": y}, labels=t, sample_weight=weights)
    assert found["weight"] == weights.sum() * 3
    column = terms(Objective(model_of(("batch", 1)), "mse"), {"y": y[:, :1]}, labels=t[:, 0])
    flat = terms(Objective(model_of(("batch",)), "mse"), {"y": y[:, 0]}, labels=t[:, :1])
    assert mean(column) == mean(flat) == pytest.approx(np.mean((y.astype(np.float64) - t)[:, 0] ** 2), rel=1e-6)
    loss_terms = terms(Objective(model_of(("batch",)), "mse"), {"y": y[:, 0]}, labels=np.zeros(6, np.int64))
    assert mean(loss_terms) == pytest.approx(np.mean(y[:, 0].astype(np.float64) ** 2), rel=1e-6)


def test_binary_cross_entropy_does_not_overflow() -> None:
    z = np.array([[30.0, -40.0, 0.5, -0.25]], np.float32)
    t = np.array([[True, False, False, True]])
    found = terms(Objective(model_of(("batch", 4)), "binary_cross_entropy"), {"y": z}, labels=t)
    assert found["loss"] == pytest.approx(1.8000164040590438, rel=1e-6)
    assert mean(found, "accuracy") == 0.5


def test_accuracy_and_top_k() -> None:
    rng = np.random.default_rng(1)
    z = rng.normal(size=(40, 12)).astype(np.float32)
    z[:, 11] = -np.inf
    y = rng.integers(0, 11, 40)
    y[7] = -100
    found = terms(Objective(model_of(("batch", 12)), "cross_entropy", None, ["accuracy", "top3"]), {"y": z}, labels=y)
    order = np.argsort(-z, axis=1)
    counted = y != -100
    assert mean(found, "accuracy") == pytest.approx(np.mean((order[:, 0] == y)[counted]))
    assert mean(found, "top3") == pytest.approx(np.mean((order[:, :3] == y[:, None]).any(1)[counted]))
    assert found["top3:weight"] == 39


def test_several_losses_are_weighted_means() -> None:
    rng = np.random.default_rng(2)
    model = model_of(("batch", 4), names=("a", "b"))
    loss = {"a": ("cross_entropy", "kind", 2.0), "b": ("mse", "size", 0.5)}
    a, b, size = rng.normal(size=(3, 5, 4)).astype(np.float32)
    found = terms(Objective(model, loss), {"a": a, "b": b}, kind=Y, size=size)
    counted = Y != -100
    first = -np.log(softmax(a)[counted, Y[counted]]).mean()
    second = ((b.astype(np.float64) - size) ** 2).mean()
    assert mean(found) == pytest.approx(2 * first + 0.5 * second, rel=1e-6)
    assert found["weight"] == 5
    assert {"a_accuracy:sum", "b_mae:sum"} <= found.keys()


def test_one_of_several_losses_whose_labels_count_nothing_adds_nothing() -> None:
    """Smoothing gives such labels a loss, which was divided by 1e-30."""
    model = model_of(("batch", 4), names=("a", "b"))
    smoothed = df.losses.CrossEntropy((0.0, 1.0, 1.0, 1.0), 0.1)
    a, b = np.random.default_rng(2).normal(size=(2, 3, 4)).astype(np.float32)
    labels = {"kind": np.zeros(3, np.int64), "size": np.zeros((3, 4), np.float32)}
    found = terms(Objective(model, {"a": (smoothed, "kind"), "b": ("mse", "size")}), {"a": a, "b": b}, **labels)
    assert mean(found) == pytest.approx((b.astype(np.float64) ** 2).mean(), rel=1e-6)


@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_an_evaluation_of_several_losses_is_that_of_all_samples(batch_size: int) -> None:
    """Whatever the batches, of which some labels don't count."""
    rng = np.random.default_rng(2)
    g = df.GraphBuilder("m")
    one = g.parameter("one", np.ones((), np.float32))
    for name in "ab":
        g.output(name, ops.mul(g.input(f"x_{name}", df.float32, ("batch", 4)), one))
    a, b, size = rng.normal(size=(3, 5, 4)).astype(np.float32)
    loss = {"a": ("cross_entropy", "kind", 2.0), "b": ("mse", "size", 0.5)}
    data = {"x_a": a, "x_b": b, "kind": Y, "size": size}
    found = df.evaluate(df.Model(g.build()), data, loss, batch_size=batch_size)
    counted = Y != -100
    first = -np.log(softmax(a)[counted, Y[counted]]).mean()
    assert found["loss"] == pytest.approx(2 * first + 0.5 * ((b.astype(np.float64) - size) ** 2).mean(), rel=1e-6)


def test_a_function_and_a_models_own_loss() -> None:
    rng = np.random.default_rng(3)
    y, t = rng.normal(size=(2, 6, 3)).astype(np.float32)
    expected = np.abs(y.astype(np.float64) - t)

    def per_element(g: df.GraphBuilder, outputs: Any, batch: Any) -> Any:
        return ops.abs(ops.sub(outputs["y"], batch["target"]))

    def biggest(g: df.GraphBuilder, outputs: Any, batch: Any) -> Any:
        return ops.reduce_max(per_element(g, outputs, batch), axes=(0, 1), keepdims=0)

    found = terms(Objective(model_of(("batch", 3)), per_element, None, [biggest]), {"y": y}, target=t)
    assert mean(found) == pytest.approx(expected.mean(), rel=1e-6)
    assert mean(found, "biggest") == pytest.approx(expected.max(), rel=1e-6)
    mine = terms(Objective(model_of(("batch", 3)), df.losses.output("y")), {"y": y})
    assert mean(mine) == pytest.approx(y.mean(dtype=np.float64), rel=1e-5)
    with pytest.raises(df.InputError, match="expected a Value"):
        terms(Objective(model_of(("batch", 3)), lambda g, outputs, batch: 3.0), {"y": y})


@pytest.mark.parametrize(
    ("after", "loss", "op"),
    [
        (lambda x: ops.softmax(x, axis=-1), "cross_entropy", "softmax"),
        (lambda x: ops.log_softmax(x, axis=-1), "cross_entropy", "log_softmax"),
        (ops.sigmoid, "binary_cross_entropy", "sigmoid"),
        (
            lambda x: ops.reshape(
                ops.softmax(ops.reshape(x, shape=(df.Dim("batch"), 4)), axis=-1), shape=(df.Dim("batch"), 4)
            ),
            "cross_entropy",
            "softmax",
        ),
    ],
)
def test_logits_are_read_before_the_softmax(after: Any, loss: str, op: str, caplog: pytest.LogCaptureFixture) -> None:
    labels = Y if loss == "cross_entropy" else (Z > 0.3)
    plain = terms(Objective(model_of(("batch", 4)), loss), {"y": Z}, labels=labels)
    with caplog.at_level("INFO", "dataflow"):
        through = terms(Objective(model_of(("batch", 4), after=after), loss), {"y": Z}, labels=labels)
    assert through == pytest.approx(plain, rel=1e-6)
    assert len(caplog.records) == 1
    assert f"the input of {op}" in caplog.text


def test_what_does_not_fit_is_refused() -> None:
    two = model_of(("batch", 4), names=("a", "b"))
    with pytest.raises(df.InputError, match=r"several outputs: 'a', 'b'.*output="):
        Objective(two, "cross_entropy")
    objective = Objective(model_of(("batch", 4)), "cross_entropy")
    x = {"x_y": Z}
    with pytest.raises(df.InputError, match=r"\.argmax"):
        objective.prepare({**x, "labels": np.eye(5, 4, dtype=np.int64)}, None)
    with pytest.raises(df.InputError, match=r"\.astype\(np.int64\)"):
        objective.prepare({**x, "labels": Y.astype(np.float32)}, None)
    with pytest.raises(df.InputError, match=r"labels\[\.\.\., 0\]"):
        objective.prepare({**x, "labels": Y[:, None]}, None)
    square = Objective(model_of(("batch", 5, 5)), "cross_entropy")
    with pytest.raises(df.InputError, match=r"axes \[1, 2\].*axis="):
        square.prepare({"x_y": np.zeros((2, 5, 5), np.float32), "labels": np.zeros((2, 5), np.int64)}, None)
    chosen = Objective(model_of(("batch", 5, 5)), df.losses.CrossEntropy(axis=2))
    chosen.prepare({"x_y": np.zeros((2, 5, 5), np.float32), "labels": np.zeros((2, 5), np.int64)}, None)
    short = Objective(model_of(("batch", 4)), df.losses.CrossEntropy(class_weights=(1, 2)))
    with pytest.raises(df.InputError, match="2 class_weights for 4 classes"):
        short.prepare({**x, "labels": Y}, None)
    with pytest.raises(df.InputError, match="'accuracy' or 'top5'"):
        terms(Objective(model_of(("batch", 4)), "cross_entropy", None, ["mae"]), {"y": Z}, labels=Y)


def test_a_label_out_of_range_is_refused_with_index_and_value() -> None:
    wrong = Y.copy()
    wrong[1] = 4
    with pytest.raises(df.InputError, match="4"):
        terms(Objective(model_of(("batch", 4)), "cross_entropy"), {"y": Z}, labels=wrong)


@pytest.mark.parametrize("wild", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weights", [None, (0.5, 1.0, 2.0, 0.25)])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_ignored_logits_may_be_anything(smoothing: float, weights: Any, wild: float) -> None:
    """They add nothing to the loss, and their gradient is 0."""
    loss = df.losses.CrossEntropy(class_weights=weights, label_smoothing=smoothing)
    g = df.GraphBuilder("loss")
    z, y = g.input("z", df.float32, Z.shape), g.input("y", df.int64, Y.shape)
    target = loss.target(z.type, y.type)
    elements, _ = loss.elements(target, z, y)
    g.output("loss", ops.reduce_sum(elements, axes=(0,), keepdims=0))
    graph = g.build()
    joint = vjp_graph(graph, [graph.inputs[0]])
    seed = {"grad.loss": np.ones((), np.float32)}
    spoilt = np.where((Y == -100)[:, None], np.float32(wild), Z)
    for device in ("cpu", "numpy"):
        session = df.Session(joint, devices=[device])
        plain, found = (session.run({"z": given, "y": Y, **seed}) for given in (Z, spoilt))
        for name in ("loss", "grad.z"):
            np.testing.assert_allclose(found[name], plain[name], rtol=1e-6, atol=1e-6)
        assert not found["grad.z"][Y == -100].any()


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_an_impossible_class_changes_no_loss_of_another(device: str) -> None:
    """A logit of -inf is how a mask excludes a class."""
    g = df.GraphBuilder("loss")
    z, y = g.input("z", df.float32, (2, 3)), g.input("y", df.int64, (2,))
    g.output("loss", ops.softmax_cross_entropy(z, y))
    logits = np.array([[0.5, -np.inf, 1.5], [-np.inf, 2.0, 0.0]], np.float32)
    found = df.Session(g.build(), devices=[device]).run({"z": logits, "y": np.array([2, 1])})["loss"]
    np.testing.assert_allclose(found, -np.log(softmax(logits)[[0, 1], [2, 1]]), rtol=1e-6)


def test_data_may_be_called_as_values_of_the_model() -> None:
    """A detector's output ``boxes`` has labels ``boxes``, and an inner value may be called ``labels``."""

    def network(box: str, inner: str) -> df.Model:
        g = df.GraphBuilder("detector")
        w = g.parameter("w", np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32))
        h = ops.matmul(g.input("x", df.float32, ("B", 4)), w)
        y = ops.tanh(h)
        g.rename(h, box)
        g.rename(y, inner)
        g.output("boxes", h)
        g.output("y", y)
        return df.Model(g.build())

    random = np.random.default_rng(1)
    data = {"x": random.normal(size=(8, 4)).astype(np.float32), "labels": random.integers(0, 3, 8)}
    data["boxes"] = random.normal(size=(8, 3)).astype(np.float32)
    losses = {"boxes": ("mse", "boxes", 1.0), "y": ("cross_entropy", "labels", 1.0)}
    found = []
    for names in (("h", "y"), ("boxes", "labels")):
        with df.Trainer(network(*names), losses, "sgd:lr=0.1") as trainer:
            found.append([trainer.step(data), trainer.step(data), trainer.evaluate(data)["loss"]])
    assert found[0] == found[1]


@pytest.mark.parametrize("loss", [df.losses.CrossEntropy, df.losses.Focal, df.losses.Dice, df.losses.NLL])
def test_the_class_axis_that_the_first_batch_shows_is_kept(loss: Any) -> None:
    """Labels of as many positions as there are classes fit a second axis."""
    random = np.random.default_rng(0)
    batches = [
        {"x": random.normal(size=(2, n, 4)).astype(np.float32), "labels": random.integers(0, 3, (2, n))}
        for n in (5, 3, 4)
    ]
    found = []
    for chosen in (loss(), loss(axis=2)):
        g = df.GraphBuilder()
        x = g.input("x", df.float32, ("B", "T", 4))
        y = ops.matmul(x, g.parameter("w", np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)))
        g.output("y", ops.log_softmax(y, axis=2))
        with df.Trainer(df.Model(g.build()), chosen, "sgd:lr=0.1", devices=["cpu"]) as trainer:
            if chosen.axis is None:
                with pytest.raises(df.InputError, match="fit with the classes on any of the axes"):
                    trainer.step(batches[1])
            found.append([trainer.step(batch) for batch in batches])
            with pytest.raises(df.InputError, match=r"labels int64\[2, 5\] don't fit.*with the classes on axis 2"):
                trainer.step({"x": batches[1]["x"], "labels": batches[0]["labels"]})
    assert found[0] == found[1]


def test_a_chosen_class_axis_that_does_not_fit_the_labels_is_refused() -> None:
    model = model_of((5, 7, 3), after=lambda x: ops.mul(x, x))
    objective = Objective(model, df.losses.CrossEntropy(axis=1))
    with pytest.raises(df.InputError, match=r"labels int64\[5, 7\] don't fit logits.*with the classes on axis 1"):
        terms(objective, {"y": np.ones((5, 7, 3), np.float32)}, labels=np.zeros((5, 7), np.int64))
