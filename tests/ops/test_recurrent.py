"""Recurrent ops: their loops as scans, types that are refused, and what a plan holds of them."""

import numpy as np
import pytest

import dataflow as df
from dataflow.ir.rewrite import rewrite
from dataflow.passes.dead_code import eliminate_dead_code
from dataflow.planning.verify import check_plan
from dataflow.testing.samples.recurrent import SAMPLES
from dataflow_numpy.evaluate import evaluate

ops = df.ops
UNLIKE = [s for s in SAMPLES if s.inputs[0].shape[-1] < 40]


def decomposed(graph):
    """The graph with its node as a scan."""

    def replace(builder, node, inputs):
        return node.op.decompose(*inputs, **node.attributes)

    return eliminate_dead_code(rewrite(graph, replace))


@pytest.mark.parametrize("sample", UNLIKE, ids=lambda s: s.name)
def test_the_scan_computes_what_the_reference_does(sample):
    graph = sample.build()
    scan, feeds = decomposed(graph), sample.feeds()
    expected = evaluate(graph, feeds, dtype=np.float64)
    found = evaluate(scan, feeds, dtype=np.float64)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sample", [s for s in UNLIKE if s.inputs[1].shape[1:2] == (3,)], ids=lambda s: s.name)
def test_the_scan_runs_natively(sample):
    graph = sample.build()
    scan, feeds = decomposed(graph), sample.feeds()
    expected = evaluate(graph, feeds, dtype=np.float64)
    session = df.Session(scan, devices=["cpu"])
    check_plan(session.plan({n: a.shape for n, a in feeds.items()}))
    found = session.run(feeds)
    assert {p.device for p in session.placement({n: a.shape for n, a in feeds.items()})} == {"cpu"}
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_what_only_backward_reads_takes_no_memory_in_inference():
    def peak(kept):
        g = df.GraphBuilder()
        x, r = g.input("x", df.float32, (50, 4, 32)), g.input("r", df.float32, (32, 8))
        node = g.add(ops.lstm, (x, r), {})
        for index in range(5 if kept else 1):
            g.output(f"y{index}", ops.reduce_sum(node.outputs[index], axes=(0, 1), keepdims=0))
        return df.Session(g.build(), devices=["cpu"]).plan().peak_bytes

    assert peak(True) - peak(False) >= 50 * 4 * (32 + 8) * 4


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("batch", "hidden"), [(1, 100), (3, 100), (16, 100), (5, 7)])
def test_the_split_by_threads_does_not_change_the_result(batch, hidden, threads):
    """Sequences, or units of the state, are cut; each sum stays whole."""
    random = np.random.default_rng(hidden)
    g = df.GraphBuilder()
    x, r = g.input("x", df.float32, (12, batch, 4 * hidden)), g.input("r", df.float32, (4 * hidden, hidden))
    g.output("y", ops.lstm(x, r)[0])
    graph = g.build()
    feeds = {
        "x": random.standard_normal((12, batch, 4 * hidden)).astype(np.float32),
        "r": (random.standard_normal((4 * hidden, hidden)) / hidden**0.5).astype(np.float32),
    }
    one = df.Session(graph, devices=["cpu"], threads=1).run(feeds)["y"]
    many = df.Session(graph, devices=["cpu"], threads=threads).run(feeds)["y"]
    np.testing.assert_array_equal(one, many)


def test_gradients_that_fade_do_not_become_denormal():
    steps = 400
    g = df.GraphBuilder()
    x, r = g.input("x", df.float32, (steps, 1, 16)), g.input("r", df.float32, (16, 4))
    g.output("y", ops.lstm(x, r)[1])
    feeds = {"x": np.zeros((steps, 1, 16), np.float32), "r": np.full((16, 4), 0.1, np.float32)}
    dx = df.vjp(df.Model(g.build()), feeds, devices=["cpu"])["x"]
    assert np.abs(dx[-1]).max() > 1e-3
    assert not dx[0].any()
    assert not ((np.abs(dx) < np.finfo(np.float32).tiny) & (dx != 0)).any()


REFUSED = [
    ("lstm", ((3, 2, 8), (8, 2)), {"h": (2, 3)}, r"lstm: h is float32\[2, 3\]; expected float32\[2, 2\]"),
    ("lstm", ((3, 2, 9), (8, 2)), {}, r"lstm: x is float32\[3, 2, 9\]; expected float32\[3, 2, 8\]"),
    ("gru", ((3, 2, 6), (8, 2)), {}, r"gru: r is float32\[8, 2\]; expected float32\[6, 2\]"),
    ("rnn", ((3, 2), (2, 2)), {}, r"rnn: x is float32\[3, 2\]; expected \(steps, batch, 1 times hidden\)"),
]


@pytest.mark.parametrize(("name", "shapes", "more", "message"), REFUSED, ids=lambda v: v if isinstance(v, str) else "")
def test_types_that_do_not_fit(name, shapes, more, message):
    g = df.GraphBuilder()
    operands = [g.input(f"x{i}", df.float32, shape) for i, shape in enumerate([*shapes, *more.values()])]
    with pytest.raises(df.InputError, match=message):
        getattr(ops, name)(*operands)


def test_lengths_must_be_integers():
    g = df.GraphBuilder()
    x, r = g.input("x", df.float32, (3, 2, 8)), g.input("r", df.float32, (8, 2))
    lengths = g.input("lengths", df.float32, (2,))
    with pytest.raises(df.InputError, match=r"lengths are float32\[2\]; expected int32 or int64"):
        ops.lstm(x, r, None, None, lengths)


@pytest.mark.parametrize("name", ["lstm_grad", "gru_grad", "rnn_grad"])
@pytest.mark.parametrize("form", ["transposed", "broadcast", "columns"])
def test_a_gradient_reads_the_cotangent_where_it_lies(name, form):
    """Of a mean over time it is a broadcast, of a network with the batch first a transposed view."""
    sample = next(s for s in SAMPLES if s.op.name == name and min(s.inputs[0].shape) > 2 and "dy?" in s.op.inputs)
    index = sample.op.inputs.index("dy?")
    steps, batch, hidden = sample.inputs[index].shape
    shape = {"transposed": (batch, steps, hidden), "broadcast": (batch, 1), "columns": (steps, hidden, batch)}[form]
    numbers = np.random.default_rng(0).standard_normal(shape).astype(np.float32)

    def results(copied):
        g = df.GraphBuilder()
        others = {n: o for n, o in enumerate(sample.inputs) if o is not None and n != index}
        fed = {n: g.input(f"i{n}", o.dtype, o.shape) for n, o in others.items()}
        dy = g.constant(numbers)
        if form == "broadcast":
            dy = ops.broadcast_to(dy, shape=(steps, batch, hidden))
        else:
            dy = ops.transpose(dy, perm=(1, 0, 2) if form == "transposed" else (0, 2, 1))
        fed[index] = ops.copy(dy) if copied else dy
        inputs = [fed.get(n) for n in range(len(sample.inputs))]
        for number, value in enumerate(g.add(sample.op, inputs, sample.attributes).outputs):
            g.output(f"o{number}", value)
        session = df.Session(g.build(), devices=["cpu"], fold=False, fuse=False)
        feeds = {f"i{n}": a for n, a in enumerate(sample.arrays()) if n in others}
        ran = [step.node.op.name for segment in session.plan().segments for step in segment.steps]
        return session.run(feeds), ran

    (found, ran), (expected, _) = results(False), results(True)
    assert ran == [name]
    for key, array in expected.items():
        np.testing.assert_array_equal(found[key], array)
