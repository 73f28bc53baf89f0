"""Losses of outputs that are probabilities, whatever computes them, against formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.train.losses.intervals import Intervals
from dataflow.train.objective import Objective

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 4)).astype(np.float32) * 3
CLASSES = RANDOM.integers(0, 4, 40)
TRUE = RANDOM.integers(0, 2, 40).astype(np.float32)
BATCH = df.Dim("batch")


def model(end: Any, columns: int = 4) -> df.Model:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 4))
    w = g.parameter("w", np.random.default_rng(1).normal(size=(4, columns)).astype(np.float32))
    g.output("p", end(ops.matmul(x, w)))
    return df.Model(g.build())


def first(z: Any) -> Any:
    return ops.slice(z, starts=(0, 0), stops=(BATCH, 1), steps=(1, 1))


def flat(z: Any) -> Any:
    return ops.reshape(z, shape=(BATCH,))


def share(z: Any) -> Any:
    e = ops.exp(z)
    return ops.div(e, ops.reduce_sum(e, axes=(1,)))


def complement(z: Any) -> Any:
    p = ops.sigmoid(first(z))
    return ops.concat(ops.sub(1.0, p), p, axis=1)


ENDS = {
    "softmax": lambda z: ops.softmax(z, axis=-1),
    "moved": lambda z: ops.reshape(ops.softmax(ops.reshape(z, shape=(BATCH, 1, 4)), axis=2), shape=(BATCH, 4)),
    "transposed": lambda z: ops.transpose(ops.softmax(ops.transpose(z, perm=(1, 0)), axis=0), perm=(1, 0)),
    "other order": lambda z: ops.gather(ops.softmax(z, axis=-1), np.array([2, 0, 3, 1]), axis=1),
    "mean of two": lambda z: ops.mul(ops.add(ops.softmax(z, axis=-1), ops.softmax(ops.mul(z, 2.0), axis=-1)), 0.5),
    "complement": complement,
    "share": share,
    "exp of log": lambda z: ops.exp(ops.log_softmax(z, axis=-1)),
    "clipped": lambda z: ops.clip(ops.softmax(z, axis=-1), np.float32(1e-7), np.float32(1 - 1e-7)),
    "a little more": lambda z: ops.add(ops.softmax(z, axis=-1), 1e-8),
    "smoothed": lambda z: ops.add(ops.mul(0.9, ops.softmax(z, axis=-1)), 0.025),
    "softmax twice": lambda z: ops.softmax(ops.softmax(z, axis=-1), axis=-1),
}
BINARY = {
    "sigmoid": lambda z: ops.sigmoid(z),
    "flat": lambda z: flat(ops.sigmoid(z)),
    "chosen": lambda z: ops.gather(ops.sigmoid(z), np.array(0), axis=1),
    "clipped": lambda z: ops.clip(flat(ops.sigmoid(z)), np.float32(1e-6), np.float32(1 - 1e-6)),
    "mean": lambda z: ops.mul(ops.add(flat(ops.sigmoid(z)), flat(ops.sigmoid(ops.neg(z)))), 0.5),
    "less": lambda z: ops.sub(1.0, flat(ops.sigmoid(z))),
    "hard": lambda z: flat(ops.hard_sigmoid(z)),
}


@pytest.mark.parametrize("loss", ["cross_entropy", "nll"])
@pytest.mark.parametrize("end", ENDS)
def test_probabilities_of_classes_are_no_logits(end: str, loss: str, caplog: pytest.LogCaptureFixture) -> None:
    built = model(ENDS[end])
    p = df.Session(built).run(X)["p"].astype(np.float64)
    labels = CLASSES % p.shape[1]
    with caplog.at_level("INFO", "dataflow"):
        found = df.evaluate(built, {"x": X, "labels": labels}, loss)
    assert found["loss"] == pytest.approx(-np.log(p[np.arange(40), labels]).mean(), rel=1e-5)
    assert found["accuracy"] == np.mean(p.argmax(1) == labels)
    assert "'p': the loss reads" in caplog.text


@pytest.mark.parametrize("end", BINARY)
def test_probabilities_of_two_classes_are_no_logits(end: str) -> None:
    built = model(BINARY[end], 1)
    p = df.Session(built).run(X)["p"].astype(np.float64)
    labels = TRUE.reshape(p.shape)
    found = df.evaluate(built, {"x": X, "labels": labels}, "binary_cross_entropy")
    near = np.clip(p, np.finfo(np.float32).tiny, 1 - np.finfo(np.float32).epsneg)
    wanted = -(labels * np.log(near) + (1 - labels) * np.log1p(-near)).mean()
    assert found["loss"] == pytest.approx(wanted, rel=1e-4)
    if end != "mean":  # of which each is 1/2
        assert found["accuracy"] == np.mean((p > 0.5) == labels)


@pytest.mark.parametrize("end", ["flat", "clipped", "less"])
def test_gradients_are_those_of_the_probabilities(end: str) -> None:
    built = model(BINARY[end], 1)
    w = built.arrays()["w"].astype(np.float64)
    with df.Trainer(built, "binary_cross_entropy", df.optim.SGD(lr=1.0)) as trainer:
        trainer.step({"x": X, "labels": TRUE})
    p = 1 / (1 + np.exp(-(X @ w)))[:, 0]
    sign = -1 if end == "less" else 1
    p = 1 - p if end == "less" else p
    keep = (p > 1e-6) & (p < 1 - 1e-6) if end == "clipped" else np.ones(40, bool)
    slope = (X * (sign * (p - TRUE) * keep)[:, None]).mean(0)
    np.testing.assert_allclose(built.arrays()["w"][:, 0], w[:, 0] - slope, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "end",
    [
        lambda z: ops.sigmoid(z),  # sums of classes aren't 1
        lambda z: ops.gather(ops.softmax(z, axis=-1), np.array([0, 1, 2, 2]), axis=1),
        lambda z: ops.concat(ops.sub(1.0, p := ops.sigmoid(z)), p, axis=1),  # two columns of each
    ],
)
def test_what_may_be_no_distribution_is_named(end: Any, caplog: pytest.LogCaptureFixture) -> None:
    built = model(end)
    p = df.Session(built).run(X)["p"].astype(np.float64)
    found = df.evaluate(built, {"x": X, "labels": CLASSES}, "cross_entropy")
    wanted = (np.log(np.exp(p).sum(1)) - p[np.arange(40), CLASSES]).mean()
    assert found["loss"] == pytest.approx(wanted, rel=1e-5)
    assert "numbers are from 0 to 1" in caplog.text


@pytest.mark.parametrize(
    ("compute", "wanted"),
    [
        (lambda x: ops.add(ops.tanh(x), 2.0), (1, 3)),
        (lambda x: ops.sub(1.0, ops.sigmoid(x)), (0, 1)),
        (lambda x: ops.mul(ops.tanh(x), -3.0), (-3, 3)),
        (lambda x: ops.mul(ops.relu(x), 0.0), (0, 0)),
        (lambda x: ops.div(ops.sigmoid(x), -2.0), (-0.5, 0)),
        (lambda x: ops.div(1.0, ops.sigmoid(x)), (-np.inf, np.inf)),
        (lambda x: ops.clip(x, np.float32(-1), np.float32(2)), (-1, 2)),
        (lambda x: ops.clip(ops.relu(x), np.float32(-1), None), (0, np.inf)),
        (lambda x: ops.maximum(ops.neg(ops.exp(x)), -4.0), (-4, 0)),
        (lambda x: ops.where(ops.less(x, 0.0), ops.sigmoid(x), 5.0), (0, 5)),
        (lambda x: ops.concat(ops.sigmoid(x), ops.tanh(x), axis=0), (-1, 1)),
        (lambda x: ops.reduce_mean(ops.sigmoid(x), axes=(0,)), (0, 1)),
        (lambda x: ops.reduce_sum(ops.sigmoid(x), axes=(0,)), (-np.inf, np.inf)),
        (lambda x: ops.add(x, 1.0), (-np.inf, np.inf)),
    ],
)
def test_intervals_hold_what_is_computed(compute: Any, wanted: Any) -> None:
    g = df.GraphBuilder()
    g.output("y", compute(g.input("x", df.float32, (50,))))
    graph = g.build()
    low, high = Intervals(graph).of(graph.outputs["y"])
    assert (low, high) == wanted
    x = np.random.default_rng(2).normal(size=50).astype(np.float32) * 4
    y = df.Session(df.Model(graph)).run(x)["y"]
    assert low <= y.min() and y.max() <= high


def made(compute: Any, *shape: int) -> tuple[df.Graph, df.Value]:
    g = df.GraphBuilder()
    g.output("y", compute(g.input("x", df.float32, shape)))
    graph = g.build()
    return graph, graph.outputs["y"]


@pytest.mark.parametrize(
    "compute",
    [
        # sums along an axis that broadcasting moves; shares of other numbers; casts to integers
        lambda x: ops.div(ops.exp(x), ops.reduce_sum(ops.exp(x), axes=(1,), keepdims=False)),
        lambda x: ops.div(e := ops.exp(x), ops.reduce_sum(e, axes=(1,), keepdims=False)),
        lambda x: ops.cast(ops.cast(ops.mul(ops.sigmoid(x), 300.0), to=df.uint8), to=df.float32),
        lambda x: ops.clip(ops.sigmoid(x), np.float32(0), ops.reduce_max(ops.tanh(x), axes=(0, 1), keepdims=False)),
    ],
)
def test_what_only_looks_like_a_probability_is_none(compute: Any) -> None:
    graph, y = made(compute, 4, 4)
    assert not Intervals(graph).is_probability(y)


def test_deep_graphs_are_looked_at_in_linear_time() -> None:
    def halves(x: Any) -> Any:
        v = ops.softmax(x, axis=-1)
        for _ in range(60):  # 2^60 paths
            v = ops.mul(ops.add(v, v), 0.5)
        return v

    def shares(x: Any) -> Any:
        v = ops.softmax(x, axis=-1)
        for _ in range(400):  # deeper than Python's calls may be
            v = ops.div(v, ops.reduce_sum(v, axes=(1,)))
        return v

    graph, y = made(halves, 3, 4)
    assert Intervals(graph).is_distribution(y) in (True, False)
    graph, y = made(shares, 3, 4)
    assert Intervals(graph).is_probability(y) in (True, False)


@pytest.mark.parametrize("kind", [df.float16, df.bfloat16])
def test_probabilities_of_16_bits_have_finite_losses(kind: df.DType) -> None:
    built = model(lambda z: ops.cast(flat(ops.sub(1.0, ops.sigmoid(ops.mul(z, 5.0)))), to=kind), 1)
    p = df.Session(built).run(X)["p"].astype(np.float64)
    found = df.evaluate(built, {"x": X, "labels": TRUE}, "binary_cross_entropy")["loss"]
    p = np.clip(p, np.finfo(np.float32).tiny, 1 - np.finfo(np.float32).epsneg)
    assert found == pytest.approx(-(TRUE * np.log(p) + (1 - TRUE) * np.log1p(-p)).mean(), rel=1e-3)


def test_a_graph_for_some_inputs_reads_the_same() -> None:
    """As where shapes depend on data; the output's value has another name than the output."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 4))
    inner = ops.sub(1.0, ops.sigmoid(x), name="inner")
    g.output("p", inner)
    graph = g.build()
    for name in ("p", graph.outputs["p"].name):
        objective = Objective(df.Model(graph), "binary_cross_entropy", output=name)
        (read,) = objective.read
        other = objective.on(graph)
        assert other.outputs[read].name == objective.graph.outputs[read].name != "p"
        other.check()


def test_logits_that_are_from_0_to_1_stay_logits_for_some_inputs() -> None:
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 4))
    g.output("p", ops.sigmoid(ops.clip(x, np.float32(0), np.float32(1))))
    graph = g.build()
    objective = Objective(df.Model(graph), "binary_cross_entropy")
    assert objective.on(graph).outputs.keys() == objective.graph.outputs.keys()


def test_a_parameter_has_no_bounds() -> None:
    g = df.GraphBuilder()
    x, scale = g.input("x", df.float32, (3,)), g.parameter("scale", np.full(3, 0.5, np.float32))
    g.output("y", ops.mul(ops.sigmoid(x), scale))
    graph = g.build()
    assert not Intervals(graph).is_probability(graph.outputs["y"])
