"""The gradient of a scan by its captures: weights of products are taken out of the loop, and nothing else changes."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.autodiff import vjp_graph
from dataflow.planning.verify import check_plan
from dataflow_numpy.evaluate import evaluate

ops = df.ops
RANDOM = np.random.default_rng(7)
W, V = (0.4 * RANDOM.standard_normal(s) for s in ((4, 4), (8, 4)))


def rows_of(x, begin, end):
    return ops.slice(x, starts=(begin, 0), stops=(end, x.type.shape[1]), steps=(1, 1))


def transposed(x):
    return ops.transpose(x, perm=(1, 0))


# What an iteration makes of the state h, the row x and the captures w (4, 4) and v (8, 4).
CELLS = {
    "a weight": lambda h, x, w, v: ops.tanh(h @ w + x),
    "transposed": lambda h, x, w, v: ops.tanh(h @ transposed(w) + x),
    "a slice of it": lambda h, x, w, v: ops.tanh(h @ rows_of(v, 4, 8) + x),
    "two slices": lambda h, x, w, v: ops.tanh(h @ rows_of(v, 0, 4)) * ops.sigmoid(x @ transposed(rows_of(v, 2, 6))),
    "twice": lambda h, x, w, v: ops.tanh((ops.tanh(h @ w) + x) @ w),
    "a weight and a summand": lambda h, x, w, v: ops.tanh(h @ w + ops.reduce_sum(w, axes=(0,), keepdims=0) + x),
    "computed": lambda h, x, w, v: ops.tanh(h @ (w * ops.tanh(w)) + x),
    "on the left": lambda h, x, w, v: ops.tanh(transposed(w @ transposed(h)) + x),
    "of rows alone": lambda h, x, w, v: ops.tanh(x @ w + h),
    "none": lambda h, x, w, v: ops.tanh(h * x),
}


def body(cell, batch):
    g = df.GraphBuilder("body")
    h, x = (g.input(n, df.float32, (batch, 4)) for n in "hx")
    w, v = g.input("w", df.float32, (4, 4)), g.input("v", df.float32, (8, 4))
    after = cell(h, x, w, v)
    g.output("after", after)
    g.output("row", ops.mul(after, x))
    return g.build()


def graph(cell, iterations, batch, reverse=0):
    g = df.GraphBuilder("scan")
    h, x = g.input("h", df.float32, (batch, 4)), g.input("x", df.float32, (iterations, batch, 4))
    w, v = g.input("w", df.float32, (4, 4)), g.input("v", df.float32, (8, 4))
    made = ops.scan(h, x, w, v, n_carries=1, n_xs=1, reverse=reverse, bodies=(body(cell, batch),))
    g.output("last", made[0])
    g.output("rows", made[1])
    return g.build()


def unrolled(cell, iterations, batch, reverse=0):
    g = df.GraphBuilder("unrolled")
    h, x = g.input("h", df.float32, (batch, 4)), g.input("x", df.float32, (iterations, batch, 4))
    w, v = g.input("w", df.float32, (4, 4)), g.input("v", df.float32, (8, 4))
    rows = {}
    for t in reversed(range(iterations)) if reverse else range(iterations):
        row = ops.reshape(x[t : t + 1], shape=(batch, 4))
        h = cell(h, row, w, v)
        rows[t] = ops.reshape(ops.mul(h, row), shape=(1, batch, 4))
    g.output("last", h)
    g.output("rows", ops.concat(*[rows[t] for t in range(iterations)], axis=0))
    return g.build()


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("batch", [2, 40])  # few rows per iteration: out of the loop; many: summed in it
@pytest.mark.parametrize("name", CELLS)
def test_gradients_are_those_of_the_unrolled_graph(name, batch, reverse):
    iterations = 5
    random = np.random.default_rng(batch)
    feeds = {
        "h": random.standard_normal((batch, 4)),
        "x": random.standard_normal((iterations, batch, 4)),
        "w": W,
        "v": V,
    }
    feeds |= {
        "grad.last": random.standard_normal((batch, 4)),
        "grad.rows": random.standard_normal((iterations, batch, 4)),
    }
    loop, plain = (vjp_graph(g, list(g.inputs)) for g in (
        graph(CELLS[name], iterations, batch, reverse), unrolled(CELLS[name], iterations, batch, reverse)))  # fmt: skip
    expected = evaluate(plain, feeds, dtype=np.float64)
    found = evaluate(loop, feeds, dtype=np.float64)
    single = {n: a.astype(np.float32) for n, a in feeds.items()}
    session = df.Session(loop, devices=["cpu"])
    check_plan(session.plan({n: a.shape for n, a in single.items()}))
    native = session.run(single)
    for key in ("grad.h", "grad.x", "grad.w", "grad.v"):
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-12, atol=1e-12, err_msg=key)
        np.testing.assert_allclose(native[key], expected[key], rtol=1e-4, atol=1e-4, err_msg=key)


def carried(loop):
    """Shapes that the backward scan carries."""
    (node,) = [n for n in loop.nodes if n.op.name == "scan" and n.bodies[0].name.endswith("backward")]
    return [v.type.sizes for v in node.inputs[: node.attributes["n_carries"]]]


def test_weights_are_not_summed_iteration_by_iteration():
    def of(name, batch):
        g = graph(CELLS[name], 5, batch)
        return carried(vjp_graph(g, [v for v in g.inputs if v.name in ("w", "v")]))

    assert of("two slices", 2) == [(2, 4)]
    assert of("a weight", 2) == [(2, 4)]
    assert (4, 4) in of("a weight", 40)
    assert (4, 4) in of("a weight and a summand", 2)


def test_no_iterations_give_zeros():
    g = graph(CELLS["a weight"], 0, 2)
    joint = vjp_graph(g, list(g.inputs))
    feeds = {v.name: np.ones(v.type.sizes, np.float32) for v in joint.inputs}
    found = df.Session(joint, devices=["cpu"]).run(feeds)
    assert not found["grad.w"].any()
    np.testing.assert_array_equal(found["grad.h"], feeds["grad.last"])


def again(graph):
    """The gradients' gradients, by all inputs of ``graph``."""
    names = [v.name for v in graph.inputs]
    first = vjp_graph(graph, list(graph.inputs))
    first = dataclasses.replace(first, outputs={f"d{name}": first.outputs[f"grad.{name}"] for name in names})
    return vjp_graph(first, [v for v in first.inputs if v.name in names])


