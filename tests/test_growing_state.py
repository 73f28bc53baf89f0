"""State that grows where it lies has, bit by bit, the results of state that each run copies."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
import pytest

import dataflow as df
from dataflow import engine
from dataflow.ir import series as lines
from dataflow.planning.verify import PlanViolation, check_plan
from tests.decoders import inputs, text_of
from tests.growing import check_rows

STATE = {"present": "past"}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("growing") / "decoder.onnx"
    onnx.save(onnx.parser.parse_model(text_of("all")), path)
    return path


@pytest.fixture
def short(monkeypatch):
    """Series end soon, so that the memory for rows is laid out anew."""
    monkeypatch.setattr(lines, "_LEAST", 5)


def kinds(session):
    return [{arena.kind for arena in plan.arenas} & {"before", "after", "grown"} for plan in session.plans]


class _Caller:
    """Keeps the cache itself, of a session without state."""

    def __init__(self, session):
        self.session, self.past = session, None

    def reset(self, values=None):
        self.past = None if values is None else values["past"]

    @property
    def state(self):
        return {} if self.past is None else {"past": self.past}

    def run(self, fed):
        empty = np.zeros((len(fed["x"]), 2, 0, 4), np.float32)
        found = self.session.run({**fed, "past": empty if self.past is None else self.past})
        self.past = found.pop("present")
        return found


class _Copied:
    """A session of which no state grows where it lies."""

    def __init__(self, session, monkeypatch):
        self.session, self.reset, self._patched = session, session.reset, monkeypatch.context

    @property
    def state(self):
        return self.session.state

    def run(self, fed):
        with self._patched() as patch:
            patch.setattr(engine, "growing_sizes", lambda *_: {})
            return self.session.run(fed)


@pytest.mark.parametrize(("first", "seed"), [*(("cpu", seed) for seed in range(5)), ("remote", 5)])
def test_any_runs_have_the_results_of_copied_state(file, remote, short, monkeypatch, first, seed):
    devices = {"devices": list(dict.fromkeys([first, "cpu"])), "registry": remote}
    rng, model = np.random.default_rng(seed), df.load(file)
    grown = [df.Session(model, state=STATE, plans=plans, **devices) for plans in (1, 16)]
    callers = [_Caller(df.Session(model, **devices)) for _ in range(2)]
    copied = [_Copied(df.Session(model, state=STATE, **devices), monkeypatch) for _ in range(2)]
    theirs = onnxruntime.InferenceSession(file)
    for _ in range(8):
        which, event = rng.integers(2), rng.integers(5)
        sessions = grown[which], copied[which], callers[which]
        if event == 0:
            for session in sessions:
                session.reset()
        elif event == 1 and callers[1 - which].state:  # goes on from what the other session left
            for session, other in zip(sessions, (grown, copied, callers), strict=True):
                session.reset(other[1 - which].state)
        elif event == 2 and callers[which].state:  # a beam of others
            rows = rng.integers(len(callers[which].past), size=rng.integers(1, 3))
            for session in sessions:
                session.reset({"past": session.state["past"][rows]})
        batch = len(callers[which].past) if callers[which].state else int(rng.integers(1, 3))
        for new in [*rng.integers(1, 4, rng.integers(2)), *[1] * rng.integers(3, 14)]:
            past = callers[which].past
            fed = inputs(0 if past is None else past.shape[2], batch, int(new))
            del fed["past"]
            found = [session.run(fed)["y"] for session in sessions]
            for other in found[1:]:
                np.testing.assert_array_equal(found[0], other)
        empty = np.zeros((batch, 2, 0, 4), np.float32)
        expected = theirs.run(["y"], {**fed, "past": empty if past is None else past})[0]
        np.testing.assert_allclose(found[0], expected, rtol=1e-4, atol=1e-5)
        for other in sessions[1:]:
            np.testing.assert_array_equal(sessions[0].state["past"], other.state["past"])
    # Of the remote device no kernel concatenates: its state is copied.
    assert all(({"grown"} in kinds(session)) == (first == "cpu") for session in grown)
    assert not any({"grown"} in kinds(session.session) for session in copied)


def test_a_token_writes_its_own_rows_alone(file):
    session = df.Session(df.load(file), ["cpu"], state=STATE)
    for past in range(12):
        fed = inputs(past)
        session.run({"x": fed["x"], "mask": fed["mask"]})
    plan = session.plans[-1]
    (arena,) = (arena for arena in plan.arenas if arena.kind == "grown")
    before, after = plan.inputs["past"], plan.outputs["present"]
    rows = after.type.sizes[2] + 1
    assert before.strides == after.strides == (2 * 4 * rows, 4 * rows, 4, 1)
    assert plan.memory["state"] == arena.bytes == 2 * 4 * rows * 4
    written = [o for s in plan.segments for step in s.steps for o in step.outputs if o and o.value == after.value]
    assert [(o.type.sizes, o.offset) for o in written] == [((1, 2, 1, 4), (rows - 2) * 4 * 4)]
    assert not any(step.node.op.name == "concat" for s in plan.segments for step in s.steps)


@pytest.mark.parametrize("seed", range(12))
def test_rows_of_any_type_are_added_along_any_axis(seed):
    assert "grown" in check_rows(np.random.default_rng(seed), ["cpu"])
    check_rows(np.random.default_rng(seed), ["cpu"], views=True)


def grown_graph(read):
    """``present`` is ``past`` with ``x`` behind it along axis 1; ``read`` makes ``y`` from both and from ``ids``."""
    g = df.GraphBuilder()
    past, x = g.input("past", df.float32, ("batch", "length", 3)), g.input("x", df.float32, ("batch", 1, 3))
    ids = g.input("ids", df.int64, (1,))
    after = df.ops.concat(past, df.ops.tanh(x), axis=1)
    after, y = read(past, after, ids)
    g.output("y", y)
    g.output("present", after)
    return df.Model(g.build())


def test_a_run_that_fails_behind_what_it_wrote_changes_nothing():
    session = df.Session(grown_graph(lambda _, after, ids: (after, df.ops.gather(after, ids, axis=1))), state=STATE)
    expected = []
    for step in range(12):
        x = np.full((2, 1, 3), step, np.float32)
        if step in (6, 7, 11):
            before = session.state["past"]
            with pytest.raises(df.InputError):
                session.run({"x": x + 50, "ids": np.array([99])})
            np.testing.assert_array_equal(session.state["past"], before)
        expected.append(np.tanh(x))
        y = session.run({"x": x, "ids": np.array([step // 2])})["y"]
        np.testing.assert_allclose(y[:, 0], expected[step // 2][:, 0], rtol=1e-6)
    assert {"grown"} in kinds(session)
    np.testing.assert_allclose(session.state["past"], np.concatenate(expected, 1), rtol=1e-6)


@pytest.mark.parametrize(
    ("grows", "read"),
    [
        (True, lambda past, after, ids: (after, df.ops.softmax(past, axis=1) + df.ops.reduce_max(after, axes=(1,)))),
        (False, lambda past, after, ids: (df.ops.gather(after, df.ops.concat(ids, ids, axis=0), axis=0), after)),
        (False, lambda past, after, ids: (df.ops.mul(after, 1.5), after)),
        (False, lambda past, after, ids: (df.ops.concat(after, past, axis=1), after)),
    ],
    ids=["both are read", "another order", "another value", "twice"],
)
def test_what_is_more_than_a_concat_is_copied(grows, read):
    model = grown_graph(read)
    session, other = df.Session(model, ["cpu"], state=STATE), _Caller(df.Session(model, ["cpu"]))
    for number in range(9):
        start = {"past": np.ones((2, 2, 3), np.float32)}
        if not number:
            session.reset(start)
            other.reset(start)
        fed = {"x": np.full((2, 1, 3), number, np.float32), "ids": np.array([1])}
        np.testing.assert_array_equal(session.run(fed)["y"], other.run(fed)["y"])
        np.testing.assert_array_equal(session.state["past"], other.past)
    assert ({"grown"} in kinds(session)) == grows


def test_what_another_concat_wants_in_its_memory_is_copied_to_the_state():
    g = df.GraphBuilder()
    past, x = g.input("past", df.float32, (1, "length", 6)), g.input("x", df.float32, (1, 2, 3))
    new = df.ops.concat(df.ops.tanh(x), df.ops.relu(x), axis=2)
    g.output("y", df.ops.relu(df.ops.concat(new, df.ops.relu(new), axis=0)))
    after = df.ops.concat(past, new, axis=1)
    g.output("present", after)
    g.output("sum", df.ops.softmax(after, axis=1))
    model = df.Model(g.build())
    session, other = df.Session(model, ["cpu"], state=STATE), _Caller(df.Session(model, ["cpu"]))
    other.reset({"past": np.zeros((1, 0, 6), np.float32)})
    for number in range(8):
        fed = {"x": np.full((1, 2, 3), number - 2, np.float32)}
        found, expected = session.run(fed), other.run(fed)
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)
    assert {"grown"} in kinds(session)


def test_a_plan_that_overwrites_what_it_found_is_seen(file):
    session = df.Session(df.load(file), ["cpu"], state=STATE)
    for past in range(6):
        fed = inputs(past)
        session.run({"x": fed["x"], "mask": fed["mask"]})
    plan = session.plans[-1]
    arena = next(i for i, a in enumerate(plan.arenas) if a.kind == "grown")

    def shifted(step):
        outputs = [o and (replace(o, offset=0, origin=0) if o.arena == arena else o) for o in step.outputs]
        return replace(step, outputs=tuple(outputs))

    items = tuple(replace(item, steps=tuple(map(shifted, item.steps))) for item in plan.items)
    check_plan(plan)
    with pytest.raises(PlanViolation, match="overwrites the state 'past'"):
        check_plan(replace(plan, items=items))
