"""Branches and loops about which the card decides: conditional nodes of graphs, and the same without graphs."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.autodiff import vjp_graph
from dataflow.testing.samples.control_flow import cell

ops = df.ops
DEVICES = ["cuda", "cpu"]
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


def body(name, build, *types):
    """A graph of inputs i0, i1, ... of these types, with the results of ``build``."""
    g = df.GraphBuilder(name)
    for k, value in enumerate(build(*(g.input(f"i{k}", *type_) for k, type_ in enumerate(types)))):
        g.output(f"r{k}", value)
    return g.build()


def branch(limit=0.0, then=None, otherwise=None):
    """Of x, where its sum is above ``limit``: exp(x) + 1; else -x. The condition is computed beside x."""
    g = df.GraphBuilder("branch")
    x = g.input("x", df.float32, X.shape)
    condition = ops.greater(ops.reduce_sum(x, axes=(0, 1), keepdims=0), limit)
    row = (df.float32, X.shape)
    bodies = (
        body("then", then or (lambda v: [ops.add(ops.exp(v), 1.0)]), row),
        body("else", otherwise or (lambda v: [ops.neg(v)]), row),
    )
    (y,) = g.add(ops.if_, (condition, ops.relu(x)), {}, bodies=bodies).outputs
    g.output("y", ops.mul(y, 2.0))
    return g.build()


def countdown(most=50):
    """Halves v until its largest is below 1, and counts; at most ``wanted`` times."""
    g = df.GraphBuilder("countdown")
    wanted, v = g.input("wanted", df.int64, ()), g.input("v", df.float32, (4,))

    def halve(i, go, v, numbers):
        new = ops.mul(v, 0.5)
        more = ops.greater(ops.reduce_max(new, axes=(0,), keepdims=0), 1.0)
        return more, new, ops.add(numbers, ops.cast(i, to=df.float32))

    made = body("halve", halve, (df.int64, ()), (df.bool_, ()), (df.float32, (4,)), (df.float32, ()))
    go = ops.greater(ops.reduce_max(v, axes=(0,), keepdims=0), 1.0)
    operands = (wanted, go, v, ops.reduce_sum(ops.mul(v, 0.0), axes=(0,), keepdims=0))
    results = g.add(ops.loop, operands, {"n_carries": 2, "max_iterations": most}, bodies=(made,)).outputs
    for name, value in zip(("count", "v", "numbers"), results, strict=True):
        g.output(name, value)
    return g.build()


def session_of(graph, registry, devices=DEVICES):
    return df.Session(df.Model(graph), devices=devices, registry=registry)


def agree(graph, registry, runs):
    """Runs agree with the CPU's bit for bit but for functions like exp; from the second one on each is one graph."""
    session, expected = session_of(graph, registry), session_of(graph, registry, ["cpu"])
    for feeds in runs:
        found = session.run(feeds)
        for name, array in expected.run(feeds).items():
            np.testing.assert_allclose(found[name], array, rtol=2e-6, atol=1e-6, err_msg=name)
    return session


# ---- branches -----------------------------------------------------------------------------------------


def test_a_branch_is_decided_in_a_graph(standin, standin_registry):
    session = agree(branch(), standin_registry, [{"x": x} for x in (X, X + 1, X - 1, X + 1)])
    graphs, launches = standin.graph_launches, standin.launches
    session.run({"x": X + 1}), session.run({"x": X - 1})
    assert standin.graph_launches == graphs + 2
    assert standin.launches == launches
    assert standin.was_launched("decide")


def test_a_branch_without_graphs_is_the_same(cuda, without_capture):
    agree(branch(), without_capture(cuda), [{"x": x} for x in (X + 1, X - 1, X + 1)])


def test_the_gradient_of_a_branch_is_decided_on_the_card(cuda):
    graph = branch()
    joint = vjp_graph(graph, [graph.inputs[0]])
    grad = np.linspace(1, 2, 12, dtype=np.float32).reshape(3, 4)
    agree(joint, cuda, [{"x": x, "grad.y": grad} for x in (X + 1, X - 1, X + 1, X - 1)])


