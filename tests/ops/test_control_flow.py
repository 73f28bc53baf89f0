"""Nodes with bodies, and values that are computed in their final place."""

import dataclasses
import threading

import numpy as np
import pytest

import dataflow as df
from dataflow.execute.program import Bound
from dataflow.passes.autodiff import decompose_for_gradient, vjp_graph
from dataflow.planning.verify import PlanViolation, check_plan
from dataflow.plugin.registry import default_registry
from dataflow.testing.samples.control_flow import SAMPLES, cell
from dataflow_numpy.evaluate import evaluate

ops = df.ops


def recurrent(iterations, reverse=0):
    """A scan over ``iterations`` rows of two carried values."""
    g = df.GraphBuilder("recurrent")
    h, total = g.input("h", df.float32, (2, 3)), g.input("total", df.float32, (2,))
    rows, w = g.input("rows", df.float32, (iterations, 2, 3)), g.parameter("w", W)
    made = ops.scan(h, total, rows, w, n_carries=2, n_xs=1, reverse=reverse, bodies=(cell(),))
    for name, value in zip(("last", "sum", "y"), made, strict=False):
        g.output(name, value)
    return g.build()


W = (0.5 * np.random.default_rng(0).standard_normal((3, 3))).astype(np.float32)


def unrolled(iterations):
    """The same without a loop."""
    g = df.GraphBuilder("unrolled")
    h, total = g.input("h", df.float32, (2, 3)), g.input("total", df.float32, (2,))
    rows, w = g.input("rows", df.float32, (iterations, 2, 3)), g.parameter("w", W)
    stacked = []
    for t in range(iterations):
        row = ops.slice(rows, starts=(t, 0, 0), stops=(t + 1, 2, 3), steps=(1, 1, 1))
        row = ops.reshape(row, shape=(2, 3))
        h = ops.tanh(ops.add(ops.matmul(h, w), row))
        total = ops.add(total, ops.reduce_sum(h, axes=(1,), keepdims=0))
        stacked.append(ops.reshape(ops.mul(h, row), shape=(1, 2, 3)))
    g.output("last", h)
    g.output("sum", total)
    g.output("y", ops.concat(*stacked, axis=0))
    return g.build()


