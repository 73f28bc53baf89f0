"""What a device in C may offer beside what it must: handles, compiled segments, refusals, fast memory, a clock."""

import ctypes
import re
import threading

import numpy as np
import pytest

import dataflow as df
from dataflow.plugin.registry import load
from dataflow.testing import SAMPLES, check_device
from tests.conftest import Plugin, device_library
from tests.support import recorded, recording

COUNTS = ("compiled", "discarded", "prepared", "released", "prepacked", "live", "outputs", "staged")
DEVICES = ["optional", "cpu"]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return device_library("optional", tmp_path_factory.mktemp("optional"))


@pytest.fixture(scope="module")
def optional(library):
    return load([Plugin(library)])


@pytest.fixture
def counted(library):
    """``counted(name)``: how often that happened since the test began."""
    opened = ctypes.CDLL(str(library))
    opened.optional_count.restype = ctypes.c_longlong
    before = [opened.optional_count(i) for i in range(len(COUNTS))]
    return lambda name: opened.optional_count(COUNTS.index(name)) - before[COUNTS.index(name)]


def two_layers(rows=4, columns=8):
    """relu(x w) + relu(x w), in a segment of its own behind a sine, and another one."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (rows, columns))
    w = g.initializer("w", np.linspace(-1, 1, columns * 8, dtype=np.float32).reshape(columns, 8))
    h = df.ops.relu(df.ops.matmul(df.ops.sin(x), w))
    g.output("y", df.ops.sin(df.ops.add(h, h)))
    g.output("z", h)
    return g.build()


def feeds(rows=4, columns=8):
    return {"x": np.linspace(-2, 2, rows * columns, dtype=np.float32).reshape(rows, columns)}


def test_handles_need_no_alignment(optional):
    found = list(check_device("optional", registry=optional, samples=[], variants=["memory"]))
    assert [str(outcome.status) for outcome in found if outcome.variant == "memory"] == ["passed"]


def test_a_device_of_handles_gives_what_another_gives(optional, counted):
    x = recorded("mlp")["x"][0].astype(np.float32)
    session = df.Session(recording("mlp"), devices=DEVICES, registry=optional)
    alone = df.Session(recording("mlp"), devices=["cpu"]).run(x)["logits"]
    for _ in range(2):
        np.testing.assert_allclose(session.run(x)["logits"], alone, rtol=1e-4, atol=1e-5)
    assert {p.device for p in session.placement(x.shape) if p.op == "matmul"} == {"optional"}


def test_it_passes_the_kit(optional):
    small = [s for s in SAMPLES if all(o is None or np.prod(o.shape) < 4000 for o in s.inputs)]
    samples = [s for s in small if s.op.name in ("add", "matmul")]
    found = list(check_device("optional", registry=optional, samples=samples, complete=False))
    assert [o for o in found if o.status == "failed"] == []
    assert sum(o.status == "passed" for o in found) > 20


def test_prepacked_copies_are_made_on_the_host_for_a_memory_that_is_not(optional, counted):
    session = df.Session(df.Model(two_layers()), devices=DEVICES, registry=optional)
    found = session.run(feeds())
    assert counted("prepacked") == 1
    np.testing.assert_allclose(found["y"], df.Session(df.Model(two_layers()), devices=["cpu"]).run(feeds())["y"], 1e-5)


def run_from_threads(session, count):
    barrier = threading.Barrier(count)

    def run():
        barrier.wait()
        session.run(feeds())

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_share_what_is_compiled_and_it_goes_last(optional, counted):
    session = df.Session(df.Model(two_layers()), devices=DEVICES, registry=optional)
    run_from_threads(session, 4)
    segments = sum(segment.device == "optional" for segment in session.plan((4, 8)).segments)
    assert counted("compiled") == segments
    assert counted("prepared") >= segments
    assert counted("discarded") == 0
    session.close()
    del session
    assert counted("released") == counted("prepared")
    assert counted("discarded") == counted("compiled")


def test_a_key_stands_for_what_is_computed(optional, library):
    opened = ctypes.CDLL(str(library))
    opened.optional_key.restype = ctypes.c_char_p

    def key(*sizes):
        df.Session(df.Model(two_layers(*sizes)), devices=DEVICES, registry=optional).run(feeds(*sizes))
        return opened.optional_key()

    assert key() == key()
    assert key() != key(5, 8)
    assert re.fullmatch(rb"[0-9a-f]{32}", key())


def test_what_lives_past_a_segment_is_reported(optional, counted):
    session = df.Session(df.Model(two_layers()), devices=DEVICES, registry=optional)
    session.run(feeds())
    assert counted("outputs") == 3  # of matmul, relu and add
    assert counted("live") == 2  # not matmul's


def test_a_device_that_refuses_nodes_is_not_asked_for_them_again(optional, counted):
    devices = [("optional", {"refuses": 1}), "cpu"]
    session = df.Session(df.Model(two_layers()), devices=devices, registry=optional, fuse=False)
    found = session.run(feeds())["y"]
    np.testing.assert_allclose(found, df.Session(df.Model(two_layers()), devices=["cpu"]).run(feeds())["y"], 1e-5)
    by_op = {p.op: p for p in session.placement((4, 8))}
    assert by_op["add"].device == "cpu"
    assert by_op["matmul"].device == "optional"
    assert "adds are refused today" in by_op["add"].refusals["optional"]
    fused = df.Session(df.Model(two_layers()), devices=devices, registry=optional)  # the sum is in one node with a sine
    np.testing.assert_allclose(fused.run(feeds())["y"], found, 1e-5)
    assert {p.op: p.device for p in fused.placement((4, 8))}["fused_elementwise"] == "cpu"


def test_a_kernel_that_refuses_a_node_when_it_is_prepared_falls_back(optional):
    g = df.GraphBuilder()
    g.output("y", df.ops.relu(g.input("x", df.float32, ("n", "m"))))
    session = df.Session(df.Model(g.build()), devices=DEVICES, registry=optional)
    long_rows = np.linspace(-1, 1, 200, dtype=np.float32).reshape(2, 100)
    for x, device in ((long_rows, "cpu"), (long_rows[:, :64], "optional"), (long_rows, "cpu")):
        np.testing.assert_array_equal(session.run({"x": x})["y"], np.maximum(x, 0))
        (assigned,) = session.placement(x.shape)
        assert assigned.device == device
    assert "rows of 100 are too long" in session.placement((2, 100))[0].refusals["optional"]


def test_a_buffer_that_is_too_large_is_refused_with_its_size(optional):
    g = df.GraphBuilder()
    g.output("y", df.ops.relu(g.input("x", df.float32, (1 << 14, 32))))
    session = df.Session(df.Model(g.build()), devices=DEVICES, registry=optional)
    with pytest.raises(df.OutOfMemoryError, match="its largest buffer has 1048576 bytes"):
        session.run({"x": np.zeros((1 << 14, 32), np.float32)})


def test_what_is_transferred_lies_in_memory_that_the_device_copies_fast(optional, counted):
    session = df.Session(df.Model(two_layers()), devices=DEVICES, registry=optional)
    session.run(feeds())
    assert counted("staged") == 1
    session.close()
    del session
    assert counted("staged") == 0


def test_a_profile_asks_the_clock_of_the_device(optional):
    session = df.Session(df.Model(two_layers()), devices=DEVICES, registry=optional)
    profile = session.profile(feeds(), rounds=2)
    assert [s.seconds for s in profile.steps if s.op == "relu"] == pytest.approx([0.007])
