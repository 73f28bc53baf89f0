"""Attention that never writes its scores: sizes at which its kernels differ, what isn't finite, and where plans take
it."""

from __future__ import annotations

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.testing import Sample, check_device
from dataflow.testing.sample import Operand
from dataflow_numpy.evaluate import evaluate
from tests.support import ops_of


def x(*shape):
    return Operand(shape)


def attention(batch, m, n, d, e, mask=None, **attributes):
    operands = (x(batch, m, d), x(batch, d, n), x(batch, n, e), *([x(*mask)] if mask else []))
    return Sample(ops.attention, operands, {"scale": d**-0.5, **attributes})


def gradient(batch, m, n, d, e, mask=None):
    sums = Operand((batch, m), kind="range", low=4, high=9)
    operands = (x(batch, m, e), x(batch, m, e), sums, x(batch, m, d), x(batch, d, n), x(batch, n, e))
    return Sample(ops.attention_grad, (*operands, *([x(*mask)] if mask else [])), {"scale": d**-0.5})


SAMPLES = {
    "two tiles of rows and of keys": attention(3, 128, 70, 4, 8, (128, 70)),
    "few rows, keys in splits": attention(2, 3, 700, 20, 12, (3, 700)),
    "keys in splits that don't end with them": attention(1, 70, 333, 8, 7),
    "large heads": attention(2, 70, 40, 100, 128, (1, 40)),
    "large heads, few rows, keys in splits": attention(1, 5, 400, 128, 70),
    "gradients of several tiles": gradient(2, 150, 140, 20, 36, (150, 140)),
    "gradients of large heads": gradient(1, 70, 75, 100, 128, (70, 1)),
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=SAMPLES)
def test_sizes_at_which_kernels_differ(sample, cuda):
    outcomes = list(check_device("cuda", registry=cuda, samples=[sample], complete=False, variants=("plain", "mixed")))
    assert outcomes
    assert not [o for o in outcomes if o.status != "passed"]


def attending(shapes, scale=0.5, safe=False):
    """A graph of attention with both results, and its inputs."""
    random = np.random.default_rng(3)
    g = df.GraphBuilder()
    given = [g.input(name, df.float32, shape) for name, shape in zip(("q", "kt", "v", "mask"), shapes, strict=True)]
    results = g.add(ops.attention, given, {"scale": scale, "safe": safe}).outputs
    for name, value in zip(("y", "logsum"), results, strict=True):
        g.output(name, value)
    return g.build(), {v.name: random.standard_normal(v.type.sizes).astype(np.float32) for v in given}


