"""Runs whose sizes grow in equal steps: planned at once, with the results of plans for each."""

import threading

import numpy as np
import onnx
import pytest

import dataflow as df
from dataflow import series
from dataflow.cdevice.series import SeriesCSegment
from dataflow.engine import Engine
from dataflow.execute.series import SeriesProgram
from dataflow.ir import series as lines
from tests.decoders import READS, inputs, text_of


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    """A model for each of what is read."""
    folder = tmp_path_factory.mktemp("decoders")
    for read in READS:
        onnx.save(onnx.parser.parse_model(text_of(read)), folder / f"{read}.onnx")
    return {read: df.load(folder / f"{read}.onnx") for read in READS}


@pytest.fixture
def compiled(monkeypatch):
    """The number of plans made so far, in a list."""
    made, compile_ = [0], Engine.compile

    def counted(engine, *args, **kwargs):
        made[0] += 1
        return compile_(engine, *args, **kwargs)

    monkeypatch.setattr(Engine, "compile", counted)
    return made


@pytest.mark.parametrize("read", READS)
def test_each_length_has_the_results_of_a_plan_of_its_own(decoders, read, monkeypatch):
    monkeypatch.setattr(lines, "_LEAST", 16)
    session = df.Session(decoders[read], devices=["cpu"])
    each = df.Session(decoders[read], devices=["cpu"], plans=0)
    for batch, lengths in ((1, range(1, 40)), (2, range(3, 12)), (1, (17, 5, 33, 2, 1))):
        for past in lengths:
            fed = inputs(past, batch)
            found, expected = session.run(fed), each.run(fed)
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array, f"{name} at {past}")


@pytest.mark.parametrize("read", ["all", "a mask of sizes"])
def test_lengths_that_grow_are_planned_once(decoders, read, compiled):
    session = df.Session(decoders[read], devices=["cpu"])
    for past in range(3, 60):
        session.run(inputs(past))
    # Two lengths, then three for the series; no more for lengths below.
    assert compiled[0] == 5
    session.run(inputs(2))
    session.run(inputs(2), outputs=["present"])
    assert compiled[0] == 6
    assert len(session.plans) == 4


def test_a_series_goes_on_where_the_last_ends(decoders, compiled, monkeypatch):
    monkeypatch.setattr(lines, "_LEAST", 8)
    session = df.Session(decoders["all"], devices=["cpu"])
    for past in range(3, 100):
        session.run(inputs(past))
    assert compiled[0] == 2 + 3 * 4  # up to 13, 28, 58 and 118


def test_sizes_that_decide_otherwise_in_the_middle_are_planned(decoders, compiled, monkeypatch):
    """The window is full from a length of 6 on: no series has lengths on both sides of it."""
    monkeypatch.setattr(lines, "_LEAST", 8)
    session = df.Session(decoders["a sliding window"], devices=["cpu"])
    for past in range(3, 30):
        session.run(inputs(past))
    assert 5 < compiled[0] < 25
    kept = compiled[0]
    session.run(inputs(29))
    assert compiled[0] == kept


def test_what_a_kernel_refuses_is_planned_for_itself(decoders, compiled, monkeypatch):
    move = SeriesCSegment.move

    def refuses(segment, t):
        expected = segment._made.prepared[segment._moving[0]]
        expected.replaced += t % 3 == 0
        try:
            move(segment, t)
        finally:
            expected.replaced -= t % 3 == 0

    monkeypatch.setattr(SeriesCSegment, "move", refuses)
    session, each = (df.Session(decoders["all"], devices=["cpu"], plans=plans) for plans in (64, 0))
    for past in range(2, 20):
        fed = inputs(past)
        np.testing.assert_array_equal(session.run(fed)["y"], each.run(fed)["y"])
    assert 18 + 5 < compiled[0] < 18 + 12


def test_lengths_that_fit_run_where_longer_ones_would_not(decoders):
    """The limit is on what one length takes: twice it is planned for, refused, and left."""
    each = df.Session(decoders["all"], devices=["cpu"], plans=0)
    one = sum(each.plan({name: array.shape for name, array in inputs(1505).items()}, ["y"]).memory.values())
    session = df.Session(decoders["all"], ["cpu"], limits=df.Limits(bytes=int(2.7 * one)), plans=1)
    for past in range(1500, 1506):
        fed = inputs(past)
        np.testing.assert_array_equal(session.run(fed, ["y"])["y"], each.run(fed, ["y"])["y"])
    assert not any(isinstance(program, SeriesProgram) for program in session._now.engine.programs.values())


