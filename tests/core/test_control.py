"""Nodes with bodies, and values that are computed in their final place."""

import numpy as np
import pytest

import dataflow as df
from dataflow.autodiff import vjp_graph
from dataflow.check import PlanViolation, check_plan
from dataflow.testing.samples import cell
from dataflow_numpy.evaluate import evaluate

ops = df.ops


def recurrent(trips, reverse=0):
    """A scan over ``trips`` rows of two carried values."""
    g = df.GraphBuilder("recurrent")
    h, total = g.input("h", df.float32, (2, 3)), g.input("total", df.float32, (2,))
    rows, w = g.input("rows", df.float32, (trips, 2, 3)), g.parameter("w", W)
    made = ops.scan(h, total, rows, w, n_carries=2, n_xs=1, reverse=reverse, bodies=(cell(),))
    for name, value in zip(("last", "sum", "y"), made, strict=False):
        g.output(name, value)
    return g.build()


W = (0.5 * np.random.default_rng(0).standard_normal((3, 3))).astype(np.float32)


def unrolled(trips):
    """The same without a loop."""
    g = df.GraphBuilder("unrolled")
    h, total = g.input("h", df.float32, (2, 3)), g.input("total", df.float32, (2,))
    rows, w = g.input("rows", df.float32, (trips, 2, 3)), g.parameter("w", W)
    stacked = []
    for t in range(trips):
        row = ops.slice(rows, starts=(t, 0, 0), stops=(t + 1, 2, 3), steps=(1, 1, 1))
        row = ops.reshape(row, shape=(2, 3))
        h = ops.tanh(ops.add(ops.matmul(h, w), row))
        total = ops.add(total, ops.reduce_sum(h, axes=(1,), keepdims=0))
        stacked.append(ops.reshape(ops.mul(h, row), shape=(1, 2, 3)))
    g.output("last", h)
    g.output("sum", total)
    g.output("y", ops.concat(*stacked, axis=0))
    return g.build()


def feeds(trips):
    random = np.random.default_rng(trips)
    shapes = {"h": (2, 3), "total": (2,), "rows": (trips, 2, 3)}
    return {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("trips", [1, 2, 7, 300])
def test_a_scan_is_what_it_unrolls_to(device, trips):
    session = df.Session(recurrent(trips), devices=[device])
    check_plan(session.plan({n: a.shape for n, a in feeds(trips).items()}))
    found, expected = session.run(feeds(trips)), evaluate(unrolled(trips), feeds(trips), dtype=np.float64)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_the_gradient_of_a_scan_is_that_of_the_unrolled_graph(device):
    trips = 6
    wrt = ("h", "total", "rows", "w")
    graphs = [recurrent(trips), unrolled(trips)]
    joint = [vjp_graph(g, [v for v in (*g.inputs, *g.initializers) if v.name in wrt]) for g in graphs]
    random = np.random.default_rng(1)
    u = {f"grad.{n}": random.standard_normal(v.type.sizes).astype(np.float32) for n, v in graphs[0].outputs.items()}
    given = {**feeds(trips), **u}
    expected = evaluate(joint[1], given, dtype=np.float64)
    session = df.Session(joint[0], devices=[device])
    check_plan(session.plan({n: a.shape for n, a in given.items()}))
    found = session.run(given)
    for name in wrt:
        np.testing.assert_allclose(found[f"grad.{name}"], expected[f"grad.{name}"], rtol=1e-4, atol=1e-4)


def test_a_loop_is_one_step_and_its_trips_run_natively():
    plans = {}
    for trips in (10, 1000):
        session = df.Session(recurrent(trips), devices=["cpu"])
        session.run(feeds(trips))
        plans[trips] = session.plan({n: a.shape for n, a in feeds(trips).items()})
        (program,) = session._programs.values()
        (bound,) = program._free
        (loop,) = [step for step in plans[trips].segments[0].steps if step.body is not None]
        assert loop.body.trips == trips
        assert bound.kernel_calls == len(plans[trips].segments[0].steps) - 1 + trips * len(loop.body.steps)
        assert bound.native_calls == 1
    small, large = (plans[t] for t in (10, 1000))
    assert len(small.segments[0].steps) == len(large.segments[0].steps)
    assert small.peak_bytes == large.peak_bytes


def test_the_checker_sees_a_carried_value_in_the_wrong_half():
    import dataclasses

    plan = df.Session(recurrent(4), devices=["cpu"]).plan()
    check_plan(plan)
    (segment,) = plan.segments
    rejected = 0
    for index, step in enumerate(segment.steps):
        for place, inner in enumerate(step.body.steps if step.body else ()):
            for side in ("inputs", "outputs"):
                operands = list(getattr(inner, side))
                for at, operand in enumerate(operands):
                    if operand is None or not operand.trip_stride:
                        continue
                    operands[at] = dataclasses.replace(operand, trip_stride=operand.trip_stride + 4)
                    wrong = dataclasses.replace(inner, **{side: tuple(operands)})
                    operands[at] = operand
                    steps = (*step.body.steps[:place], wrong, *step.body.steps[place + 1 :])
                    body = dataclasses.replace(step.body, steps=steps)
                    changed = (
                        *segment.steps[:index],
                        dataclasses.replace(step, body=body),
                        *segment.steps[index + 1 :],
                    )
                    items = (dataclasses.replace(segment, steps=changed),)
                    with pytest.raises(PlanViolation):
                        check_plan(dataclasses.replace(plan, items=items))
                    rejected += 1
    assert rejected >= 2


def test_a_body_has_no_free_variables():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (3,))
    body = df.GraphBuilder("body")
    with pytest.raises(df.ModelError, match="belongs to another graph"):
        ops.add(body.input("h", df.float32, (3,)), x)