def feeds(iterations):
    random = np.random.default_rng(iterations)
    shapes = {"h": (2, 3), "total": (2,), "rows": (iterations, 2, 3)}
    return {n: random.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("iterations", [1, 2, 7, 300])
def test_a_scan_is_what_it_unrolls_to(device, iterations):
    session = df.Session(recurrent(iterations), devices=[device])
    check_plan(session.plan({n: a.shape for n, a in feeds(iterations).items()}))
    found, expected = (
        session.run(feeds(iterations)),
        evaluate(unrolled(iterations), feeds(iterations), dtype=np.float64),
    )
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_the_gradient_of_a_scan_is_that_of_the_unrolled_graph(device):
    iterations = 6
    wrt = ("h", "total", "rows", "w")
    graphs = [recurrent(iterations), unrolled(iterations)]
    joint = [vjp_graph(g, [v for v in (*g.inputs, *g.initializers) if v.name in wrt]) for g in graphs]
    random = np.random.default_rng(1)
    u = {f"grad.{n}": random.standard_normal(v.type.sizes).astype(np.float32) for n, v in graphs[0].outputs.items()}
    given = {**feeds(iterations), **u}
    expected = evaluate(joint[1], given, dtype=np.float64)
    session = df.Session(joint[0], devices=[device])
    check_plan(session.plan({n: a.shape for n, a in given.items()}))
    found = session.run(given)
    for name in wrt:
        np.testing.assert_allclose(found[f"grad.{name}"], expected[f"grad.{name}"], rtol=1e-4, atol=1e-4)


def test_a_loop_is_one_step_and_its_iterations_run_natively():
    plans = {}
    for iterations in (10, 1000):
        session = df.Session(recurrent(iterations), devices=["cpu"])
        session.run(feeds(iterations))
        plans[iterations] = session.plan({n: a.shape for n, a in feeds(iterations).items()})
        (program,) = session._loaded().engine.programs.values()
        (bound,) = program.bounds
        (loop,) = [step for step in plans[iterations].segments[0].steps if step.body is not None]
        assert loop.body.iterations == iterations
        assert bound.kernel_calls == len(plans[iterations].segments[0].steps) - 1 + iterations * len(loop.body.steps)
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
        for inner_index, inner in enumerate(step.body.steps if step.body else ()):
            for side in ("inputs", "outputs"):
                operands = list(getattr(inner, side))
                for at, operand in enumerate(operands):
                    if operand is None or not operand.iteration_stride:
                        continue
                    operands[at] = dataclasses.replace(operand, iteration_stride=operand.iteration_stride + 4)
                    wrong = dataclasses.replace(inner, **{side: tuple(operands)})
                    operands[at] = operand
                    steps = (*step.body.steps[:inner_index], wrong, *step.body.steps[inner_index + 1 :])
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
    made = ops.loop(*start, n_carries=1, max_iterations=4, bodies=(body.build(),), name="around")
    g.output("y", made[1])
    graph = g.build()
    with pytest.raises(df.GradientError, match=r"'around'.*express it as a scan"):
        vjp_graph(graph, graph.inputs)


def test_operands_of_a_concat_are_computed_in_its_result():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (1, 3, 5))
    operands = [op(x) for op in (ops.sin, ops.cos, ops.tanh)]
    joined = ops.concat(*operands, axis=1)
    g.output("y", ops.relu(joined))
    session = df.Session(g.build(), devices=["cpu"])
    plan = session.plan()
    check_plan(plan)
    assert [step.node.op.name for step in plan.segments[0].steps] == ["sin", "cos", "tanh", "relu"]
    data = np.random.default_rng(0).standard_normal((1, 3, 5)).astype(np.float32)
    expected = np.maximum(np.concatenate([np.sin(data), np.cos(data), np.tanh(data)], 1), 0)
    np.testing.assert_allclose(session.run(data)["y"], expected, rtol=1e-5, atol=1e-6)


def test_a_fused_op_computes_what_its_nodes_compute():
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


# ---- branches and loops whose length depends on data ---------------------------------------------------


def branch(name, build):
    g = df.GraphBuilder(name)
    a, b = g.input("a", df.float32, (3, 4)), g.input("b", df.float32, (4,))
    for index, value in enumerate(build(a, b)):
        g.output(f"y{index}", value)
    return g.build()


def chosen():
    """Two branches with temporaries, a result that is passed on and one that is there twice."""
    g = df.GraphBuilder("chosen")
    condition, a = g.input("condition", df.bool_, ()), g.input("a", df.float32, (3, 4))
    b = g.parameter("b", np.arange(4, dtype=np.float32) / 4)

    def yes(a, b):
        t = ops.tanh(ops.mul(ops.exp(a), b))
        return ops.add(t, a), a, t

    def no(a, b):
        t = ops.sub(a, b)
        return t, ops.relu(t), t

    made = ops.if_(condition, ops.sin(a), b, bodies=(branch("yes", yes), branch("no", no)))
    for index, value in enumerate(made):
        g.output(f"y{index}", value)
    return g.build()


@pytest.mark.parametrize("truth", [True, False])
def test_one_of_two_branches_runs(truth):
    graph = chosen()
    data = {"condition": np.array(truth), "a": np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)}
    model = df.Model(graph)
    session = df.Session(model, devices=["cpu"], fallback="error")
    found, expected = session.run(data), evaluate(graph, data, dtype=np.float64)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    plan = session.plan()
    assert len(plan.segments) == 1
    assert [s.body.when for s in plan.segments[0].steps if s.body is not None] == [True, False]
    assert "when True of" in str(plan)
    grads, exact = (df.vjp(model, data, {"y0": np.ones((3, 4), np.float32)}, devices=[d]) for d in ("cpu", "numpy"))
    for name, array in exact.items():
        np.testing.assert_allclose(grads[name], array, rtol=1e-5, atol=1e-6)


