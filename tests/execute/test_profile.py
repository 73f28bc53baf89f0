"""Profiles: every step once, closed forms of work, the same results as a run; traces; the command bench."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from onnx import parser

import dataflow as df
from dataflow import ops
from dataflow.cli import bench as command
from dataflow.cli.roofline import Roofline, described, measure_roofline, percent
from dataflow.cli.trace import trace_events
from dataflow_onnx.loading import load_bytes
from tests.support import RECORDINGS, recording

MODELS = ("mlp", "cnn", "resnet", "lstm")


def loaded(name):
    model = recording(name)
    shapes = {n: tuple(d if isinstance(d, int) else 3 for d in t.shape) for n, t in model.inputs.items()}
    return model, command.random_arguments(model, shapes)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("name", MODELS)
def test_every_step_once_and_the_results_of_a_run(name, device):
    model, feeds = loaded(name)
    session = df.Session(model, device, threads=2)
    profile = session.profile(feeds, rounds=3)
    expected = session.run(feeds)
    assert profile.outputs.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(profile.outputs[key], array)
    planned = [s.node.name for segment in session.plans[0].segments for s in segment.steps]
    assert [s.node for s in profile.steps] == planned
    assert {s.device for s in profile.steps} == {device}
    assert all(0 < s.fastest <= s.seconds for s in profile.steps)
    assert all(s.bytes > 0 for s in profile.steps)
    assert profile.seconds > 0
    assert profile.rounds == 3
    grouped = profile.by_op()
    assert sum(op.count for op in grouped) == len(profile.steps)
    for what in ("seconds", "operations", "bytes"):
        assert sum(getattr(op, what) for op in grouped) == pytest.approx(sum(getattr(s, what) for s in profile.steps))


def one_step(graph, feeds):
    (step,) = df.Session(graph, "cpu").profile(feeds, rounds=1).steps
    return step


def test_the_work_of_a_matmul_and_of_a_convolution():
    random = np.random.default_rng(0)
    m, k, n = 7, 11, 13
    g = df.GraphBuilder()
    g.output("y", ops.matmul(g.input("a", df.float32, (m, k)), g.input("b", df.float32, (k, n))))
    feeds = {"a": random.standard_normal((m, k), np.float32), "b": random.standard_normal((k, n), np.float32)}
    step = one_step(g.build(), feeds)
    assert step.op == "matmul"
    assert step.operations == 2 * m * k * n
    assert step.bytes == 4 * (m * k + k * n + m * n)

    batch, channels, filters, size, window = 2, 6, 4, 9, 3
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (batch, channels, size, size))
    w = g.parameter("w", random.standard_normal((filters, channels // 2, window, window), np.float32))
    g.output("y", ops.conv(x, w, strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1), groups=2))
    step = one_step(g.build(), {"x": random.standard_normal((batch, channels, size, size), np.float32)})
    out = (size + 2 - window) // 2 + 1
    assert step.op == "conv"
    assert step.operations == 2 * batch * filters * out * out * (channels // 2) * window * window
    weights = filters * (channels // 2) * window * window
    assert step.bytes == 4 * (batch * channels * size * size + weights + batch * filters * out * out)


def test_a_body_counts_as_often_as_it_runs():
    short, long = (work_of_lstm(length) for length in (4, 12))
    assert long == 3 * short


def work_of_lstm(length):
    """Operations of a scan of so many iterations."""
    b = df.GraphBuilder()
    c = b.input("c", df.float32, (5,))
    x = b.input("x", df.float32, (5,))
    b.output("after", ops.tanh(ops.add(c, x)))
    b.output("y", ops.mul(c, x))
    body = b.build()
    g = df.GraphBuilder()
    first, xs = g.input("first", df.float32, (5,)), g.input("xs", df.float32, (length, 5))
    last, ys, *_ = ops.scan(first, xs, bodies=(body,), n_carries=1, n_xs=1)
    g.output("last", last)
    g.output("ys", ys)
    feeds = {"first": np.ones(5, np.float32), "xs": np.ones((length, 5), np.float32)}
    profile = df.Session(g.build(), "cpu").profile(feeds, rounds=1)
    return sum(s.operations for s in profile.steps if s.op == "scan")


def test_what_cannot_be_profiled_says_why():
    model, feeds = loaded("mlp")
    session = df.Session(model, "cpu")
    with pytest.raises(df.InputError, match="rounds is 0; expected a whole number from 1 to 1000000"):
        session.profile(feeds, rounds=0)
    with pytest.raises(df.InputError, match="missing inputs"):
        session.profile({})
    g = df.GraphBuilder()
    x = g.input("x", df.int64, (2,))
    w = g.parameter("w", np.ones((3, 4), np.float32))
    g.output("y", ops.gather(w, x))
    with pytest.raises(df.InputError, match="gather"):
        df.Session(g.build(), "cpu").profile(np.array([0, 3]))


def inside(inner, outer):
    return outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-6


def check_trace(events, profile):
    """What Perfetto needs, and an event for every step."""
    complete = [e for e in events if e["ph"] == "X"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert [e["ts"] for e in complete] == sorted(e["ts"] for e in complete)
    assert all(e["dur"] >= 0 and {"name", "cat", "pid", "tid", "args"} <= e.keys() for e in complete)
    assert set(names.values()) == {s.device for s in profile.steps}
    steps = [e for e in complete if e["cat"] != "segment"]
    assert [names[e["tid"]] for e in steps] == [s.device for s in profile.steps]
    assert [e["args"]["op"] for e in steps] == [s.op for s in profile.steps]
    segments = [e for e in complete if e["cat"] == "segment"]
    assert sum(e["args"]["steps"] for e in segments) == sum(e["cat"] == "step" for e in steps)
    for event in steps:
        around = [s for s in segments if s["tid"] == event["tid"] and inside(event, s)]
        assert len(around) == (event["cat"] == "step")
        assert all(complete.index(s) < complete.index(event) for s in around)


@pytest.mark.parametrize("name", MODELS)
def test_a_trace_is_json_with_sorted_events(name):
    model, feeds = loaded(name)
    profile = df.Session(model, "cpu").profile(feeds, rounds=3)
    check_trace(json.loads(json.dumps(trace_events(profile), allow_nan=False)), profile)


def test_transfers_and_waits_are_on_the_track_of_their_device(remote):
    model, feeds = loaded("mlp")
    session = df.Session(model, ["remote", "cpu"], registry=remote)
    profile = session.profile(feeds, rounds=2)
    expected = df.Session(model, "cpu").run(feeds)
    for key, array in expected.items():
        np.testing.assert_allclose(profile.outputs[key], array, rtol=1e-5, atol=1e-6)
    found = {s.op: s for s in profile.steps}
    assert found["wait"].device == found["transfer"].device == "remote"
    assert found["transfer"].bytes > 0 == found["transfer"].operations
    assert {s.device for s in profile.steps} == {"remote", "cpu"}
    check_trace(trace_events(profile), profile)


def test_rooflines_are_what_a_product_and_a_copy_reach(monkeypatch, remote, caplog):
    monkeypatch.setattr("dataflow.cli.roofline.LONG", 1e-9)
    monkeypatch.setattr("dataflow.cli.roofline.COPIED", 1 << 20)
    found = measure_roofline("cpu", 1, rounds=2)
    assert found.flops > 0
    assert found.bandwidth > 0
    with pytest.raises(df.InputError, match="no device"):
        measure_roofline("tpu")
    other = measure_roofline("remote", rounds=1, registry=remote)  # it multiplies, but has no negation
    assert other.flops > 0
    assert np.isnan(other.bandwidth)
    assert described(other).endswith(" GFLOP/s, no kernel of neg")
    assert described(Roofline(np.nan, 2e9)) == "no kernel of matmul, 2 GB/s"
    assert [percent(0.25), percent(np.nan)] == ["25.0%", ""]
    assert not caplog.records  # it is no news that the rest ran elsewhere


# ---- the command -------------------------------------------------------------------------------------


@pytest.fixture
def run(monkeypatch):
    """Runs ``dataflow bench`` on a recorded model without measuring rooflines."""
    measured = []
    monkeypatch.setattr(
        "dataflow.cli.roofline.measure_roofline", lambda d, t, p: measured.append((d, t)) or Roofline(1e11, 1e10)
    )

    def call(name, *arguments):
        path = str(RECORDINGS / f"{name}.onnx")
        return CliRunner().invoke(command.bench, [path, "--device", "cpu", "--rounds", "2", *arguments])

    call.measured = measured
    return call


def test_bench_as_json_with_nodes_and_a_trace(run, tmp_path):
    done = run("cnn", "--json", "--nodes", "--threads", "1", "--trace", str(tmp_path / "t.json"))
    assert done.exit_code == 0, done.output
    described = json.loads(done.stdout)
    assert run.measured == [("cpu", 1)]
    assert described["threads"] == 1
    assert described["rooflines"] == {"cpu": {"flops": 1e11, "bandwidth": 1e10}}
    found = described["programs"]["run"]
    assert sum(op["share"] for op in found["ops"]) == pytest.approx(1)
    assert found["step_seconds"] == pytest.approx(sum(node["seconds"] for node in found["nodes"]))
    for row in found["ops"] + found["nodes"]:
        assert row["arithmetic"] == pytest.approx(row["operations"] / row["seconds"] / 1e11)
        assert row["bandwidth"] == pytest.approx(row["bytes"] / row["seconds"] / 1e10)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(e.get("cat") == "step" for e in events) == len(found["nodes"])


def test_bench_prints_a_line_per_op_and_the_rooflines(run):
    done = run("mlp", "--gflops", "200", "--gbps", "30", "--shape", "x=5,20")
    assert done.exit_code == 0, done.output
    assert run.measured == []
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["op", "device", "count", "µs", "time", "MFLOP", "MB", "arithmetic", "bandwidth"]
    assert any(line.startswith("matmul") for line in lines)
    assert "roofline of cpu: 200 GFLOP/s, 30 GB/s" in lines


def test_bench_takes_inputs_from_files(run, tmp_path):
    model, feeds = loaded("mlp")
    (name,) = model.inputs
    np.save(tmp_path / "x.npy", feeds[name])
    done = run("mlp", "--input", str(tmp_path / "x.npy"), "--json")
    assert done.exit_code == 0, done.output
    done = run("mlp", "--shape", "x=3")
    assert isinstance(done.exception, df.InputError)


# ---- training ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "batch_norm"), [("mlp", "fixed"), ("resnet_bn", "update")])
def test_a_profile_of_training_leaves_it_where_it_is(name, batch_norm):
    model, feeds = loaded(name)
    batch = {**feeds, "labels": np.array([0, 1, 2])}
    losses = []
    for profiled in (False, True):
        trainer = df.Trainer(model.copy(), devices="cpu", batch_norm=batch_norm, metrics=[])
        found = [trainer.step(batch)]
        if profiled:
            before = trainer.programs.state()
            profiles = trainer.profile(batch, rounds=2)
            after = trainer.programs.state()
            assert before.keys() == after.keys()
            for key, array in before.items():
                np.testing.assert_array_equal(after[key], array)
            planned = {
                key: [s.node.name for seg in plan.segments for s in seg.steps]
                for key, plan in {
                    "joint": trainer.programs.plans()["joint-True"],
                    "optimizer": trainer.programs.plans()["optimizer"],
                }.items()
            }
            assert {key: [s.node for s in p.steps] for key, p in profiles.items()} == planned
            check_trace(trace_events(profiles["joint"]), profiles["joint"])
            events = trace_events(*profiles.values())
            assert sum(e.get("cat") == "step" for e in events) == sum(map(len, planned.values()))
            times = [e["ts"] for e in events if e["ph"] == "X"]
            assert times == sorted(times)
        found += [trainer.step(batch) for _ in range(3)]
        losses.append(found)
    assert losses[0] == losses[1]


def test_a_profile_is_refused_while_gradients_wait():
    model, feeds = loaded("mlp")
    batch = {**feeds, "labels": np.array([0, 1, 2])}
    trainer = df.Trainer(model, devices="cpu", accumulate=2)
    profiles = trainer.profile(batch, rounds=1)  # before the first step, too
    assert profiles.keys() == {"joint", "optimizer"}
    trainer.step(batch)
    with pytest.raises(df.InputError, match="1 micro-batches wait"):
        trainer.profile(batch)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_bench_of_a_training_step(run, loss):
    done = run("mlp", "--train", "--loss", loss, "--shape", "x=5,20", "--json")
    assert done.exit_code == 0, done.output
    programs = json.loads(done.stdout)["programs"]
    assert programs.keys() == {"joint", "optimizer"}
    assert "adamw_step" in {op["op"] for op in programs["optimizer"]["ops"]}


def test_a_run_of_several_plans_is_their_sum():
    """Regions of what data chose, and a loop that the host runs: a node once, with all of its calls."""
    x = np.array([3, 1, -2, 0.5, 2, -1], np.float32)
    text = """<ir_version: 8, opset_import: ["" : 17]>
    squares (float[T] x) => (float[U] y, float[V] z) {
      zero = Constant <value = float {0}> ()
      nothing = Constant <value = int64 {0}> ()
      yes = Constant <value = bool {1}> ()
      positive = Greater (x, zero)
      chosen = Compress <axis = 0> (x, positive)
      y = Mul (chosen, chosen)
      z = Loop ("", yes, chosen) <body = b (int64 i, bool c, float[K] v) => (bool go, float[L] w) {
        half = Constant <value = float {0.5}> ()
        less = Mul (v, half)
        large = Greater (less, half)
        w = Compress <axis = 0> (less, large)
        size = Size (w)
        go = Greater (size, nothing)
      }>
    }"""
    session = df.Session(load_bytes(parser.parse_model(text).SerializeToString()), "cpu")
    profile = session.profile(x, rounds=2)
    np.testing.assert_array_equal(profile.outputs["y"], [9, 1, 0.25, 4])
    assert profile.outputs["z"].shape == (0,)
    calls = {op.op: op.count for op in profile.by_op()}
    assert calls["nonzero"] == 1 + 2  # what is chosen first, then of 4 and of 2; of the last one nothing is left
    assert calls["reduce_sum"] == 1 + 3
    assert len({step.node for step in profile.steps}) == len(profile.steps)
    assert all(step.calls >= 1 and step.seconds > 0 for step in profile.steps)
    ends = [end for _, end in profile.spans]
    assert ends == sorted(ends)
    assert profile.step_seconds == pytest.approx(ends[-1])
