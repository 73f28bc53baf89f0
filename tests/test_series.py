"""Runs whose sizes grow in equal steps: planned at once, with the results of plans for each."""

import threading

import numpy as np
import onnx
import pytest

import dataflow as df
from dataflow import series as series_module
from dataflow.cdevice.series import SeriesCSegment
from dataflow.engine import Engine

HEAD = '<ir_version: 9, opset_import: ["" : 20]>'
DECODER = """
decoder (float[batch, new, 8] x, int64[batch, total] mask, float[batch, 2, past, 4] past)
    => (float[batch, new, 8] y, float[batch, 2, all, 4] present)
    <float[8, 24] w = {%s}, float[8, 8] v = {%s}, int64[4] heads = {0, 0, 2, 4}, int64[3] joined = {0, 0, 8},
     float scale = {0.5}, int64[1] one = {1}, int64[1] two = {2}, float masked = {-1e4}, float zero = {0}>
{
    qkv = MatMul(x, w)
    q0, k0, v0 = Split<axis = 2, num_outputs = 3>(qkv)
    q1 = Reshape(q0, heads)
    k1 = Reshape(k0, heads)
    v1 = Reshape(v0, heads)
    q = Transpose<perm = [0, 2, 1, 3]>(q1)
    k = Transpose<perm = [0, 2, 1, 3]>(k1)
    values = Transpose<perm = [0, 2, 1, 3]>(v1)
    both = Add(k, values)
    present = Concat<axis = 2>(past, both)
    READ
    keys = Transpose<perm = [0, 1, 3, 2]>(read)
    scores = MatMul(q, keys)
    scaled = Mul(scores, scale)
    kept = Cast<to = 9>(window)
    wide = Unsqueeze(kept, axes)
    zeroed = Where(wide, zero, masked)
    seen = Add(scaled, zeroed)
    weights = Softmax<axis = -1>(seen)
    out = MatMul(weights, read)
    rows = Transpose<perm = [0, 2, 1, 3]>(out)
    flat = Reshape(rows, joined)
    y = MatMul(flat, v)
}
"""
AXES = "axes = Constant<value_ints = [1, 2]>()\n"
START = "    begin = Constant<value_ints = [-7]>()\n    most = Constant<value_ints = [9223372036854775807]>()\n"
# What is read of the cache, and of the mask: by all that sizes can decide.
READS = {
    "all": "read = Identity(present)\n    window = Identity(mask)",
    "a sliding window": START
    + "    read = Slice(present, begin, most, two)\n    window = Slice(mask, begin, most, one)",
    "every second": """zero0 = Constant<value_ints = [0]>()
    most = Constant<value_ints = [9223372036854775807]>()
    read = Slice(present, zero0, most, two, two)
    window = Slice(mask, zero0, most, one, two)""",
    "a mask of sizes": """read = Identity(present)
    shape = Shape(present)
    index = Constant<value_int = 2>()
    length = Gather(shape, index)
    none = Constant<value_int = 0>()
    step = Constant<value_int = 1>()
    places = Range(none, length, step)
    period = Constant<value_int = 16>()
    rest = Mod(places, period)
    fits = Mod(length, period)
    at = Equal(fits, none)
    even = Less(rest, period)
    some = And(even, even)
    flips = Xor(some, at)
    numbers = Cast<to = 7>(flips)
    window = Mul(mask, numbers)""",
}


def text_of(read):
    rng = np.random.default_rng(3)
    arrays = [", ".join(f"{n:.6f}" for n in rng.standard_normal(size)) for size in (8 * 24, 8 * 8)]
    return HEAD + (DECODER % tuple(arrays)).replace("READ", AXES + "    " + READS[read])


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    """A model for each of what is read."""
    folder = tmp_path_factory.mktemp("decoders")
    for read in READS:
        onnx.save(onnx.parser.parse_model(text_of(read)), folder / f"{read}.onnx")
    return {read: df.load(folder / f"{read}.onnx") for read in READS}


def inputs(past, batch=1, new=1):
    rng = np.random.default_rng(100 * past + batch)
    return {
        "x": rng.standard_normal((batch, new, 8), np.float32),
        "mask": (rng.random((batch, past + new)) < 0.8).astype(np.int64),
        "past": rng.standard_normal((batch, 2, past, 4), np.float32),
    }


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
    monkeypatch.setattr(series_module, "_LEAST", 16)
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
    monkeypatch.setattr(series_module, "_LEAST", 8)
    session = df.Session(decoders["all"], devices=["cpu"])
    for past in range(3, 100):
        session.run(inputs(past))
    assert compiled[0] == 2 + 3 * 4  # up to 13, 28, 58 and 118


def test_sizes_that_decide_otherwise_in_the_middle_are_planned(decoders, compiled, monkeypatch):
    """The window is full from a length of 6 on: no series has lengths on both sides of it."""
    monkeypatch.setattr(series_module, "_LEAST", 8)
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
        segment._reserved[:] = -1 if t % 3 == 0 else 1 << 30
        move(segment, t)

    monkeypatch.setattr(SeriesCSegment, "move", refuses)
    session, each = (df.Session(decoders["all"], devices=["cpu"], plans=plans) for plans in (64, 0))
    for past in range(2, 20):
        fed = inputs(past)
        np.testing.assert_array_equal(session.run(fed)["y"], each.run(fed)["y"])
    assert 18 + 5 < compiled[0] < 18 + 12


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