def test_a_device_says_whether_bodies_hold_bodies(monkeypatch):
    sample = next(s for s in SAMPLES if any(node.bodies for body in s.bodies for node in body.nodes))
    graph, data = sample.build(), {f"x{i}": array for i, array in enumerate(sample.arrays())}
    found = df.Session(df.Model(graph), devices=["cpu"], fallback="error").run(data)
    for name, array in evaluate(graph, data, dtype=np.float64).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(default_registry().devices["cpu"], "nested_bodies", False)
    with pytest.raises(df.ModelError, match="has a body of its own, which the device takes in no body"):
        df.Session(df.Model(graph), devices=["cpu"], fallback="error").run(data)
    elsewhere = df.Session(df.Model(graph), devices=["cpu"], fallback="allow")
    assert {node.device for node in elsewhere.placement()} == {"numpy"}


def euclid(limit=1 << 40):
    """The greatest common divisor: two carried values that change places, while the second is not 0."""
    body = df.GraphBuilder("body")
    body.input("iteration", df.int64, ())
    body.input("go", df.bool_, ())
    a, b = body.input("a", df.int64, ()), body.input("b", df.int64, ())
    rest = ops.mod(a, b)
    body.output("go", ops.greater(rest, body.constant(np.array(0))))
    body.output("a", b)
    body.output("b", rest)
    g = df.GraphBuilder("euclid")
    a, b = g.input("a", df.int64, ()), g.input("b", df.int64, ())
    most, go = g.input("most", df.int64, ()), ops.greater(b, g.constant(np.array(0)))
    iterations, first, second = ops.loop(most, go, a, b, n_carries=2, max_iterations=limit, bodies=(body.build(),))
    for name, value in (("iterations", iterations), ("divisor", first), ("rest", second)):
        g.output(name, value)
    return df.Model(g.build())


@pytest.mark.parametrize(("a", "b", "most"), [(48, 18, 99), (17, 0, 99), (1071, 462, 99), (1071, 462, 2), (5, 3, 0)])
def test_a_loop_runs_while_its_condition_holds(a, b, most):
    session = df.Session(euclid(), devices=["cpu"], fallback="error")
    data = {"a": np.array(a), "b": np.array(b), "most": np.array(most)}
    found, expected = session.run(data), df.Session(euclid(), devices=["numpy"]).run(data)
    assert {k: int(v) for k, v in found.items()} == {k: int(v) for k, v in expected.items()}
    if most == 99:
        assert int(found["divisor"]) == np.gcd(a, b)
    plan = session.plan()
    assert len(plan.segments) == 1
    assert len([s for s in plan.segments[0].steps if s.body is not None]) == 1


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_more_iterations_than_allowed_are_an_error(device):
    data = {"a": np.array(1071), "b": np.array(462), "most": np.array(99)}
    with pytest.raises(df.InputError, match="more than 2 iterations; raise max_iterations"):
        df.Session(euclid(limit=2), devices=[device]).run(data)


def test_an_endless_loop_can_be_cancelled(monkeypatch):
    body = df.GraphBuilder("body")
    body.input("iteration", df.int64, ())
    go, x = body.input("go", df.bool_, ()), body.input("x", df.float32, (4,))
    body.output("go", ops.copy(go))
    body.output("x", ops.sin(x))
    g = df.GraphBuilder("endless")
    most, x = g.constant(np.array(1 << 62)), g.input("x", df.float32, (4,))
    _, y = ops.loop(most, g.constant(np.array(True)), x, n_carries=1, max_iterations=1 << 62, bodies=(body.build(),))
    g.output("y", y)
    run = Bound.run

    def cancelled_soon(self, *arguments, **options):
        timer = threading.Timer(0.1, self.cancel)
        timer.start()
        try:
            run(self, *arguments, **options)
        finally:
            timer.join()

    monkeypatch.setattr(Bound, "run", cancelled_soon)
    with pytest.raises(KeyboardInterrupt):
        df.Session(df.Model(g.build()), devices=["cpu"]).run(np.zeros(4, np.float32))


