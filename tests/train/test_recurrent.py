"""Recurrent networks over sequences of any length: plans, memory, gradients, saving."""

import numpy as np
import onnxruntime
import pytest

import dataflow as df
from dataflow.execute.arguments import sizes_of
from dataflow.passes.bind_shapes import bind
from dataflow.planning.verify import check_plan
from dataflow_numpy.evaluate import evaluate
from tests.support import RECORDINGS, recorded, recording

LENGTH = 4096
FILES = [("lstm_16", 16), ("lstm_4096", LENGTH), ("lstm_any", 16), ("lstm_any", LENGTH)]


def signal(steps):
    """What the recording was made with; see record_recurrent.py."""
    t, n, i = np.meshgrid(np.arange(steps), np.arange(2), np.arange(3), indexing="ij")
    return (1.5 * np.sin(0.37 * t * (i + 1) + 2.1 * n)).astype(np.float32)


def trained_steps(trainer):
    """How many steps the plans of a trainer's programs have."""
    return {
        name: sum(len(segment.steps) for segment in plan.segments) for name, plan in trainer.programs.plans().items()
    }


@pytest.mark.parametrize("files", [("lstm_16", "lstm_4096"), ("lstm_any", "lstm_any")], ids=lambda f: f[0])
def test_the_number_of_planned_nodes_does_not_depend_on_the_length(files):
    forward, training = [], []
    for file, steps in zip(files, (16, LENGTH), strict=True):
        plan = df.Session(recording(file), devices=["cpu"]).plan({"x": (steps, 2, 3)})
        check_plan(plan)
        forward.append(sum(len(segment.steps) for segment in plan.segments))
        with df.Trainer(recording(file), optimizer=df.optim.SGD(lr=0.0), devices=["cpu"]) as trainer:
            trainer.step({"x": signal(steps), "labels": recorded("lstm_long")["y"]})
            training.append(trained_steps(trainer))
    assert forward[0] == forward[1] < 20
    assert training[0] == training[1]


@pytest.mark.parametrize("scale", [1.0, 1.05])
@pytest.mark.parametrize(("file", "steps"), FILES)
def test_gradients_over_many_steps_are_pytorch_s(file, steps, scale):
    data = recorded("lstm_long")
    with df.Trainer(recording(file), optimizer=df.optim.SGD(lr=0.0), devices=["cpu"]) as trainer:
        loss = trainer.step({"x": signal(steps), "labels": data["y"]})
        found = {name: gradient / 2 for name, gradient in trainer.programs.gradients().items()}  # of two samples
    assert loss == pytest.approx(float(data[f"{steps}/loss"]), rel=1e-5)
    assert len(found) == 8
    wrong = []
    for index, (name, gradient) in enumerate(found.items()):
        key, transposed = data[f"{file}/{name}"]
        expected = data[f"{steps}/gradient/{key}"]
        expected = expected.T if transposed == "1" else expected
        far = np.linalg.norm(gradient * (scale if index == 1 else 1.0) - expected) / np.linalg.norm(expected)
        wrong += [name] if far > 1e-4 else []
    assert len(wrong) == (0 if scale == 1.0 else 1)


@pytest.mark.parametrize(("file", "steps"), FILES)
def test_outputs_over_many_steps_are_as_exact_as_onnxruntime_s(file, steps):
    model, feeds = recording(file), {"x": signal(steps)}
    exact = evaluate(bind(model.graph, sizes_of(model.graph, feeds)), feeds, dtype=np.float64)["logits"]
    session = onnxruntime.InferenceSession(str(RECORDINGS / f"{file}.onnx"), providers=["CPUExecutionProvider"])
    limit = np.abs(session.run(None, feeds)[0] - exact).max()
    assert np.abs(df.Session(model, devices=["cpu"]).run(feeds)["logits"] - exact).max() <= 4 * limit


def small(kind, hidden=4):
    """One layer from 2 inputs, and the mean of its states, over any number of steps."""
    random = np.random.default_rng(3)
    gates = {"lstm": 4, "gru": 3, "rnn": 1}[kind]
    g = df.GraphBuilder(kind)
    x = g.input("x", df.float32, ("steps", 3, 2))
    w, r = (
        g.parameter(n, (0.4 * random.standard_normal(s)).astype(np.float32))
        for n, s in (("w", (2, gates * hidden)), ("r", (gates * hidden, hidden)))
    )
    states = getattr(df.ops, kind)(df.ops.matmul(x, w), r)[0]
    g.output("logits", df.ops.reduce_mean(states, axes=(0,), keepdims=0))
    return df.Model(g.build())


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_memory_is_linear_in_the_length(kind):
    peaks = []
    for steps in (10_000, 20_000, 100_000):  # in less the workspace of products is larger than the states
        with df.Trainer(small(kind), optimizer=df.optim.SGD(lr=0.1), devices=["cpu"]) as trainer:
            x = np.zeros((steps, 3, 2), np.float32) + np.float32(0.5)
            losses = [trainer.step({"x": x, "labels": np.array([0, 1, 2])}) for _ in range(2)]
            assert np.isfinite(losses).all()
            plan = trainer.programs.plans()["step"]
            peaks.append(plan.peak_bytes)
    assert peaks[2] - peaks[1] == pytest.approx(8 * (peaks[1] - peaks[0]), rel=0.01)
    assert peaks[2] < 100_000 * 3 * 4 * 4 * 20  # a few stacks of gates


