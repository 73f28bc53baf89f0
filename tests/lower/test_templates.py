"""Graphs that were lowered for some sizes get the numbers of others, exactly as if they were lowered for these."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.ir.dims import broadcast_size, least_size
from dataflow.ir.lowered import Lowered, LoweredNode, Storage
from dataflow.ir.tracing import Trace, active, key_of
from dataflow.lower import template
from dataflow.lower import templates as rooms
from dataflow.lower.template import Template
from dataflow.lower.templates import Sized, Templates
from dataflow.series import RunSeries

WIDTH, WORDS = 8, 12


def numbers(*shape: int) -> np.ndarray:
    return (np.random.default_rng(sum(shape)).standard_normal(shape) / 4).astype(np.float32)


def model() -> df.Model:
    """Attention over words of named batch and length, with a mask, a slice, a mean and constants of named sizes."""
    g = df.GraphBuilder("words")
    ids = g.input("ids", df.int64, ("batch", "length"))
    mask = g.input("mask", df.float32, ("batch", 1, "length"))
    x = ops.gather(g.parameter("table", numbers(WORDS, WIDTH)), ids, axis=0)
    keys = ops.transpose(ops.matmul(x, g.parameter("k", numbers(WIDTH, WIDTH))), perm=(0, 2, 1))
    scores = ops.softmax(ops.add(ops.matmul(x, keys), mask), axis=-1)
    x = ops.add(x, ops.matmul(scores, x))
    last = ops.slice(x, starts=(0, x.shape[1] - 1, 0), stops=tuple(x.shape), steps=(1, 1, 1))
    x = ops.layer_norm(ops.add(x, last), g.parameter("s", numbers(WIDTH)), g.parameter("t", numbers(WIDTH)), axis=-1)
    (half,) = g.add(ops.full, (), {"shape": x.shape, "value": 0.5, "dtype": df.float32}).outputs
    assert half is not None
    x = ops.add(x, ops.matmul(ops.matmul(half, ops.transpose(half, perm=(0, 2, 1))), x))
    x = ops.add(x, ops.reduce_mean(x, axes=(1,), keepdims=True))
    g.output("logits", ops.matmul(x, g.parameter("head", numbers(WIDTH, WORDS))))
    return df.Model(g.build())


def batch(size: int, length: int) -> dict[str, np.ndarray]:
    ids = np.arange(size * length).reshape(size, length) % WORDS
    return {"ids": ids, "mask": numbers(size, 1, length), "labels": (ids + 1) % WORDS}


def storage(of: Storage | None) -> Any:
    if of is None:
        return None
    assert all(type(n) is int for n in (*of.type.shape, *of.base.type.shape, *of.strides, of.offset))
    base = of.base
    return base.number, base.name, base.type, base.memory, base.kind, of.offset, of.strides, of.type


def rows(of: Lowered) -> list[Any]:
    """What was lowered, as what compares by value."""
    found: list[Any] = [[(name, storage(s)) for name, s in named.items()] for named in (of.inputs, of.outputs)]
    found.append([(key, stored.name, storage(stored.storage)) for key, stored in of.stored.items()])
    for item in of.items:
        assert isinstance(item, LoweredNode)
        node, values = item.node, [v for v in (*item.node.inputs, *item.node.outputs) if v is not None]
        found.append((node.op, node.name, repr(dict(node.attributes)), [(v.name, v.type) for v in values]))
        found.append((item.kernel, item.device, [storage(s) for s in (*item.inputs, *item.outputs)]))
    return [*found, [(a.number, b.number) for a, b in of.states], of.stages, dict(of.fallbacks)]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, int]]:
    """Compares what templates give with what is lowered anew; the sizes for which a template had something."""
    given: list[dict[str, int]] = []
    at, lowered = Template.at, Templates.lowered

    def noting(self: Template, sizes: Any, *data: Any) -> Any:
        found = at(self, sizes, *data)
        given.extend([dict(sizes)] if found is not None else [])
        return found

    def comparing(self: Templates, sized: Sized, how: Any, lower: Any) -> Any:
        found, other = lowered(self, sized, how, lower), lower(sized.make(sized.sizes))
        assert rows(found[0]) == rows(other[0])
        assert {k: d.array.tobytes() for k, d in found[1].items()} == {
            k: d.array.tobytes() for k, d in other[1].items()
        }
        return found

    monkeypatch.setattr(template, "LARGE", 64)  # so that some data is made again
    monkeypatch.setattr(Template, "at", noting)
    monkeypatch.setattr(Templates, "lowered", comparing)
    return given


def test_steps_are_lowered_once_for_sizes_that_decide_alike(compared: list[dict[str, int]]) -> None:
    with df.Trainer(model(), df.losses.CrossEntropy(axis=2), devices=["cpu"], threads=1) as trainer:
        for size, length in ((2, 5), (3, 7), (4, 6), (6, 9), (5, 1), (1, 5), (3, 3), (4, 11), (1, 1)):
            trainer.step(batch(size, length))
    assert {sizes["batch"] * sizes["length"] for sizes in compared} >= {24, 54, 44}


def test_runs_of_other_sizes_give_what_a_session_of_their_own_gives(
    compared: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunSeries, "run", lambda *args: None)
    session = df.Session(model(), devices=["cpu"], threads=1, plans=2)
    for size, length in ((2, 5), (3, 7), (4, 6), (6, 9), (2, 5), (1, 5), (4, 6), (5, 8), (7, 10)):
        given = {name: array for name, array in batch(size, length).items() if name != "labels"}
        alone = df.Session(model(), devices=["cpu"], threads=1).run(given)["logits"]
        assert session.run(given)["logits"].tobytes() == alone.tobytes()
    assert {sizes["batch"] for sizes in compared} >= {4, 6, 2}


def positioned() -> df.Model:
    """Words with their positions and sizes, scaled, under a causal mask: what is computed from a length alone."""
    g = df.GraphBuilder("positioned")
    ids = g.input("ids", df.int64, ("batch", "length"))
    (at,) = g.add(ops.range_, (), {"limit": ids.shape[1]}).outputs
    (sizes,) = g.add(ops.sizes, (), {"values": ids.shape, "shape": (2,), "dtype": df.int64}).outputs
    assert at is not None and sizes is not None
    x = ops.gather(g.parameter("table", numbers(WORDS, WIDTH)), ids, axis=0)
    x = ops.mul(ops.add(x, ops.gather(g.parameter("positions", numbers(64, WIDTH)), at, axis=0)), 0.5)
    after = ops.greater(ops.reshape(at, shape=(1, ids.shape[1])), ops.reshape(at, shape=(ids.shape[1], 1)))
    scores = ops.add(ops.matmul(x, ops.transpose(x, perm=(0, 2, 1))), ops.mul(ops.cast(after, to=df.float32), -1e4))
    g.output("y", ops.matmul(ops.softmax(scores, axis=-1), x))
    g.output("sizes", ops.add(ops.cast(sizes, to=df.float32), ops.reduce_sum(x, axes=(0, 1, 2), keepdims=False)))
    return df.Model(g.build())


def test_ranges_scales_and_vectors_of_sizes_hold_for_others(
    compared: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunSeries, "run", lambda *args: None)
    session = df.Session(positioned(), devices=["cpu"], threads=1)
    table, positions = numbers(WORDS, WIDTH), numbers(64, WIDTH)
    for size, length in ((2, 5), (3, 7), (5, 6), (6, 9), (2, 11)):
        ids = batch(size, length)["ids"]
        found = session.run({"ids": ids})
        x = (table[ids] + positions[:length]).astype(np.float64) / 2
        scores = x @ x.transpose(0, 2, 1) - 1e4 * np.triu(np.ones((length, length)), 1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        np.testing.assert_allclose(found["y"], weights / weights.sum(-1, keepdims=True) @ x, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found["sizes"], np.array([size, length]) + x.sum(), rtol=1e-5)
    assert {sizes["length"] for sizes in compared} >= {6, 9, 11}


def test_a_size_is_what_was_decided_about_it() -> None:
    with Trace() as trace:
        n, m = trace.size("n", 6), trace.size("m", 4)
        assert isinstance(n, int) and (n * m).number == 24 and (2 * n + m - 1).number == 15
        assert n != m and n > 2 and max(n, 1) is n and n // 2 % 2 == 1
        assert (n * m) // n == m and n - n == 0 and type(n - n) is int
    assert trace.holds({"n": 6, "m": 4}) and trace.holds({"n": 10, "m": 3})
    assert not trace.holds({"n": 5, "m": 5}) and not trace.holds({"n": 2, "m": 4}) and not trace.holds({"n": 8, "m": 4})
    assert not trace.holds({"n": 0, "m": 4})  # by which it was divided


def test_sizes_that_are_joined_stay_sizes_of_any_number() -> None:
    with Trace() as trace:
        n, m = trace.size("n", 6), trace.size("m", 6)
        assert broadcast_size((n, 1, n)) is n and broadcast_size((n, m)) == n and least_size((n, 9)) is n
    assert trace.holds({"n": 7, "m": 7})
    assert not trace.holds({"n": 7, "m": 8})  # which don't broadcast
    assert not trace.holds({"n": 10, "m": 10}) and not trace.holds({"n": 1, "m": 1})


@pytest.mark.parametrize(
    "read",
    [
        lambda n: np.zeros(n),
        lambda n: [*range(n)],
        lambda n: {n: 1},
        lambda n: n in {6, 7},
        lambda n: n == 6.0,
        lambda n: n / 4,
        lambda n: (1,) * n,
        lambda n: n.bit_length(),
        lambda n: np.int64(6) == n,
    ],
)
def test_what_leaves_as_a_number_holds_for_it_alone(read: Any) -> None:
    with Trace() as trace:
        n = trace.size("n", 6)
        key_of(n, (n, 2))  # decides nothing
        assert trace.holds({"n": 7}) and "6" not in str(n)
        read(n)
    assert trace.holds({"n": 6}) and not trace.holds({"n": 7})
    with pytest.raises(RuntimeError, match="after its trace"):
        n + 1
    assert active() is None


def test_what_kernels_say_is_asked_again(compared: list[dict[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Template] = []
    traced = rooms._traced

    def noted(*args: Any) -> Template | None:
        found = traced(*args)
        made.extend([] if found is None else [found])
        return found

    monkeypatch.setattr(rooms, "_traced", noted)
    with df.Trainer(model(), df.losses.CrossEntropy(axis=2), devices=["cpu"], threads=1) as trainer:
        for length in (5, 7):
            trainer.step(batch(2, length))
        questions = made[0]._trace.asked
        name, (question, about, answer) = next(iter(questions.items()))
        questions[name] = question, about, f"not {answer}"
        trainer.step(batch(2, 8))
    assert not compared