@pytest.mark.parametrize("safe", [False, True])
@pytest.mark.parametrize(("m", "n"), [(20, 7), (20, 150), (7, 600)])  # one tile, several, splits
def test_closed_rows_infinities_and_nan_are_as_in_the_reference(m, n, safe, cuda):
    graph, feeds = attending([(m, 4), (4, n), (n, 5), (m, n)], safe=safe)
    mask = feeds["mask"]
    mask[1] = -np.inf  # a closed row
    mask[2] = np.inf
    mask[3, n // 2] = np.nan
    mask[4] = np.float32(-3e38)
    mask[5, : n - 1] = -np.inf  # all but one
    mask[6, n - 1] = 3e38
    mask[0, : n // 2] = -np.inf
    session = df.Session(graph, devices=["cuda"], registry=cuda)
    assert ops_of(session.plan()) == ["attention"]
    for large in (False, True):
        if large:
            feeds["v"] = np.full((n, 5), 3e38, np.float32)  # their mean is finite
            feeds["v"][0, 1] = np.inf
        expected = evaluate(graph, feeds, dtype=np.float64)
        for name, found in session.run(feeds).items():
            with np.errstate(over="ignore"):
                reference = expected[name].astype(np.float32)
            np.testing.assert_array_equal(np.isnan(found), np.isnan(reference), name)
            fine = ~np.isnan(reference) & ~(np.abs(reference) > 3.3e38)
            np.testing.assert_allclose(found[fine], reference[fine], rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(("precision", "error"), [("float32", 1e-5), ("tf32", 2e-3)])
def test_safe_rows_without_weights_have_no_gradient(precision, error, cuda):
    """Closed rows, and such with a NaN among the scores, which q and k alone cause too."""
    m, n, d = 40, 70, 8
    g = df.GraphBuilder()
    shapes = {"q": (m, d), "kt": (d, n), "v": (n, d), "mask": (m, n), "dy": (m, d)}
    given = [g.input(name, df.float32, shape) for name, shape in shapes.items()]
    y, logsum = g.add(ops.attention, given[:4], {"safe": True}).outputs
    g.output("y", y)
    gradients = ops.attention_grad(given[4], y, logsum, *given[:4], safe=True)
    for name, value in zip(("dq", "dk", "dv"), gradients, strict=True):
        g.output(name, value)
    graph = g.build()
    random = np.random.default_rng(5)
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    feeds["mask"][:3] = -np.inf
    feeds["mask"][35, 4] = np.nan
    session = df.Session(graph, devices=["cuda"], registry=cuda, precision=precision)
    assert ops_of(session.plan()) == ["attention", "attention_grad"]
    expected = evaluate(graph, feeds, dtype=np.float64)
    for name, found in session.run(feeds).items():
        assert np.isfinite(expected[name]).all()
        assert np.abs(found - expected[name]).max() <= error * np.abs(expected[name]).max(), name
        if name in ("y", "dq"):
            np.testing.assert_array_equal(found[[0, 1, 2, 35]], 0)


def test_heads_that_fit_in_no_tile_are_computed_in_smaller_ops(cuda):
    graph, feeds = attending([(9, 130), (130, 7), (7, 129), (9, 7)])
    session = df.Session(graph, devices=["cuda"], registry=cuda)
    assert "attention" not in ops_of(session.plan())
    expected = evaluate(graph, feeds, dtype=np.float64)
    for name, found in session.run(feeds).items():
        np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-5)


# batch, rows, keys, sizes of a head, mask
TENSORS = {
    "one tile": (2, 20, 30, 16, 24, None),
    "several tiles, transposed operands": (2, 75, 130, 36, 19, (75, 130)),
    "one mask for all rows": (3, 128, 20, 8, 4, (1, 20)),
    "large heads": (1, 70, 75, 100, 128, (70, 1)),
    "large heads, keys in splits": (1, 17, 150, 72, 65, (17, 150)),
}


@pytest.mark.parametrize(("precision", "error"), [("tf32", 2e-3), ("bf16", 1.5e-2)])
@pytest.mark.parametrize("case", TENSORS.values(), ids=TENSORS)
def test_lower_precision_is_taken_where_it_is_allowed(case, precision, error, cuda):
    """Relative to the largest of each result; gradients too."""
    batch, m, n, d, e, mask = case
    random = np.random.default_rng(6)
    g = df.GraphBuilder()
    q, v, dy = (g.input(name, df.float32, (batch, *s)) for name, s in (("q", (m, d)), ("v", (n, e)), ("dy", (m, e))))
    if n > 100 > m:  # a view of rows of keys
        kt = ops.transpose(g.input("k", df.float32, (batch, n, d)), perm=(0, 2, 1))
    else:
        kt = g.input("kt", df.float32, (batch, d, n))
    added = [g.input("mask", df.float32, mask)] if mask else []
    node = g.add(ops.attention, (q, kt, v, *added), {"scale": d**-0.5})
    y, logsum = node.outputs
    g.output("y", y)
    g.output("logsum", logsum)
    found = ops.attention_grad(dy, y, logsum, q, kt, v, *added, scale=d**-0.5)
    for name, value in zip(("dq", "dk", "dv"), found, strict=True):
        g.output(name, value)
    graph = g.build()
    feeds = {x.name: random.standard_normal(x.type.sizes).astype(np.float32) for x in graph.inputs}
    if mask:
        feeds["mask"][0, : mask[1] // 2] = -np.inf
    expected = evaluate(graph, feeds, dtype=np.float64)
    session = df.Session(graph, devices=["cuda"], registry=cuda, precision=precision)
    first = session.run(feeds)
    exact = df.Session(graph, devices=["cuda"], registry=cuda).run(feeds)
    for name, array in expected.items():
        most = np.abs(array[np.isfinite(array)]).max()
        assert np.abs(first[name] - array).max() <= error * most, name
        assert np.abs(exact[name] - array).max() <= 1e-5 * most, name
        assert not np.array_equal(first[name], exact[name]), name
    for name, array in session.run(feeds).items():
        np.testing.assert_array_equal(array, first[name])


def joint_gradients(n, d, results, summed):
    """A graph of the first gradients of attention, one behind the other, and of their sums."""
    batch, heads = 2, 3
    g = df.GraphBuilder()
    q, k, v, dy = (g.input(name, df.float32, (batch, heads, n, d)) for name in ("q", "k", "v", "dy"))
    mask = np.where(np.tri(n, dtype=bool), 0, -np.inf).astype(np.float32)
    operands = (q, ops.transpose(k, perm=(0, 1, 3, 2)), v, mask)
    y, logsum = g.add(ops.attention, operands, {"scale": 0.2}).outputs
    found = ops.attention_grad(dy, y, logsum, *operands, scale=0.2)[:results]
    rows_first = [ops.transpose(one, perm=(0, 2, 1, 3)) for one in found]
    columns = [ops.reshape(one, shape=(batch, n, 1, heads, d)) for one in rows_first]
    joint = ops.reshape(ops.concat(*columns, axis=2), shape=(batch, n, results * heads * d))
    g.output("joint", joint)
    if summed:
        g.output("sums", ops.reduce_sum(joint, axes=(0, 1), keepdims=True))
    return g.build()


@pytest.mark.parametrize(("precision", "error"), [("float32", 1e-5), ("tf32", 2e-3), ("bf16", 1.5e-2)])
@pytest.mark.parametrize(("n", "d", "results"), [(150, 20, 3), (70, 72, 2)])
def test_gradients_of_biases_are_summed_with_those_of_attention(n, d, results, precision, error, cuda):
    """The gradients are those without sums bit for bit; also where not all sums are read."""
    how = {"devices": ["cuda"], "registry": cuda, "precision": precision}
    graph = joint_gradients(n, d, results, summed=True)
    session = df.Session(graph, **how)
    assert "attention_grad_sums" in ops_of(session.plan())
    assert "reduce_sum" not in ops_of(session.plan())
    random = np.random.default_rng(4)
    feeds = {x.name: random.standard_normal(x.type.sizes).astype(np.float32) for x in graph.inputs}
    found = session.run(feeds)
    alone = df.Session(joint_gradients(n, d, results, summed=False), **how).run(feeds)
    np.testing.assert_array_equal(found["joint"], alone["joint"])
    of_them = found["joint"].astype(np.float64).sum((0, 1))
    np.testing.assert_allclose(found["sums"][0, 0], of_them, rtol=1e-5, atol=1e-6 * np.abs(of_them).max())
    expected = evaluate(graph, feeds, dtype=np.float64)["sums"]
    assert np.abs(found["sums"] - expected).max() <= error * np.abs(expected).max()


@pytest.mark.parametrize(("precision", "error"), [("tf32", 2e-3), ("bf16", 1.5e-2)])
def test_heads_may_share_keys_and_values_and_operands_may_be_views(precision, error, cuda):
    """Each matrix is rounded once; several tiles; a batch whose axes have other strides; a scale below 0."""
    batch, heads, m, n, d, e = 2, 3, 70, 100, 12, 10
    g = df.GraphBuilder()
    rows = g.input("q", df.float32, (batch, m, heads, d))
    kt = g.input("kt", df.float32, (batch, 1, d, n))
    v = g.input("v", df.float32, (n, e))
    mask = g.input("mask", df.float32, (heads, 1, n))
    dy = g.input("dy", df.float32, (batch, heads, m, e))
    operands = (ops.transpose(rows, perm=(0, 2, 1, 3)), kt, v, mask)
    y, logsum = g.add(ops.attention, operands, {"scale": -0.3}).outputs
    found = ops.attention_grad(dy, y, logsum, *operands, scale=-0.3)
    for name, value in zip(("y", "logsum", "dq", "dk", "dv"), (y, logsum, *found), strict=True):
        g.output(name, value)
    graph = g.build()
    random = np.random.default_rng(8)
    feeds = {x.name: random.standard_normal(x.type.sizes).astype(np.float32) for x in graph.inputs}
    session = df.Session(graph, devices=["cuda"], registry=cuda, precision=precision)
    expected = evaluate(graph, feeds, dtype=np.float64)
    for name, array in session.run(feeds).items():
        assert np.abs(array - expected[name]).max() <= error * np.abs(expected[name]).max(), name


def test_values_of_any_size_have_a_finite_mean_at_lower_precision(cuda):
    graph, feeds = attending([(20, 4), (4, 150), (150, 5), (20, 150)])
    feeds["v"] = np.full((150, 5), 3e38, np.float32)
    for precision, error in (("tf32", 2e-3), ("bf16", 1.5e-2)):
        session = df.Session(graph, devices=["cuda"], registry=cuda, precision=precision)
        np.testing.assert_allclose(session.run(feeds)["y"], 3e38, rtol=error)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("lowest", [-np.inf, np.finfo(np.float32).min, -10000.0])
def test_tiles_that_a_mask_closes(lowest, precision, cuda):
    """They are left out only where that changes nothing: a NaN behind the mask is as in the reference."""
    n, d = 200, 8
    random = np.random.default_rng(7)
    g = df.GraphBuilder()
    q, k, v, dy = (g.input(name, df.float32, (n, d)) for name in ("q", "k", "v", "dy"))
    mask = g.input("mask", df.float32, (n, n))
    operands = (q, ops.transpose(k, perm=(1, 0)), v, mask)
    y, logsum = g.add(ops.attention, operands, {"scale": 0.3}).outputs
    for name, value in zip(
        ("y", "logsum", "dq", "dk", "dv"),
        (y, logsum, *ops.attention_grad(dy, y, logsum, *operands, scale=0.3)),
        strict=True,
    ):
        g.output(name, value)
    graph = g.build()
    session = df.Session(graph, devices=["cuda"], registry=cuda, precision=precision)
    feeds = {x.name: random.standard_normal(x.type.sizes).astype(np.float32) for x in graph.inputs}
    feeds["mask"] = np.where(np.tri(n) > 0, 0, lowest).astype(np.float32)
    expected = evaluate(graph, feeds, dtype=np.float64)
    for name, found in session.run(feeds).items():
        most = np.abs(expected[name]).max()
        assert np.abs(found - expected[name]).max() <= (1e-5 if precision == "float32" else 1.5e-2) * most, name
    for name, wrong in (("k", np.nan), ("v", np.inf), ("dy", np.inf), ("q", np.nan)):
        changed = {**feeds, name: feeds[name].copy()}
        changed[name][n - 3 if name in "kv" else 3] = wrong  # one row, which the mask hides from most
        reference = evaluate(graph, changed, dtype=np.float64)
        for result, found in session.run(changed).items():
            np.testing.assert_array_equal(np.isnan(found), np.isnan(reference[result]), f"{name} {result}")


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_threads_in_reverse_order_give_the_same_at_lower_precision(precision, standin, standin_registry):
    """Operands are rounded once, by a kernel of their own; what reads them has its barriers."""
    m, n, d = 70, 200, 8
    g = df.GraphBuilder()
    shapes = {"q": (m, d), "kt": (d, n), "v": (n, d), "mask": (m, n), "dy": (m, d)}
    q, kt, v, mask, dy = (g.input(name, df.float32, shape) for name, shape in shapes.items())
    y, logsum = g.add(ops.attention, (q, kt, v, mask), {"scale": 0.3}).outputs
    found = ops.attention_grad(dy, y, logsum, q, kt, v, mask, scale=0.3)
    for name, value in zip(("y", "dq", "dk", "dv"), (y, *found), strict=True):
        g.output(name, value)
    random = np.random.default_rng(9)
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    feeds["mask"] = np.where(np.tri(m, n) > 0, 0, -np.inf).astype(np.float32)
    session = df.Session(g.build(), devices=["cuda"], registry=standin_registry, precision=precision)
    expected = session.run(feeds)
    assert standin.was_launched("prepack")
    standin.reverse(True)
    try:
        for name, array in session.run(feeds).items():
            np.testing.assert_array_equal(array, expected[name], name)
    finally:
        standin.reverse(False)


HEADS, ROWS, WIDTH = 2, 20, 24


def network():
    """Attention of several heads between products, over a causal mask."""
    random = np.random.default_rng(4)
    g = df.GraphBuilder()
    given = g.input("x", df.float32, ("batch", ROWS, WIDTH))

    def dense(value, name, width=WIDTH):
        weight = g.parameter(name, (random.standard_normal((WIDTH, width)) * 0.3).astype(np.float32))
        return ops.matmul(value, weight)

    def heads(value):
        split = ops.reshape(value, shape=(*value.shape[:2], HEADS, WIDTH // HEADS))
        return ops.transpose(split, perm=(0, 2, 1, 3))

    q, k, v = (heads(dense(given, name)) for name in ("query", "key", "value"))
    scores = ops.div(ops.matmul(q, ops.transpose(k, perm=(0, 1, 3, 2))), 3.0)
    mask = g.constant(np.where(np.tri(ROWS) > 0, 0, np.finfo(np.float32).min).astype(np.float32), "mask")
    y = ops.matmul(ops.softmax(ops.add(scores, mask), axis=-1), v)
    y = ops.reshape(ops.transpose(y, perm=(0, 2, 1, 3)), shape=(given.shape[0], ROWS, WIDTH))
    g.output("y", dense(ops.reduce_mean(ops.tanh(dense(y, "out")), axes=(1,), keepdims=0), "classes", 5))
    return g.build()


def test_a_network_runs_and_trains_through_it(cuda):
    graph = network()
    random = np.random.default_rng(5)
    data = {"x": random.standard_normal((3, ROWS, WIDTH)).astype(np.float32), "labels": np.arange(3)}
    results = {}
    for device in ("cpu", "cuda"):
        model = df.Model(graph)
        session = df.Session(model, devices=[device], registry=cuda)
        assert "attention" in ops_of(session.plan({"x": data["x"].shape}))
        y = session.run({"x": data["x"]})["y"]
        with df.Trainer(model, optimizer=df.optim.SGD(lr=0.5), devices=[device], metrics=[], registry=cuda) as trainer:
            losses = [trainer.step(data) for _ in range(4)]
            plan = trainer.programs.plans()["step"]
            assert {"attention", "attention_grad"} <= {*ops_of(plan)}
            assert "softmax" not in ops_of(plan)
        results[device] = [y, losses, *(p.array for p in model.parameters.values())]
    for found, expected in zip(results["cuda"], results["cpu"], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
