"""What a training step computes again to need less memory: budgets are kept or refused, and no bit changes."""

from __future__ import annotations

import random as standard
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import dataflow as df
from dataflow import ops
from dataflow._runtime import ffi
from dataflow.passes.fuse_elementwise import MOST_INPUTS
from dataflow.planning import memory_goal as goals
from dataflow.planning.verify import check_plan
from dataflow.train.binding.series import BatchSeries
from dataflow.train.joint import ACCUMULATOR

WIDTH, BATCH = 16, 24


def network(seed: int, layers: int = 7) -> df.Model:
    """Layers of random kinds, some of them around residual connections."""
    choose, numbers = standard.Random(seed), np.random.default_rng(seed)
    g = df.GraphBuilder("network")
    h = g.input("x", df.float32, (BATCH, WIDTH))

    def parameter(name: str, *shape: int) -> Any:
        return g.parameter(f"{name}{len(g.nodes())}", (numbers.standard_normal(shape) / 4).astype(np.float32))

    def dense(value: Any) -> Any:
        return ops.add(ops.matmul(value, parameter("w", WIDTH, WIDTH)), parameter("b", WIDTH))

    def batch_norm(value: Any) -> Any:
        at = len(g.nodes())
        start = {"mean": numbers.random(WIDTH).astype(np.float32), "variance": np.ones(WIDTH, np.float32)}
        running = [g.initializer(f"{name}{at}", array, role="statistic") for name, array in start.items()]
        return ops.batch_norm(value, parameter("scale", WIDTH), parameter("shift", WIDTH), *running, epsilon=1e-5)

    kinds = {
        "relu": lambda v: ops.relu(dense(v)),
        "gelu": lambda v: ops.gelu(dense(v)),
        "tanh": lambda v: ops.mul(ops.tanh(v), ops.sigmoid(v)),
        "norm": lambda v: ops.layer_norm(v, parameter("s", WIDTH), parameter("t", WIDTH), axis=-1),
        "batch_norm": lambda v: ops.relu(batch_norm(dense(v))),
        "dropout": lambda v: ops.dropout(dense(v), ratio=0.25),
        "softmax": lambda v: ops.mul(ops.softmax(v, axis=-1), v),
        "halves": lambda v: ops.concat(
            ops.sin(ops.slice(v, starts=(0, 0), stops=(BATCH, WIDTH // 2), steps=(1, 1))),
            ops.slice(v, starts=(0, WIDTH // 2), stops=(BATCH, WIDTH), steps=(1, 1)),
            axis=1,
        ),
    }  # fmt: skip
    for _ in range(layers):
        made = kinds[choose.choice([*kinds])](h)
        h = ops.add(made, h) if choose.random() < 0.4 else made
    g.output("y", ops.matmul(h, parameter("v", WIDTH, 3)))
    return df.Model(g.build())


def batches(count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [
        {"x": random.standard_normal((BATCH, WIDTH)).astype(np.float32), "labels": random.integers(0, 3, BATCH)}
        for _ in range(count)
    ]


def trained(model: df.Model, **options: Any) -> tuple[list[float], dict[str, bytes], dict[str, Any]]:
    """Losses, gradients, what changed, and plans, of two optimizer steps; the last one program by program."""
    options = {"accumulate": 2, "batch_norm": "update", "clip_norm": 1.0, "devices": ["cpu"], **options}
    with df.Trainer(model, **options) as trainer:
        first, *others = batches(4)
        losses = [trainer.step(first)]
        found = {ACCUMULATOR + name: array.tobytes() for name, array in trainer.programs.gradients().items()}
        losses += [trainer.step(batch) for batch in others[:-1]]
        terms = trainer.forward(others[-1])
        trainer.backward()
        trainer.update()
        losses.append(float(terms["loss"]))
        plans = {name: plan for name, plan in trainer.programs.plans().items() if name.startswith("joint")}
        return losses, found | {name: array.tobytes() for name, array in trainer.programs.state().items()}, plans


@settings(max_examples=4, derandomize=True, phases=[Phase.generate])
@given(seed=st.integers(0, 1 << 30))
def test_every_budget_is_kept_or_refused_and_no_bit_changes(seed: int) -> None:
    options = {"dropout": any(node.op is ops.dropout for node in network(seed).graph.nodes)}
    losses, bits, plans = trained(network(seed), memory="1x", **options)
    peaks = {name: plan.peak_bytes for name, plan in plans.items()}
    assert all(plan.again is None for plan in plans.values())
    refused = 0.0
    for fraction in (0.8, 0.6, 0.4):
        try:
            again, same, made = trained(network(seed), memory=f"{fraction}x", **options)
        except df.InputError as error:
            assert "are too few" in str(error)
            refused = max(refused, fraction)
            continue
        assert refused < fraction  # what is refused is less than what is kept
        assert (again, same) == (losses, bits)
        for name, plan in made.items():
            assert plan.peak_bytes <= fraction * peaks[name]
            assert plan.again is not None
            assert plan.again.peak_bytes == peaks[name]


def test_the_least_that_a_refusal_names_is_possible() -> None:
    with df.Trainer(network(3), memory=1) as trainer, pytest.raises(df.InputError, match="takes at least") as refusal:
        trainer.step(batches(1)[0])
    assert "more work" in str(refusal.value)
    fraction = float(str(refusal.value).partition("(0.")[2][:2]) / 100
    trained(network(3), accumulate=1, memory=f"{fraction + 0.01:.2f}x")


def test_nothing_is_computed_again_in_a_small_arena_without_a_budget() -> None:
    _, _, plans = trained(network(5))
    assert all(plan.again is None for plan in plans.values())


def test_without_a_budget_it_costs_a_hundredth_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goals, "FREE_FROM", 0)
    monkeypatch.setattr(goals, "FREE", 0.1)  # of steps of small tensors, where a call costs as much as its work
    losses, bits, plans = trained(network(2, layers=16), memory="1x")
    again, same, made = trained(network(2, layers=16))
    assert (again, same) == (losses, bits)
    assert any(plan.again is not None for plan in made.values())
    for name, plan in made.items():
        assert plan.peak_bytes <= plans[name].peak_bytes
        assert plan.again is None or 0 < plan.again.cost <= goals.FREE


@pytest.mark.parametrize("gains", [True, False])
def test_what_is_computed_again_is_searched_anew_where_memory_is_no_more_alike(
    monkeypatch: pytest.MonkeyPatch, gains: bool
) -> None:
    """Whether a search found something or not; its schedule is taken for other sizes, and no bit changes."""
    monkeypatch.setattr(goals, "FREE_FROM", 0)
    monkeypatch.setattr(goals, "FREE", 0.1 if gains else 0.0)
    searched, free = [], goals._Search.free

    def counted(search: Any) -> Any:
        searched.append(search.peak)
        return free(search)

    monkeypatch.setattr(goals._Search, "free", counted)
    monkeypatch.setattr(BatchSeries, "member", lambda *args: None)
    g, random = df.GraphBuilder("chain"), np.random.default_rng(0)
    h = g.input("x", df.float32, ("batch", WIDTH))
    for layer in range(6):
        w = g.parameter(f"w{layer}", (random.standard_normal((WIDTH, WIDTH)) / 4).astype(np.float32))
        h = ops.mul(ops.tanh(ops.matmul(h, w)), ops.sigmoid(h))
    g.output("y", h)
    model = df.Model(g.build())

    def steps(memory: str | None) -> tuple[list[float], list[bool], list[int]]:
        losses, again, counts = [], [], []
        trainer = df.Trainer(model.copy(), accumulate=2, memory=memory, devices=["cpu"])
        with trainer:
            for size in (400, 360, 240, 500, 1600, 2000):
                x = np.random.default_rng(size).standard_normal((size, WIDTH)).astype(np.float32)
                losses += [trainer.step({"x": x, "labels": np.arange(size) % WIDTH}) for _ in range(2)]
                again.append(trainer.programs.joint_plan().again is not None)
                check_plan(trainer.programs.joint_plan())
                counts.append(len(searched))
        return losses, again, counts

    losses, again, counts = steps(None)
    assert counts[:4] == [2, 2, 2, 2]  # of the first micro-batch and of the second
    assert counts[4] == 4
    assert again == [gains] * 6
    assert steps("1x") == (losses, [False] * 6, [counts[-1]] * 6)


@pytest.mark.parametrize("devices", [["numpy"], ["remote", "cpu"]])
def test_other_devices_keep_budgets_with_the_same_bits(devices: list[str], remote: Any) -> None:
    options: dict[str, Any] = {"devices": devices, "registry": remote if "remote" in devices else None}
    losses, bits, plans = trained(network(4, layers=10), memory="1x", **options)
    again, same, made = trained(network(4, layers=10), memory="0.7x", **options)
    assert (again, same) == (losses, bits)
    for name, plan in made.items():
        check_plan(plan)
        assert plan.peak_bytes <= 0.7 * plans[name].peak_bytes


def test_a_plan_says_what_runs_again(tmp_path: Any) -> None:
    _, _, plans = trained(network(6, layers=12), memory="0.7x")
    plan = plans["joint-True"]
    assert plan.again is not None
    steps = [step.node.name for segment in plan.segments for step in segment.steps]
    names = [name for name, _ in plan.again.nodes]
    assert names
    assert set(names) <= set(steps)
    assert {name.partition("/again")[0] for name in names} <= set(steps)
    stop = plan.ranges["forward"].stop
    forward = [step.node.name for item in plan.items[:stop] for step in item.steps]
    assert forward == [name for name in forward if "/again" not in name]
    for words in (f"{len(names)} nodes run again", f"the peak is {plan.again.peak_bytes} bytes"):
        assert words in str(plan)
    plan.save_html(str(tmp_path / "plan.html"))
    assert "computed again" in (tmp_path / "plan.html").read_text("utf-8")


def test_small_steps_take_the_same_memory_with_many_threads() -> None:
    """A kernel's workspace has a slice for each thread that gets a task, not for each that there is."""
    peaks = []
    for threads in (2, 32):
        _, _, plans = trained(network(2), memory="1x", devices=["cpu"], threads=threads)
        peaks.append(plans["joint-True"].peak_bytes)
    assert peaks[1] == peaks[0]


def test_what_is_not_trained_is_read_where_the_model_has_it() -> None:
    """With parameters that are trained it is as ever: the model's array stays as it was until they come back.

    Of so many rows products read a weight as it lies; of 5 to 64 they have a copy of one that isn't trained.
    """

    def stored(random: np.random.Generator, *shape: int) -> np.ndarray:
        array = df.empty(shape, df.float32)
        array[:] = random.standard_normal(shape)
        array.flags.writeable = False
        return array

    def larger(several: list[Any], count: int) -> list[Any]:
        groups = [several[i : i + count] for i in range(0, len(several), count)]
        return [{name: np.concatenate([batch[name] for batch in group]) for name in group[0]} for group in groups]

    random = np.random.default_rng(0)
    body, head = stored(random, WIDTH, 64), stored(random, 64, 3)
    g = df.GraphBuilder("network")
    h = ops.relu(ops.matmul(g.input("x", df.float32, (4 * BATCH, WIDTH)), g.parameter("body", body)))
    g.output("y", ops.matmul(h, g.parameter("head", head)))
    model, start = df.Model(g.build()), head.copy()
    with df.Trainer(model, trainable=["head"], devices=["cpu"]) as trainer:
        for batch in larger(batches(8), 4):
            trainer.step(batch)
            trainer.evaluate(batch, batch_size=4 * BATCH)
        variables = trainer.programs.engine.variables
        addresses = {name: int(ffi.cast("uintptr_t", variables.buffer(name).base)) for name in ("body", "head")}
        assert addresses["body"] == body.__array_interface__["data"][0]
        assert addresses["head"] != head.__array_interface__["data"][0]
        state = trainer.programs.state()
        trainer.programs.load_state(state)
        np.testing.assert_array_equal(head, start)
    np.testing.assert_array_equal(model.parameters["head"].array, state["parameters/head"])


def one_matrix(width: int = 512) -> df.Model:
    g = df.GraphBuilder("one_matrix")
    w = g.parameter("w", np.eye(width, dtype=np.float32))
    g.output("y", ops.matmul(g.input("x", df.float32, ("batch", width)), w))
    return df.Model(g.build())


def test_a_checkpoint_is_written_and_read_without_copies_that_stay(tmp_path: Any) -> None:
    """Counted by Python: arrays; the Trainer's own memory isn't among them."""
    data = {"x": np.ones((4, 512), np.float32), "labels": np.zeros(4, np.int64)}
    matrix = 512 * 512 * 4
    options: dict[str, Any] = {"batch_size": 2, "progress": False, "checkpoint": tmp_path}
    with df.Trainer(one_matrix(), devices=["cpu"]) as trainer:
        trainer.fit(data, batch_size=2, progress=False)
        tracemalloc.start()
        try:
            trainer.fit(data, epochs=1, **options)
            assert tracemalloc.get_traced_memory()[1] < matrix  # of three
        finally:
            tracemalloc.stop()
        viewed, expected = trainer.programs.state(copies=False), trainer.programs.state()
        for name, array in viewed.items():
            assert not array.flags.writeable
            np.testing.assert_array_equal(array, expected[name])
    with df.Trainer(one_matrix(), devices=["cpu"]) as trainer:
        tracemalloc.start()
        try:
            trainer.fit(data, epochs=2, resume="auto", **options)
            assert max(trace.size for trace in tracemalloc.take_snapshot().traces) < matrix
        finally:
            tracemalloc.stop()
        assert trainer.steps == 6


@pytest.mark.parametrize("memory", ["half", "0x", "-1", "0.5", 0, -5, 1.5, True, "5T", ""])
def test_what_is_no_budget_is_refused(memory: Any) -> None:
    with pytest.raises(df.InputError, match=r"memory is .*; expected bytes"):
        df.Trainer(network(0), memory=memory)


@pytest.mark.parametrize(
    "memory, fraction, count",
    [(None, None, None), ("0.5x", 0.5, None), (".25x", 0.25, None), ("2x", 2.0, None), (np.int64(7), None, 7),
     ("200M", None, 200 << 20), ("7", None, 7)],
)  # fmt: skip
def test_budgets_are_fractions_or_bytes(memory: Any, fraction: float | None, count: int | None) -> None:
    assert goals.memory_goal(memory) == goals.MemoryGoal(fraction, count)


def test_gradients_of_a_weight_that_is_read_often_are_added_where_they_are_made() -> None:
    random = np.random.default_rng(0)
    g = df.GraphBuilder("network")
    h, w = g.input("x", df.float32, (BATCH, WIDTH)), g.parameter("w", np.eye(WIDTH, dtype=np.float32))
    for _ in range(24):
        h = ops.tanh(ops.matmul(h, w))
    g.output("y", ops.matmul(h, g.parameter("v", random.standard_normal((WIDTH, 3)).astype(np.float32))))
    with df.Trainer(df.Model(g.build()), memory="1x") as trainer:
        trainer.step(batches(1)[0])
        plan = trainer.plans()["step"]
    lives = [life for rows in plan.lifetimes.values() for _, life, _ in rows if life.bytes == WIDTH * WIDTH * 4]
    lives.remove(max(lives, key=lambda life: life.stop))  # their sum, where one of them lay
    assert len(lives) == 23
    # One kernel adds so many of them as an elementwise program has inputs.
    assert max(sum(a.start <= life.start < a.stop for a in lives) for life in lives) <= MOST_INPUTS + 1


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("shape", [(5, 3), (2, 7, 5, 5), (3, 2, 64, 65), (64, 40)])
def test_a_batch_norm_with_known_statistics_gives_the_same_bits(device: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    g = df.GraphBuilder("batch norm")
    x = g.input("x", df.float32, shape)
    vectors = [g.constant(random.random(shape[1]).astype(np.float32)) for _ in range(4)]
    first = g.add(ops.batch_norm_train, (x, *vectors), {}).outputs
    again = g.add(ops.batch_norm_train, (x, *vectors[:2], first[3], first[4], first[3], first[4]), {}).outputs
    for name, value in (("y", first[0]), ("again", again[0])):
        assert value is not None
        g.output(name, value)
    found = df.Session(g.build(), devices=[device]).run({"x": random.standard_normal(shape).astype(np.float32)})
    assert found["y"].tobytes() == found["again"].tobytes()


def test_a_layer_that_runs_again_takes_no_memory_for_results_that_are_there() -> None:
    """Of an LSTM's results the gates go; its states and cells, which are there, are written over with the same bits."""
    random = np.random.default_rng(0)
    steps, width = 24, 32

    def model() -> df.Model:
        g = df.GraphBuilder("network")
        h = g.input("x", df.float32, (steps, BATCH, width))
        for layer in range(2):
            numbers = np.random.default_rng(layer)
            w, r = (numbers.standard_normal((4 * width, width)).astype(np.float32) / 8 for _ in "wr")
            x = ops.matmul(h, ops.transpose(g.parameter(f"w{layer}", w), perm=(1, 0)))
            h = ops.lstm(x, g.parameter(f"r{layer}", r))[0]
        g.output("y", ops.reduce_mean(h, axes=(0,), keepdims=False))
        return df.Model(g.build())

    batch = {"x": random.standard_normal((steps, BATCH, width)).astype(np.float32), "labels": np.arange(BATCH)}
    found = []
    for memory in ("1x", "0.66x"):
        with df.Trainer(model(), memory=memory, devices=["cpu"]) as trainer:
            losses = [trainer.step(batch) for _ in range(3)]
            plan = trainer.plans()["step"]
            check_plan(plan)
            found.append((losses, {name: array.tobytes() for name, array in trainer.programs.state().items()}))
    assert found[0] == found[1]
    assert any(name.endswith("/again") for name, _ in plan.again.nodes)