def test_names_that_a_pass_makes_up_avoid_those_of_the_graph():
    """The parts of a mish are called mul and tanh, as two nodes behind it are."""
    g = df.GraphBuilder()
    a = ops.mish(g.input("x", df.float32, (2, 3)), name="mul")
    g.rename(a, "activated")
    g.output("y", ops.mul(a, ops.tanh(a), name="mul/mul"))
    g.output("z", ops.add(a, a, name="mul/tanh"))
    graph = g.build()
    found = decompose_for_gradient(graph, graph.inputs)
    assert {"mul/mul", "mul/tanh"} <= {v.name for v in found.values()}
    assert len(found.nodes) > len(graph.nodes)


def test_the_reference_computes_rows_in_double_precision_without_carried_values():
    """They were rounded to float32, so that a small step along a direction changed nothing."""
    body = df.GraphBuilder("body")
    body.output("row", df.ops.mul(body.input("x", df.float32, (3,)), 1.0))
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, 3))
    g.output("y", g.add(df.ops.scan, (x,), {"n_carries": 0, "n_xs": 1}, bodies=(body.build(),)).outputs[0])
    given = np.full((2, 3), 1 + 1e-12)
    np.testing.assert_array_equal(evaluate(g.build(), {"x": given}, dtype=np.float64)["y"], given)


def test_a_branch_is_differentiated_again():
    """Its gradient has names for cotangents, which its own gradient avoids."""

    def branch(op):
        g = df.GraphBuilder("body")
        g.output("y", op(g.input("x", df.float32, (3,))))
        return g.build()

    g = df.GraphBuilder()
    condition, x = g.input("condition", df.bool_, ()), g.input("x", df.float32, (3,))
    g.output("y", g.add(ops.if_, (condition, x), {}, bodies=(branch(ops.exp), branch(ops.sin))).outputs[0])
    graph = g.build()
    for _ in range(2):
        wanted = next(v for v in graph.inputs if v.name == "x")
        graph = vjp_graph(graph, [wanted])
        graph = dataclasses.replace(graph, outputs={f"d{len(graph.inputs)}": graph.outputs["grad.x"]})
    at = np.array([0.1, -0.4, 2.0])
    feeds = {v.name: np.ones(3) for v in graph.inputs} | {"x": at}
    for taken, expected in ((True, np.exp(at)), (False, -np.sin(at))):
        (found,) = evaluate(graph, {**feeds, "condition": np.array(taken)}, dtype=np.float64).values()
        np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("truth", [True, False])
def test_what_a_branch_hands_on_keeps_its_name_where_sizes_are_open(truth):
    """Inputs and parameters were named as the branch's result, so that runs missed one and training lost the other."""

    def branch(factor):
        b = df.GraphBuilder("branch")
        given, weight = b.input("given", df.float32, (4, 3)), b.input("weight", df.float32, (3, 2))
        b.output("y", given if factor is None else df.ops.mul(given, factor))
        b.output("w", weight)
        return b.build()

    g = df.GraphBuilder()
    x, rows = g.input("x", df.float32, (4, 3)), g.input("rows", df.float32, ("n", 3))
    w = g.parameter("w", np.ones((3, 2), np.float32))
    condition = g.constant(np.array(truth))
    y, handed = df.ops.if_(condition, x, w, bodies=(branch(None), branch(2.0)))
    g.output("result", df.ops.matmul(df.ops.concat(rows, y, axis=0), handed))
    model = df.Model(g.build())
    feeds = {"x": np.full((4, 3), 0.5, np.float32), "rows": np.ones((2, 3), np.float32)}
    joined = np.concatenate([feeds["rows"], feeds["x"] * (1 if truth else 2)])
    np.testing.assert_allclose(df.Session(model, ["cpu"]).run(feeds)["result"], joined @ np.ones((3, 2)))
    with df.Trainer(model, "mse", df.optim.SGD(lr=0.1), devices=["cpu"]) as trainer:
        trainer.step({**feeds, "labels": np.zeros((6, 2), np.float32)})
    gradient = joined.T @ (joined @ np.ones((3, 2))) * 2 / 12
    np.testing.assert_allclose(model.parameters["w"].array, 1 - 0.1 * gradient, rtol=1e-5)