def test_a_loop_has_no_gradient_and_says_why():
    body = df.GraphBuilder("body")
    body.input("i", df.int64, ())
    body.output("go", ops.copy(body.input("go", df.bool_, ())))
    body.output("v", ops.neg(body.input("v", df.float32, (2,))))
    g = df.GraphBuilder()
    start = [g.constant(np.int64(3)), g.constant(np.bool_(True)), g.input("x", df.float32, (2,))]
    made = ops.loop(*start, n_carries=1, max_trips=4, bodies=(body.build(),), name="around")
    g.output("y", made[1])
    graph = g.build()
    with pytest.raises(df.GradientError, match=r"'around'.*express it as a scan"):
        vjp_graph(graph, graph.inputs)


def test_parts_of_a_concat_are_computed_in_the_whole():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (1, 3, 5))
    parts = [op(x) for op in (ops.sin, ops.cos, ops.tanh)]
    whole = ops.concat(*parts, axis=1)
    g.output("y", ops.relu(whole))
    session = df.Session(g.build(), devices=["cpu"])
    plan = session.plan()
    check_plan(plan)
    assert [step.node.op.name for step in plan.segments[0].steps] == ["sin", "cos", "tanh", "relu"]
    data = np.random.default_rng(0).standard_normal((1, 3, 5)).astype(np.float32)
    expected = np.maximum(np.concatenate([np.sin(data), np.cos(data), np.tanh(data)], 1), 0)
    np.testing.assert_allclose(session.run(data)["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_fused_body_runs_as_one_kernel_or_node_by_node():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (4, 6))
    w, b = g.parameter("w", np.ones((6, 3), np.float32)), g.parameter("b", np.full(3, -5, np.float32))
    g.output("y", ops.relu(ops.add(ops.matmul(x, w), b)))
    graph = g.build()
    data = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32) + 1
    results = []
    for fuse, names in ((True, ["matmul_bias_relu"]), (False, ["matmul", "add", "relu"])):
        session = df.Session(graph, devices=["cpu"], fuse=fuse)
        assert [step.node.op.name for step in session.plan().segments[0].steps] == names
        results.append(session.run(data)["y"])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-5, atol=1e-6)
    body = df.GraphBuilder("body")
    body.output("y", ops.sin(ops.add(body.input("a", df.float32, (4, 6)), body.input("b", df.float32, (4, 6)))))
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (4, 6))
    (y,) = ops.fused(x, x, pattern="nobody has it", bodies=(body.build(),))
    g.output("y", y)
    session = df.Session(g.build(), devices=["cpu"])
    assert {p.device for p in session.placement()} == {"cpu"}
    np.testing.assert_allclose(session.run(data)["y"], np.sin(2 * data), rtol=1e-4, atol=1e-5)


def test_random_numbers_are_the_same_on_every_device_and_depend_on_seed_and_step():
    g = df.GraphBuilder()
    key, x = g.input("key", df.uint64, (2,)), g.input("x", df.float32, (50,))
    g.output("u", ops.random_uniform(key, shape=(50,), stream=1))
    g.output("d", ops.dropout(x, key, ratio=0.4, stream=2))
    graph = g.build()
    sessions = [df.Session(graph, devices=[d]) for d in ("cpu", "numpy")]
    data = np.ones(50, np.float32)
    runs = {}
    for seed, step in ((1, 0), (1, 1), (2, 0)):
        given = {"key": np.array([seed, step], np.uint64), "x": data}
        one, two = (s.run(given) for s in sessions)
        assert one["u"].tobytes() == two["u"].tobytes()
        np.testing.assert_allclose(one["d"], two["d"], rtol=1e-6)
        runs[seed, step] = one["u"].tobytes()
    assert len(set(runs.values())) == 3
