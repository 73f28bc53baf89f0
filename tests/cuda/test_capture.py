"""CUDA graphs: captures that fail, and what a captured graph depends on."""

from __future__ import annotations

import logging

import numpy as np
import pytest

import dataflow as df
from dataflow._runtime import ffi

DEVICES = ["cuda", "cpu"]


def elementwise(*shape):
    """exp(relu(x)) + sin(x)"""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, shape)
    g.output("y", df.ops.add(df.ops.exp(df.ops.relu(x)), df.ops.sin(x)))
    return df.Model(g.build())


# ---- captures that fail -------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["begin", "launch", "end", "instantiate"])
def test_a_capture_that_fails_leaves_a_session_that_launches_kernels(what, standin, standin_registry, caplog):
    session = df.Session(elementwise(3, 5), devices=DEVICES, registry=standin_registry)
    x = np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5)
    expected = np.exp(np.maximum(x, 0)) + np.sin(x)
    session.run(x)
    standin.fail(what)
    before = standin.graph_launches
    try:
        with caplog.at_level(logging.WARNING, "dataflow"):
            for _ in range(3):
                np.testing.assert_allclose(session.run(x)["y"], expected, rtol=1e-5)
    finally:
        standin.fail("")
    assert standin.graph_launches == before
    (said,) = [r.message for r in caplog.records if "CUDA graph" in r.message]
    assert "kernels are launched one by one" in said


def test_a_card_that_fails_while_it_captures_is_said(standin, standin_registry):
    session = df.Session(elementwise(7), devices=DEVICES, registry=standin_registry)
    x = np.zeros(7, np.float32)
    session.run(x)
    standin.fail("kernel")
    try:
        with pytest.raises(df.DeviceError, match=r"cuda:0 \(stand-in\): .*illegal memory access"):
            session.run(x)
    finally:
        standin.fail("")


# ---- what kernels of a graph wait for -----------------------------------------------------------------


def branching(count):
    """Sums of branches of which each reads x and what the ones before gave, in memory that is used again."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (60, 50))
    found = [x]
    for index in range(count):
        left, right = df.ops.sin(found[-1]), df.ops.cos(found[index // 2])
        found.append(df.ops.add(df.ops.matmul(left, df.ops.transpose(right, perm=(1, 0))), 1.0))
        found[-1] = df.ops.matmul(df.ops.tanh(found[-1]), x)
    g.output("y", df.ops.add(found[-1], found[-2]))
    return df.Model(g.build())


@pytest.mark.parametrize("count", [2, 40])  # within a group of calls, and over several
def test_branches_change_no_bit(count, cuda):
    model, x = branching(count), np.random.default_rng(4).standard_normal((60, 50)).astype(np.float32)
    results = []
    for branches in (1, 0):
        devices = [("cuda", {"branches": branches}), "cpu"]
        session = df.Session(model, devices=devices, registry=cuda, fuse=False)
        results += [session.run(x)["y"] for _ in range(3)]  # launched, captured, replayed
    for result in results:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("branches", [0, 1])
def test_kernels_overtake_those_that_they_need_not_wait_for(branches, standin, standin_registry):
    devices = [("cuda", {"branches": branches}), "cpu"]
    session = df.Session(branching(2), devices=devices, registry=standin_registry, fuse=False)
    before = standin.overtakings
    for _ in range(3):
        session.run(np.ones((60, 50), np.float32))
    assert (standin.overtakings > before) == bool(branches)


# ---- what a captured graph depends on -----------------------------------------------------------------


class Gather:
    """relu(gather(table, indices)) as a segment by itself, its operands in one buffer that each run names."""

    def __init__(self, registry):
        g = df.GraphBuilder()
        table, indices = g.input("table", df.float32, (4, 3)), g.input("indices", df.int64, (2,))
        g.output("y", df.ops.relu(df.ops.gather(table, indices, axis=0)))
        self._session = df.Session(df.Model(g.build()), devices=["cuda"], registry=registry)
        plan = self._session.plan()
        (segment,) = plan.segments
        first, last = segment.steps
        self._table, self._indices, self._y = (o.offset for o in (*first.inputs, *last.outputs))
        self.backend = registry.devices["cuda"].open({})
        arenas = [(None, arena.bytes, 0 if arena.kind == "arena" else -1) for arena in plan.arenas]
        self._bytes = next(arena.bytes for arena in plan.arenas if arena.kind == "arena")
        self._bound = self.backend.bind(segment, arenas, 1)

    def buffer_with(self, values):
        """A buffer with this table."""
        buffer = self.backend.alloc(self._bytes)
        self.backend.write(buffer, self._table, values)
        return buffer

    def run(self, buffer, *indices):
        self.backend.write(buffer, self._indices, np.array(indices))
        self._bound.run(ffi.new("void *[]", [buffer.base]), 1, ffi.NULL, ffi.NULL)

    def result(self, buffer):
        found = np.empty((2, 3), np.float32)
        self.backend.read(found, buffer, self._y)
        return found


VALUES = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_a_graph_is_made_again_when_its_operands_lie_elsewhere(cuda):
    gather = Gather(cuda)
    buffers = [gather.buffer_with(VALUES), gather.buffer_with(100 + VALUES)]
    for which in (0, 0, 0, 1, 1, 1, 0, 1, 0):  # launched, captured, replayed, ...
        gather.run(buffers[which], which, 3)
        np.testing.assert_array_equal(gather.result(buffers[which]), 100 * which + VALUES[[which, 3]])


def test_a_fault_survives_the_runs_that_follow_it(cuda):
    gather = Gather(cuda)
    buffer = gather.buffer_with(VALUES)
    for good in range(3):
        gather.run(buffer, 1, 7 + good)
        gather.run(buffer, 1, 2)
        gather.run(buffer, 1, 20)
        with pytest.raises(df.InputError, match=rf": {7 + good} is out of range for"):
            gather.backend.sync()
        gather.run(buffer, 1, 2)
        gather.backend.sync()  # it is reported once
        np.testing.assert_array_equal(gather.result(buffer), VALUES[[1, 2]])


def test_a_fault_of_a_run_that_failed_is_not_that_of_the_next_one(standin, standin_registry):
    gather = Gather(standin_registry)
    buffer = gather.buffer_with(VALUES)
    standin.fail("launch", "df_map")
    try:
        with pytest.raises(df.DeviceError, match="launching"):
            gather.run(buffer, 1, 7)
    finally:
        standin.fail("")
    gather.run(buffer, 1, 2)
    np.testing.assert_array_equal(gather.result(buffer), VALUES[[1, 2]])


# ---- errors of others ---------------------------------------------------------------------------------


def test_an_error_that_was_reported_is_not_blamed_on_the_next_launch(standin, standin_registry):
    x = np.zeros(7, np.float32)
    session = df.Session(elementwise(7), devices=DEVICES, registry=standin_registry)
    other = df.Session(elementwise(7), devices=DEVICES, registry=standin_registry)
    session.run(x)
    standin.fail("allocation", skip=1)  # the arena, then what a segment needs of its own
    try:
        with pytest.raises(df.OutOfMemoryError, match="preparing a segment"):
            other.run(x)
        np.testing.assert_array_equal(session.run(x)["y"], np.ones(7))
    finally:
        standin.fail("")


def test_an_error_of_somebody_else_is_not_blamed_on_the_next_launch(standin, standin_registry):
    session = df.Session(elementwise(7), devices=DEVICES, registry=standin_registry)
    for _ in range(3):
        standin.choose(99)
        np.testing.assert_array_equal(session.run(np.zeros(7, np.float32))["y"], np.ones(7))
