"""Random graphs: autodiff, placement, planner and devices against the reference, by hypothesis."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dataflow as df
from dataflow.autodiff import vjp_graph
from dataflow.check import check_plan
from dataflow.plan import Segment
from dataflow_numpy.evaluate import evaluate

ops = df.ops
UNARY = ("sin", "tanh", "relu", "sigmoid", "neg", "softplus", "copy", "gelu")
BINARY = ("add", "sub", "mul", "maximum")


def axis_shape(shape, axis):
    return tuple(1 if i == axis else d for i, d in enumerate(shape))


@st.composite
def graphs(draw):
    """A graph of up to a dozen nodes over matrices and their views, with one to three outputs."""
    g = df.GraphBuilder("random")
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    values = [g.input(f"x{i}", df.float32, (rows, columns)) for i in range(draw(st.integers(1, 3)))]
    random = np.random.default_rng(draw(st.integers(0, 1000)))
    values.append(g.parameter("w", random.standard_normal((columns, rows)).astype(np.float32)))
    for _ in range(draw(st.integers(1, 12))):
        x = values[draw(st.integers(0, len(values) - 1))]
        kind = draw(st.sampled_from(["unary", "binary", "matmul", "transpose", "reduce", "slice", "concat", "softmax"]))
        if kind == "unary":
            made = getattr(ops, draw(st.sampled_from(UNARY)))(x)
        elif kind == "binary":
            fitting = [
                v for v in values if v.shape == x.shape or v.shape in (axis_shape(x.shape, 0), axis_shape(x.shape, 1))
            ]
            made = getattr(ops, draw(st.sampled_from(BINARY)))(x, fitting[draw(st.integers(0, len(fitting) - 1))])
        elif kind == "matmul":
            fitting = [v for v in values if v.shape[0] == x.shape[1]]
            if not fitting:
                continue
            made = ops.mul(ops.matmul(x, fitting[draw(st.integers(0, len(fitting) - 1))]), 0.3)
        elif kind == "transpose":
            made = ops.transpose(x, perm=(1, 0))
        elif kind == "reduce":
            op = draw(st.sampled_from([ops.reduce_sum, ops.reduce_mean]))
            made = op(x, axes=(draw(st.integers(0, 1)),), keepdims=1)
        elif kind == "slice":
            start, step = draw(st.integers(0, x.shape[0] - 1)), draw(st.sampled_from([1, 2]))
            made = ops.slice(x, starts=(start, 0), stops=tuple(x.shape), steps=(step, 1))
        elif kind == "concat":
            fitting = [v for v in values if v.shape[1] == x.shape[1]]
            made = ops.concat(x, fitting[draw(st.integers(0, len(fitting) - 1))], axis=0)
            if made.shape[0] > 20:
                continue
        else:
            made = ops.softmax(x, axis=draw(st.integers(0, 1)))
        values.append(made)
    for index in range(draw(st.integers(1, 3))):
        g.output(f"y{index}", values[draw(st.integers(0, len(values) - 1))])
    return g.build()


SETTINGS = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def feeds_of(graph):
    random = np.random.default_rng(len(graph.nodes))
    return {v.name: random.standard_normal(v.type.sizes).astype(np.float32) for v in graph.inputs}


def close(found, expected):
    for name, array in expected.items():
        scale = max(1.0, float(np.abs(array).max(initial=0)))
        assert np.abs(found[name] - array).max(initial=0) <= 2e-4 * scale, name


@SETTINGS
@given(graph=graphs())
def test_devices_and_plans_agree_with_the_reference(remote, graph):
    feeds = feeds_of(graph)
    expected = evaluate(graph, feeds, dtype=np.float64)
    for devices in (["cpu"], ["remote", "cpu"], ["numpy"]):
        session = df.Session(graph, devices=devices, registry=remote)
        plan = session.plan({n: a.shape for n, a in feeds.items()})
        check_plan(plan)
        assert plan.peak_bytes >= plan.lower_bound_bytes
        close(session.run(feeds), expected)
    on_cpu = df.Session(graph, devices=["cpu"]).plan({n: a.shape for n, a in feeds.items()})
    assert len([i for i in on_cpu.items if isinstance(i, Segment)]) <= 1


@SETTINGS
@given(graph=graphs())
def test_gradients_agree_with_differences(remote, graph):
    feeds = feeds_of(graph)
    joint = vjp_graph(graph, [*graph.inputs])
    random = np.random.default_rng(1)
    u = {f"grad.{n}": random.standard_normal(v.type.sizes).astype(np.float32) for n, v in graph.outputs.items()}
    given_all = {**feeds, **u}
    expected = evaluate(joint, given_all, dtype=np.float64)
    for devices in (["cpu"], ["remote", "cpu"]):
        session = df.Session(joint, devices=devices, registry=remote)
        check_plan(session.plan({n: a.shape for n, a in given_all.items()}))
        close(session.run(given_all), expected)
    v = {x.name: random.standard_normal(x.type.sizes) for x in graph.inputs}
    step = 1e-6
    moved = [
        evaluate(graph, {n: a.astype(np.float64) + s * step * v[n] for n, a in feeds.items()}, dtype=np.float64)
        for s in (1, -1)
    ]
    along = sum(float((v[n] * expected[f"grad.{n}"]).sum()) for n in v)
    difference = sum(float((u[f"grad.{n}"] * (moved[0][n] - moved[1][n])).sum()) for n in graph.outputs) / (2 * step)
    size = sum(np.abs(v[n]).sum() * np.abs(expected[f"grad.{n}"]).max(initial=0) for n in v)
    assert abs(along - difference) <= 1e-5 * max(size, 1.0)