def test_branches_in_branches_agree(cuda):
    """No device takes these by itself: they run where all of it can."""

    def nested(v):
        positive = ops.greater(ops.reduce_max(v, axes=(0, 1), keepdims=0), 2.0)
        row = (df.float32, X.shape)
        bodies = (body("a", lambda w: [ops.sin(w)], row), body("b", lambda w: [ops.cos(w)], row))
        return v.builder.add(ops.if_, (positive, v), {}, bodies=bodies).outputs

    agree(branch(then=nested), cuda, [{"x": x} for x in (X, X + 1, X - 1)])


def test_a_fault_in_a_body_names_its_branch_and_is_of_that_branch_alone(cuda):
    g = df.GraphBuilder("gathers")
    go, table, at = g.input("go", df.bool_, ()), g.input("table", df.float32, (4, 3)), g.input("at", df.int64, (2,))
    types = ((df.float32, (4, 3)), (df.int64, (2,)))
    bodies = (
        body("then", lambda t, i: [ops.relu(ops.gather(t, i, axis=0))], *types),
        body("else", lambda t, i: [ops.slice(t, starts=(0, 0), stops=(2, 3), steps=(1, 1))], *types),
    )
    g.output("y", g.add(ops.if_, (go, ops.relu(table), at), {}, bodies=bodies, name="choice").outputs[0])
    session = session_of(g.build(), cuda)
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    for _ in range(3):
        feeds = {"table": values, "at": np.array([1, 7])}
        np.testing.assert_array_equal(session.run({"go": np.array(False), **feeds})["y"], values[:2])
        with pytest.raises(df.InputError, match=r"choice.*kernel 'gather .*: 7 is out of range for size 4"):
            session.run({"go": np.array(True), **feeds})
        feeds["at"] = np.array([1, 3])
        np.testing.assert_array_equal(session.run({"go": np.array(True), **feeds})["y"], values[[1, 3]])


@pytest.mark.parametrize("what", ["conditional", "begin", "end", "launch"])
def test_branches_that_no_graph_can_have_are_launched_one_by_one(what, standin, standin_registry, caplog):
    graph = branch()
    session, other = session_of(graph, standin_registry), session_of(graph, standin_registry)
    session.run({"x": X}), other.run({"x": X})
    standin.fail(what, "decide" if what == "launch" else "", skip=int(what == "begin"))  # the body's, not the first
    graphs = standin.graph_launches
    expected = session_of(graph, standin_registry, ["cpu"])
    try:
        with caplog.at_level(logging.WARNING, "dataflow"):
            for x in (X + 1, X - 1, X + 1):
                np.testing.assert_allclose(
                    session.run({"x": x})["y"], expected.run({"x": x})["y"], rtol=2e-6, atol=1e-6
                )
    finally:
        standin.fail("")
    assert standin.graph_launches == graphs
    (said,) = [r.message for r in caplog.records if "CUDA graph" in r.message]
    assert "can't be made of branches and loops, so kernels are launched one by one" in said
    other.run({"x": X + 1})
    assert standin.graph_launches == graphs + 1  # the next segment is tried


# ---- loops --------------------------------------------------------------------------------------------

STARTS = [(9, 8.0), (2, 100.0), (9, 0.5), (0, 8.0), (9, 300.0)]


def feeds_of(wanted, largest):
    return {"wanted": np.array(wanted), "v": np.array([0.25, largest, 1, -3], np.float32)}


def test_a_loop_is_decided_in_a_graph(standin, standin_registry):
    session = agree(countdown(), standin_registry, [feeds_of(*start) for start in STARTS])
    graphs, launches = standin.graph_launches, standin.launches
    for start in STARTS:
        session.run(feeds_of(*start))
    assert standin.graph_launches == graphs + len(STARTS)
    assert standin.launches == launches + len(STARTS)  # what copies several results at once


def test_a_loop_without_graphs_is_the_same(cuda, without_capture):
    agree(countdown(), without_capture(cuda), [feeds_of(*start) for start in STARTS])