@pytest.mark.parametrize("batch", [2, 40])
@pytest.mark.parametrize("name", CELLS)
def test_second_derivatives_are_those_of_the_unrolled_graph(name, batch):
    loop, plain = (again(make(CELLS[name], 3, batch)) for make in (graph, unrolled))
    random = np.random.default_rng(0)
    feeds = {v.name: random.standard_normal(v.type.sizes) for v in loop.inputs} | {"w": W, "v": V}
    found, expected = (evaluate(g, feeds, dtype=np.float64) for g in (loop, plain))
    for key in ("grad.h", "grad.x", "grad.w", "grad.v"):
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-11, atol=1e-11, err_msg=key)


def test_a_capture_may_be_computed_from_another():
    """What passes between them outside the loop is counted once."""

    def with_scan(h, x, w, other):
        g = df.GraphBuilder("body")
        inner = [
            g.input(n, df.float32, shape)
            for n, shape in (("h", (2, 4)), ("x", (2, 4)), ("w", (4, 4)), ("other", (4, 4)))
        ]
        g.output("after", ops.tanh(inner[0] @ inner[2] + inner[1] @ inner[3]))
        return ops.scan(h, x, w, other, n_carries=1, n_xs=1, bodies=(g.build(),))[0]

    def without(h, x, w, other):
        for t in range(3):
            h = ops.tanh(h @ w + ops.reshape(x[t : t + 1], shape=(2, 4)) @ other)
        return h

    random = np.random.default_rng(0)
    feeds = {"h": random.standard_normal((2, 4)), "x": random.standard_normal((3, 2, 4)), "w": W}
    for derived in (transposed, ops.tanh, lambda w: w):
        results = []
        for make in (with_scan, without):
            g = df.GraphBuilder()
            h, x, w = (g.input(n, df.float32, a.shape) for n, a in feeds.items())
            g.output("y", make(h, x, w, derived(w)))
            joint = vjp_graph(g.build(), [h, x, w])
            results.append(evaluate(joint, {**feeds, "grad.y": np.ones((2, 4))}, dtype=np.float64))
        for key in ("grad.h", "grad.x", "grad.w"):
            np.testing.assert_allclose(results[0][key], results[1][key], rtol=1e-12, atol=1e-12, err_msg=key)


# Rows of a sequence that lie otherwise than one behind the other in memory: starts, stops, steps of a slice of x.
VIEWS = {
    "flipped": ((5, 0), (-1, 4), (-1, 1)),
    "every other": ((0, 0), (6, 4), (2, 1)),
    "every other, flipped": ((4, 0), (-1, 4), (-2, 1)),
    "flipped rows": ((1, 3), (5, -1), (1, -1)),
    "flipped both ways": ((4, 3), (-1, -1), (-1, -1)),
}


def running():
    """The state, and each row times the state after it."""
    g = df.GraphBuilder("body")
    h, x = (g.input(n, df.float32, (4,)) for n in "hx")
    after = ops.tanh(h + x)
    g.output("after", after)
    g.output("row", ops.mul(after, x))
    return g.build()


@pytest.mark.parametrize("reverse", [0, 1])
@pytest.mark.parametrize("view", [*VIEWS, "repeated", "of a column"])
def test_a_sequence_can_be_any_view(view, reverse):
    """Of the values and of the gradients, which run through the rows in the other direction."""
    g = df.GraphBuilder("viewed")
    source = ops.sin(g.input("x", df.float32, (6, 4)))
    if view == "repeated":
        x = ops.broadcast_to(ops.slice(source, starts=(2, 0), stops=(3, 4), steps=(1, 1)), shape=(5, 4))
    elif view == "of a column":
        x = ops.broadcast_to(ops.slice(source, starts=(5, 1), stops=(-1, 2), steps=(-1, 1)), shape=(6, 4))
    else:
        starts, stops, steps = VIEWS[view]
        x = ops.slice(source, starts=starts, stops=stops, steps=steps)
    made = ops.scan(g.input("h", df.float32, (4,)), x, n_carries=1, n_xs=1, reverse=reverse, bodies=(running(),))
    g.output("last", made[0])
    g.output("rows", made[1])
    graph = g.build()
    joint = vjp_graph(graph, list(graph.inputs))
    random = np.random.default_rng(3)
    feeds = {v.name: random.standard_normal(v.type.sizes).astype(np.float32) for v in joint.inputs}
    expected = evaluate(joint, feeds, dtype=np.float64)
    session = df.Session(joint, devices=["cpu"])
    check_plan(session.plan({n: a.shape for n, a in feeds.items()}))
    found = session.run(feeds)
    for key, array in expected.items():
        np.testing.assert_allclose(found[key], array, rtol=1e-5, atol=1e-5, err_msg=key)