def test_sizes_that_would_take_much_memory_are_not_planned_ahead():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 1 << 18))
    g.output("y", df.ops.reduce_sum(df.ops.softmax(x, axis=-1), axes=(1,)))
    session = df.Session(df.Model(g.build()), ["cpu"])
    for batch in range(1, 6):
        x = np.ones((batch, 1 << 18), np.float32)
        assert session.run(x)["y"].shape == (batch, 1)
    assert all(plan.peak_bytes < 1 << 25 for plan in session.plans)


TABLE = """
<ir_version: 9, opset_import: ["" : 20]>
positions (float[1, length] x) => (float[1, length] y) <float[1, 12] table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}>
{
    size = Shape<start = 1>(x)
    zero = Constant<value_ints = [0]>()
    one = Constant<value_ints = [1]>()
    rows = Slice(table, zero, size, one)
    y = Add(x, rows)
}
"""


def test_lengths_up_to_the_last_that_a_model_takes_are_planned_once(tmp_path, compiled):
    onnx.save(onnx.parser.parse_model(TABLE), tmp_path / "positions.onnx")
    session = df.Session(df.load(tmp_path / "positions.onnx"), devices=["cpu"])
    for length in range(2, 13):
        found = session.run(np.ones((1, length), np.float32))["y"]
        np.testing.assert_array_equal(found, 1 + np.arange(length, dtype=np.float32)[None])
    assert compiled[0] == 5  # two lengths, then three for the series
    with pytest.raises(df.InputError):
        session.run(np.ones((1, 13), np.float32))


def test_sizes_ahead_that_would_exceed_a_limit_end_no_run(decoders, monkeypatch):
    """What is computed of sizes may need more than is allowed where they are those of the last plan of a series."""
    bind = series.bind

    def limited(graph, sizes, *more):
        if max(sizes.values()) > 12:
            raise df.LimitExceeded("too much")
        return bind(graph, sizes, *more)

    monkeypatch.setattr(series, "bind", limited)
    session, each = (df.Session(decoders["all"], devices=["cpu"], plans=plans) for plans in (16, 0))
    for past in range(2, 12):
        found, expected = session.run(inputs(past)), each.run(inputs(past))
        np.testing.assert_array_equal(found["y"], expected["y"])


def test_results_go_where_the_caller_says(decoders):
    session = df.Session(decoders["all"], devices=["cpu"])
    for past in range(2, 8):
        fed, out = inputs(past), np.zeros((1, 2, past + 1, 4), np.float32)
        found = session.run(fed, out={"present": out})
        assert found["present"] is out
        np.testing.assert_array_equal(out[:, :, :past], fed["past"])
    with pytest.raises(df.InputError, match=r"float32\[1, 2, 9, 4\]"):
        session.run(inputs(8), out={"present": out})
    with pytest.raises(df.InputError, match="past"):
        session.run({**inputs(8), "past": inputs(8)["past"][:, :1]})


def test_threads_run_different_lengths_at_one_time(decoders):
    session, each = (df.Session(decoders["all"], devices=["cpu"], plans=plans, threads=1) for plans in (16, 0))
    expected = {past: each.run(inputs(past))["y"] for past in range(2, 30)}
    for past in range(2, 6):
        session.run(inputs(past))
    wrong = []

    def work(first):
        order = [*range(first, 30), *range(2, first)]
        wrong.extend(p for p in order if not np.array_equal(session.run(inputs(p))["y"], expected[p]))

    workers = [threading.Thread(target=work, args=(first,)) for first in (2, 9, 16, 23, 28)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


def test_new_weights_are_used(decoders):
    model = decoders["all"].copy()
    session = df.Session(model, devices=["cpu"])
    for past in range(2, 8):
        before = session.run(inputs(past))
    model.parameters["v"].set(2 * model.parameters["v"].array)
    np.testing.assert_array_equal(session.run(inputs(7))["y"], before["y"])
    session.reload()
    for past in range(2, 8):
        found = session.run(inputs(past))
    np.testing.assert_allclose(found["y"], 2 * before["y"], rtol=1e-6)


def test_values_of_a_series_move_between_memories(decoders, remote, compiled):
    session = df.Session(decoders["a mask of sizes"], devices=["remote", "cpu"], registry=remote)
    each = df.Session(decoders["a mask of sizes"], devices=["cpu"], plans=0)
    for past in range(2, 20):
        fed = inputs(past)
        np.testing.assert_allclose(session.run(fed)["y"], each.run(fed)["y"], rtol=1e-5, atol=1e-6)
    assert compiled[0] - 18 == 5