def test_more_iterations_than_a_loop_may_make_are_an_error(cuda):
    session = session_of(countdown(most=4), cuda)
    for _ in range(3):  # launched, captured, replayed
        with pytest.raises(df.InputError, match="more than 4 iterations; raise max_iterations"):
            session.run(feeds_of(9, 100.0))
        assert session.run(feeds_of(9, 16.0))["count"] == 4


# ---- scans --------------------------------------------------------------------------------------------


def recurrent(iterations):
    g = df.GraphBuilder("recurrent")
    h, total = g.input("h", df.float32, (2, 3)), g.input("total", df.float32, (2,))
    rows, w = g.input("rows", df.float32, (iterations, 2, 3)), g.input("w", df.float32, (3, 3))
    made = ops.scan(h, total, rows, w, n_carries=2, n_xs=1, reverse=0, bodies=(cell(),))
    for name, value in zip(("last", "sum", "y"), made, strict=False):
        g.output(name, value)
    return g.build()


def rows_of(iterations):
    random = np.random.default_rng(iterations)
    shapes = {"h": (2, 3), "total": (2,), "rows": (iterations, 2, 3), "w": (3, 3)}
    return {n: 0.5 * random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def test_a_scan_is_one_graph(standin, standin_registry):
    feeds = rows_of(7)
    session = agree(recurrent(7), standin_registry, [feeds] * 3)
    graphs, launches = standin.graph_launches, standin.launches
    session.run(feeds)
    assert (standin.graph_launches, standin.launches) == (graphs + 1, launches + 1)  # and a copy of results


def test_a_scan_of_more_nodes_than_a_graph_shall_have_is_launched(standin, standin_registry):
    g = df.GraphBuilder("sum")
    h, rows = g.input("h", df.float32, (2,)), g.input("rows", df.float32, (1 << 14 | 1, 2))
    adds = body("adds", lambda h, row: [ops.add(h, row)], (df.float32, (2,)), (df.float32, (2,)))
    g.output("h", ops.scan(h, rows, n_carries=1, n_xs=1, reverse=0, bodies=(adds,))[0])
    session = session_of(g.build(), standin_registry)
    graphs = standin.graph_launches
    for _ in range(2):
        found = session.run({"h": np.zeros(2, np.float32), "rows": np.ones((1 << 14 | 1, 2), np.float32)})["h"]
        np.testing.assert_array_equal(found, [1 << 14 | 1] * 2)
    assert standin.graph_launches == graphs


# ---- what bodies read ---------------------------------------------------------------------------------


def test_what_a_body_leaves_aside_is_not_transferred(cuda):
    """Its bytes were another operand's, and the larger one was copied last."""
    g = df.GraphBuilder("aside")
    rows, b = g.input("rows", df.float32, (8, 1)), g.input("b", df.float32, (1,))
    repeats = body("repeats", lambda row, b: [b], (df.float32, (1,)), (df.float32, (1,)))
    g.output("y", ops.selu(ops.scan(rows, b, n_carries=0, n_xs=1, reverse=0, bodies=(repeats,))[0]))
    graph = g.build()
    feeds = {"rows": np.arange(8, dtype=np.float32).reshape(8, 1), "b": np.full(1, 3, np.float32)}
    plan = agree(graph, cuda, [feeds] * 2).plan()
    assert "transfer b: cpu -> cuda" in str(plan)
    assert "transfer rows" not in str(plan)


def test_a_view_of_stored_data_that_a_body_gives_lies_in_its_memory(cuda):
    g = df.GraphBuilder("stored")
    rows = g.input("rows", df.float32, (3, 2))

    def stored(row):
        kept = row.builder.constant(np.array([[4.0, 5.0]], np.float32))
        return [ops.reshape(kept, shape=(2,)), ops.neg(row)]

    made = ops.scan(rows, n_carries=0, n_xs=1, reverse=0, bodies=(body("stored", stored, (df.float32, (2,))),))
    g.output("y", ops.add(made[0], made[1]))
    agree(g.build(), cuda, [{"rows": np.arange(6, dtype=np.float32).reshape(3, 2)}] * 2)