@pytest.mark.parametrize("kind", ["lstm", "gru", "rnn"])
def test_training_a_hundred_thousand_steps_gives_the_gradient_of_their_end(kind):
    """What is older than a few hundred steps doesn't matter for the last state, as gradients fade."""
    steps, tail = 100_000, 2_000
    x = np.sin(np.arange(steps * 3 * 2, dtype=np.float64) * 0.7).reshape(steps, 3, 2).astype(np.float32)
    results = []
    for count in (steps, tail):
        graph = last_state(kind)
        u = np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32)
        found = df.vjp(graph, {"x": x[-count:]}, {"y": u}, devices=["cpu"])
        results.append({n: found[n] for n in ("w", "r")})
    for name in ("w", "r"):
        np.testing.assert_allclose(results[0][name], results[1][name], rtol=1e-4, atol=1e-6)
        assert np.abs(results[0][name]).max() > 1e-3


def last_state(kind):
    model = small(kind)
    g = df.GraphBuilder(kind)
    new = g.adopt(model.graph_with_data())
    (node,) = [n for n in g.nodes() if n.op.name == kind]
    assert new
    g.output("y", node.outputs[1])
    return df.Model(g.build())


def test_a_tuned_model_saved_as_onnx_runs_in_onnxruntime(tmp_path):
    for file in ("lstm", "gru_script"):
        name = file.removesuffix("_script")
        data = recorded(name)
        x, y = data["x"][0], data["y"][0].astype(np.int64)
        x = x.astype(np.float32 if x.dtype.kind == "f" else np.int64)
        model = recording(file)
        before = df.Session(model, devices=["cpu"]).run({"x": x})["logits"]
        with df.Trainer(model, optimizer=df.optim.AdamW(lr=1e-2), devices=["cpu"]) as trainer:
            for _ in range(3):
                trainer.step({"x": x, "labels": y})
        df.save(model, str(tmp_path / f"{file}.onnx"))
        session = onnxruntime.InferenceSession(str(tmp_path / f"{file}.onnx"), providers=["CPUExecutionProvider"])
        (expected,) = session.run(None, {"x": x})
        found = df.Session(df.load(str(tmp_path / f"{file}.onnx")), devices=["cpu"]).run({"x": x})["logits"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert np.abs(expected - before).max() > 1e-2


def test_gates_and_their_gradient_lie_in_the_bytes_of_what_they_are_made_from():
    """The largest tensors of an LSTM: x of all gates, the gates after their activation, and the gradient of x."""
    steps = 1_000
    with df.Trainer(small("lstm", hidden=32), devices=["cpu"], memory="1x") as trainer:
        trainer.step({"x": np.ones((steps, 3, 2), np.float32), "labels": np.array([0, 1, 2])})
        plan = trainer.plans()["step"]
    (lstm, gradient) = (s for segment in plan.segments for s in segment.steps if s.node.op.name.startswith("lstm"))
    offsets = {lstm.inputs[0].offset, lstm.outputs[3].offset, gradient.inputs[1].offset, gradient.outputs[0].offset}
    assert len(offsets) == 1


def test_a_body_that_reads_back_its_own_rows_trains_within_a_budget():
    body = df.GraphBuilder("cell")
    h, x, w = (body.input(name, df.float32, shape) for name, shape in (("h", (4, 8)), ("x", (4, 8)), ("w", (8, 8))))
    made = df.ops.tanh(df.ops.add(df.ops.matmul(h, w), x))
    body.output("after", df.ops.matmul(df.ops.sigmoid(made), w))
    body.output("made", made)
    g = df.GraphBuilder()
    numbers = np.random.default_rng(0)
    w = g.parameter("w", numbers.standard_normal((8, 8)).astype(np.float32) / 3)
    start = g.constant(np.zeros((4, 8), np.float32))
    rows = df.ops.tanh(df.ops.matmul(g.input("x", df.float32, (16, 4, 8)), w))
    _, ys, *_ = df.ops.scan(start, rows, w, bodies=(body.build(),), n_carries=1, n_xs=1)
    for _ in range(4):  # what can be computed again
        ys = df.ops.gelu(df.ops.mul(df.ops.sin(ys), ys))
    g.output("y", df.ops.reduce_mean(ys, axes=(0,), keepdims=False))
    batch = {"x": numbers.standard_normal((16, 4, 8)).astype(np.float32), "labels": np.arange(4)}
    graph, losses = g.build(), []
    for memory in ("1x", "0.95x"):
        with df.Trainer(df.Model(graph), memory=memory, devices=["cpu"]) as trainer:
            losses.append([trainer.step(batch) for _ in range(3)])
    assert losses[0] == losses[1]
