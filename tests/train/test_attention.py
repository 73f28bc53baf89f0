"""Training through attention: as one op with a gradient of its own, which keeps no scores for backward."""

import numpy as np
import pytest

import dataflow as df
from dataflow.planning.verify import check_plan
from tests.support import ops_of

ops = df.ops
ROWS, WIDTH, HEADS = 48, 32, 2


def heads(x):
    split = ops.reshape(x, shape=(*x.shape[:2], HEADS, x.shape[2] // HEADS))
    return ops.transpose(split, perm=(0, 2, 1, 3))


def network(bias=None, drop=0.0, mask=False):
    """Attention between dense layers, whose classes are those of the mean row; perhaps with a trained bias."""
    random = np.random.default_rng(4)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", ROWS, WIDTH))

    def dense(value, name, width=WIDTH):
        weight = g.parameter(name, (random.standard_normal((WIDTH, width)) * 0.3).astype(np.float32))
        return ops.matmul(value, weight)

    q, k, v = (heads(dense(x, name)) for name in ("query", "key", "value"))
    scores = ops.div(ops.matmul(q, ops.transpose(k, perm=(0, 1, 3, 2))), 4.0)
    if bias is not None:
        scores = ops.add(scores, g.parameter("bias", random.standard_normal(bias).astype(np.float32)))
    if mask:
        scores = ops.add(scores, g.input("mask", df.float32, ("batch", 1, 1, ROWS)))
    weights = ops.softmax(scores, axis=-1)
    if drop:
        weights = ops.dropout(weights, ratio=drop)
    y = ops.transpose(ops.matmul(weights, v), perm=(0, 2, 1, 3))
    y = ops.tanh(dense(ops.reshape(y, shape=(x.shape[0], ROWS, WIDTH)), "out"))
    g.output("y", dense(ops.reduce_mean(y, axes=(1,), keepdims=0), "head", 10))
    return g.build()


def batch(size=3, mask=False):
    random = np.random.default_rng(8)
    made = {"x": random.standard_normal((size, ROWS, WIDTH)).astype(np.float32), "labels": np.arange(size) % 10}
    if mask:
        made["mask"] = np.where(random.random((size, 1, 1, ROWS)) < 0.3, -10000, 0).astype(np.float32)
    return made


def trained(graph, data, steps=4, **options):
    """The losses, the parameters afterwards, and the plan of a step."""
    model = df.Model(graph)
    with df.Trainer(model, optimizer=df.optim.SGD(lr=0.5), devices=["cpu"], metrics=[], **options) as trainer:
        losses = [trainer.step(data) for _ in range(steps)]
        plan = trainer.programs.plans()["step"]
        check_plan(plan)
        return losses, {name: p.array.copy() for name, p in model.parameters.items()}, plan


@pytest.mark.parametrize(
    ("bias", "mask"), [(None, False), (None, True), ((HEADS, ROWS, ROWS), False), ((ROWS,), False), ((ROWS, 1), False)]
)
def test_gradients_are_those_of_the_decomposition(bias, mask):
    graph, data = network(bias, mask=mask), batch(mask=mask)
    losses, arrays, plan = trained(graph, data)
    expected, others, _ = trained(graph, data, fuse=False)
    assert {"attention", "attention_grad"} <= {*ops_of(plan)}
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for name, array in arrays.items():
        np.testing.assert_allclose(array, others[name], rtol=1e-4, atol=1e-6)


def test_scores_are_not_kept_for_backward():
    size = 16
    scores, sums = (4 * size * HEADS * ROWS * n for n in (ROWS, 1))
    _, _, plan = trained(network(), batch(size), steps=1)
    _, _, apart = trained(network(), batch(size), steps=1, fuse=False)
    assert "softmax" not in ops_of(plan)
    kept, others = (of.ranges["forward"].alive_bytes for of in (plan, apart))
    assert kept <= others - scores + sums


@pytest.mark.parametrize("threads", [1, 2])
def test_the_same_bits_from_run_to_run(threads):
    runs = [trained(network(), batch(), threads=threads) for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    for name, array in runs[0][1].items():
        np.testing.assert_array_equal(array, runs[1][1][name])


def test_dropout_between_softmax_and_product_stays_apart_when_it_drops():
    graph, data = network(drop=0.5), batch()
    _, _, plan = trained(graph, data, dropout=True, seed=1)
    assert "attention" not in ops_of(plan)
    assert "dropout" in ops_of(plan)
    _, _, plan = trained(graph, data)
    assert "attention_grad" in ops_of(plan)


def test_a_device_without_the_kernels_runs_the_decomposition(remote):
    """The example device has neither; what it lacks goes to the CPU in parts."""
    graph, data = network(), batch()
    model = df.Model(graph)
    with df.Trainer(model, optimizer=df.optim.SGD(lr=0.5), devices=["remote", "cpu"], registry=remote) as trainer:
        losses = [trainer.step(data) for _ in range(3)]
    expected, _, _ = trained(graph, data, steps=3)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


def test_the_log_sums_have_a_gradient_too():
    """By differences in float64, through both results."""
    from dataflow.passes.autodiff import vjp_graph
    from dataflow_numpy.evaluate import evaluate

    g = df.GraphBuilder()
    q, kt, v, mask = (
        g.input(n, df.float32, s) for n, s in zip("qkvm", ((2, 3, 4), (2, 4, 5), (2, 5, 6), (3, 5)), strict=True)
    )
    node = g.add(ops.attention, (q, kt, v, mask), {"scale": 0.7})
    for name, value in zip(("y", "logsum"), node.outputs, strict=True):
        g.output(name, value)
    graph = g.build()
    random = np.random.default_rng(2)
    feeds = {x.name: random.standard_normal(x.type.sizes) for x in graph.inputs}
    seeds = {name: random.standard_normal(x.type.sizes) for name, x in graph.outputs.items()}
    found = evaluate(
        vjp_graph(graph, graph.inputs), feeds | {f"grad.{n}": a for n, a in seeds.items()}, dtype=np.float64
    )
    for name, array in feeds.items():
        direction = random.standard_normal(array.shape)
        sides = [evaluate(graph, feeds | {name: array + s * 1e-6 * direction}, dtype=np.float64) for s in (1, -1)]
        difference = sum(((sides[0][n] - sides[1][n]) * seeds[n]).sum() for n in seeds) / 2e-6
        assert abs((found[f"grad.{name}"] * direction).sum() - difference) < 1e-6 * max(1, abs(difference))
