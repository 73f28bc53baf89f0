"""Forward, backward and update run alone: what they give, what lies in memory between them, what is refused."""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.execute.program import Program
from dataflow.planning.verify import PlanViolation, check_plan
from dataflow.train.joint import ACCUMULATOR
from dataflow.train.nonfinite import NonFiniteLoss

PROGRAMS = ("forward", "backward", "optimizer")


def network(seed: int = 0) -> df.Model:
    """Two layers with a batch norm and a dropout between them."""
    random = np.random.default_rng(seed)
    g = df.GraphBuilder("network")
    x = g.input("x", df.float32, ("batch", 6))
    h = ops.matmul(x, g.parameter("w", random.standard_normal((6, 8)).astype(np.float32)))
    ones, zeros = np.ones(8, np.float32), np.zeros(8, np.float32)
    running = [g.initializer(name, a, role="statistic") for name, a in (("mean", zeros), ("variance", ones))]
    h = ops.batch_norm(h, g.parameter("scale", ones), g.parameter("shift", zeros + 0.1), *running, epsilon=1e-5)
    h = g.add(ops.tanh, (h,), {}, output_names=["h"]).outputs[0]
    h = ops.dropout(h, ratio=0.25)
    g.output("y", ops.matmul(h, g.parameter("v", random.standard_normal((8, 3)).astype(np.float32))))
    return df.Model(g.build())


def batches(count: int, sizes: tuple[int, ...] = (5, 4)) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [
        {
            "x": random.standard_normal((sizes[i % len(sizes)], 6)).astype(np.float32),
            "labels": random.integers(0, 3, sizes[i % len(sizes)]),
        }
        for i in range(count)
    ]


def apart(trainer: df.Trainer, batch: Mapping[str, np.ndarray]) -> float:
    """What ``step`` does, program by program."""
    terms = trainer.forward(batch)
    trainer.backward()
    if trainer.pending >= trainer.accumulate:
        trainer.update()
    return float(terms["loss"]) / float(terms["weight"])


def bits(trainer: df.Trainer) -> dict[str, bytes]:
    state = {name: array.tobytes() for name, array in trainer.programs.state().items()}
    return state | {ACCUMULATOR + name: array.tobytes() for name, array in trainer.programs.gradients().items()}


def assert_apart_is_step(**options: Any) -> None:
    """Losses, weights, optimizer state, statistics and gradients after each of some micro-batches are the same."""
    options = {"accumulate": 2, "batch_norm": "update", "dropout": True, "clip_norm": 0.5, "seed": 3, **options}
    with df.Trainer(network(), **options) as joined, df.Trainer(network(), **options) as separate:
        for batch in batches(6):
            assert apart(separate, batch) == joined.step(batch)
            assert bits(separate) == bits(joined)
        assert separate.steps == joined.steps == 3
        for plan in separate.programs.plans().values():
            check_plan(plan)


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_forward_backward_and_update_give_the_bits_of_step(device: str) -> None:
    assert_apart_is_step(devices=[device])


def test_they_give_the_bits_of_step_where_ops_are_pinned_to_other_devices() -> None:
    names = [node.name for node in network().graph.nodes]
    assert_apart_is_step(devices=["cpu", "numpy"], pin=dict.fromkeys(names[1::2], "numpy"))


@pytest.mark.parametrize("third", [0, 1, 2])
def test_they_give_the_bits_of_step_where_values_move_between_memories(third: int, remote: Any, refusing: Any) -> None:
    assert_apart_is_step(devices=["remote", "cpu"], registry=refusing(third, "remote", remote))


def test_they_give_the_bits_of_step_on_a_device_with_its_own_memory(remote: Any) -> None:
    assert_apart_is_step(devices=["remote", "cpu"], registry=remote)


def linear(accumulate: int = 1, **options: Any) -> df.Trainer:
    options.setdefault("devices", ["cpu"])
    g = df.GraphBuilder("linear")
    x = g.input("x", df.float32, ("batch", 2))
    g.output("y", ops.matmul(x, g.parameter("w", np.array([[1.0], [-2.0]], np.float32))))
    optimizer = df.optim.SGD(lr=0.1)
    return df.Trainer(df.Model(g.build()), "mse", optimizer, accumulate=accumulate, **options)


X = np.array([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]], np.float32)
LABELS = np.array([[1.0], [0.0], [2.0]], np.float32)
BATCH = {"x": X, "labels": LABELS}


def gradient(w: np.ndarray) -> np.ndarray:
    """Of the sum of squared differences."""
    return 2 * X.T @ (X @ w - LABELS)


def test_gradients_are_read_and_changed_between_backward_and_update() -> None:
    with linear() as trainer:
        w = trainer.model.parameters["w"].array.copy()
        terms = trainer.forward(BATCH)
        assert float(terms["loss"]) == pytest.approx(np.sum((X @ w - LABELS) ** 2), rel=1e-6)
        assert float(terms["weight"]) == 3
        trainer.backward()
        assert [*trainer.gradients] == ["w"]
        np.testing.assert_allclose(trainer.gradients["w"], gradient(w), rtol=1e-6)
        trainer.gradients["w"] = np.array([[3.0], [-6.0]], np.float32)
        np.testing.assert_array_equal(trainer.gradients["w"], [[3.0], [-6.0]])
        trainer.update()
        np.testing.assert_allclose(trainer.model.parameters["w"].array, w - 0.1 * np.array([[1.0], [-2.0]]), rtol=1e-6)


def test_a_changed_gradient_is_clipped_by_its_own_norm() -> None:
    with linear(clip_norm=1.0) as trainer:
        w = trainer.model.parameters["w"].array.copy()
        trainer.forward(BATCH)
        trainer.backward()
        trainer.gradients["w"] = np.array([[30.0], [-40.0]], np.float32)
        assert trainer.update()["gradient_norm"] == pytest.approx(50 / 3, rel=1e-6)
        found = trainer.model.parameters["w"].array
        np.testing.assert_allclose(found, w - 0.1 * np.array([[0.6], [-0.8]]), rtol=1e-5)
        trainer.forward(BATCH)
        trainer.backward()
        trainer.gradients["w"] = np.full((2, 1), 1e30, np.float32)
        with pytest.raises(df.InputError, match="exceeds float32"):
            trainer.update()
        np.testing.assert_array_equal(trainer.model.parameters["w"].array, found)
        assert (trainer.pending, trainer.steps) == (0, 1)


@pytest.mark.parametrize("device", ["cpu", "remote"])
def test_a_cotangent_scales_the_gradients_of_its_micro_batch(device: str, remote: Any) -> None:
    with linear(accumulate=2, devices=[device], registry=remote) as trainer:
        w = trainer.model.parameters["w"].array.copy()
        for cotangent in (-0.5, 3.0):
            trainer.forward(BATCH)
            trainer.backward(cotangent)
        np.testing.assert_allclose(trainer.gradients["w"], 2.5 * gradient(w), rtol=1e-5)
        trainer.update()
        np.testing.assert_allclose(trainer.model.parameters["w"].array, w - 0.1 * 2.5 * gradient(w) / 6, rtol=1e-5)


def test_forward_returns_values_that_are_asked_for() -> None:
    (batch,) = batches(1)
    with df.Trainer(network(), devices=["cpu"]) as trainer:
        found = trainer.forward(batch, ["h", "y", "h"])
        assert {"loss", "weight", "h", "y"} <= found.keys()
        expected = df.Session(network(), devices=["cpu"]).run({"x": batch["x"]}, ["h", "y"])
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
        found["h"][:] = 0  # the caller's
        trainer.backward()
        trainer.update()
        with df.Trainer(network(), devices=["cpu"]) as other:
            other.step(batch)
            for name, array in other.programs.state().items():
                np.testing.assert_allclose(trainer.programs.state()[name], array, rtol=1e-5, atol=1e-6)


def test_what_backward_reads_of_a_batch_is_kept() -> None:
    with linear() as trainer, linear() as other:
        batch = {name: array.copy() for name, array in BATCH.items()}
        trainer.forward(batch)
        batch["x"][:] = np.nan
        trainer.backward()
        trainer.update()
        other.step(BATCH)
        assert bits(trainer) == bits(other)


def test_the_wrong_order_is_refused_and_changes_nothing() -> None:
    first, second = batches(2)
    with (
        df.Trainer(network(), devices=["cpu"], accumulate=2) as trainer,
        df.Trainer(network(), devices=["cpu"], accumulate=2) as other,
    ):
        for call, message in (
            (lambda: trainer.backward(), "no forward\\(\\) waits"),
            (lambda: trainer.update(), "no gradients wait"),
            (lambda: trainer.gradients["w"], "gradients"),
        ):
            with pytest.raises(df.InputError, match=message):
                call()
        assert apart(trainer, first) == other.step(first)
        trainer.forward(second)
        for call in (
            lambda: trainer.forward(second),
            lambda: trainer.forward(first),  # of another shape
            lambda: trainer.step(first),
            lambda: trainer.update(),
            lambda: trainer.evaluate(first),
            lambda: trainer.predict({"x": first["x"]}),
            lambda: trainer.profile(first, rounds=1),
            lambda: trainer.fit(first, progress=False),
        ):
            with pytest.raises(df.InputError, match="a forward\\(\\) waits for its backward\\(\\)"):
                call()
        with pytest.raises(df.InputError, match="cotangent"):
            trainer.backward(math.nan)
        trainer.backward()
        trainer.update()
        other.step(second)
        assert bits(trainer) == bits(other)
        with pytest.raises(df.InputError, match="no gradients wait"):
            trainer.update()
        with pytest.raises(df.InputError, match="no forward"):
            trainer.backward()


def test_gradients_that_do_not_fit_are_refused() -> None:
    with linear() as trainer:
        trainer.forward(BATCH)
        trainer.backward()
        with pytest.raises(KeyError, match="there is no gradient of a trained parameter 'v'; there are: 'w'"):
            trainer.gradients["v"]
        with pytest.raises(df.InputError, match=r"expected float32\[2, 1\], got float32\[2\]"):
            trainer.gradients["w"] = np.zeros(2, np.float32)
        with pytest.raises(df.InputError, match="float64"):
            trainer.gradients["w"] = np.zeros((2, 1))
        with pytest.raises(df.InputError, match="NaN"):
            trainer.gradients["w"] = np.full((2, 1), np.nan, np.float32)


def test_a_forward_that_fails_or_is_discarded_leaves_nothing_behind() -> None:
    with linear(accumulate=2) as trainer, linear(accumulate=2) as other:
        trainer.forward(BATCH)
        trainer.backward()
        with pytest.raises(NonFiniteLoss):
            trainer.forward({**BATCH, "x": np.full((3, 2), np.inf, np.float32)})
        assert trainer.pending == 0
        with pytest.raises(df.ModelError, match="no value 'nothing'"):
            trainer.forward(BATCH, ["nothing"])
        trainer.forward(BATCH)
        trainer.discard()
        for _ in range(2):
            assert apart(trainer, BATCH) == other.step(BATCH)
        assert bits(trainer) == bits(other)


@pytest.mark.parametrize("name", ["forward", "backward"])
def test_an_interrupted_program_discards_the_logical_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = batches(2, sizes=(4,))
    options: dict[str, Any] = {"devices": ["cpu"], "accumulate": 2, "batch_norm": "update"}
    with df.Trainer(network(), **options) as trainer, df.Trainer(network(), **options) as other:
        apart(trainer, first)
        run = Program.run

        def interrupted(self: Program, *arguments: Any, **how: Any) -> Any:
            run(self, *arguments, **how)
            if how["stage"] == (name, name):
                raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Program, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                apart(trainer, second)
        assert trainer.pending == 0
        with pytest.raises(df.InputError, match="no forward"):
            trainer.backward()
        for batch in (second, first):
            assert apart(trainer, batch) == other.step(batch)
        assert bits(trainer) == bits(other)


# ---- the plan ----------------------------------------------------------------------------------------


def test_a_plan_shows_its_programs_and_what_is_alive_between_them(tmp_path: Any) -> None:
    with df.Trainer(network(), devices=["cpu"], batch_norm="update") as trainer:
        apart(trainer, batches(1)[0])
        plans = trainer.programs.plans()
        joint, optimizer = plans["joint-True"], plans["optimizer"]
    assert (*joint.ranges, *optimizer.ranges) == PROGRAMS
    forward, backward = joint.ranges.values()
    assert (forward.start, forward.stop, backward.stop) == (0, backward.start, len(joint.items))
    alive = dict(forward.alive)
    assert alive["x"] == 5 * 6 * 4  # for the gradient by w
    assert {name for name, _ in backward.alive} == {
        *(ACCUMULATOR + name for name in ("w", "scale", "shift", "v")), "pending/mean", "pending/variance"
    }  # fmt: skip
    assert forward.alive_bytes == sum(alive.values()) > alive["x"]
    text = str(joint)
    for words in ("forward: items 0 to", "backward: items", f"{forward.alive_bytes} bytes are alive: "):
        assert words in text
    joint.save_html(str(tmp_path / "plan.html"))
    page = (tmp_path / "plan.html").read_text("utf-8")
    assert page.count("<line") == 2
    assert "forward ends" in page


def test_the_checker_rejects_ranges_that_say_something_else() -> None:
    with df.Trainer(network(), devices=["cpu"]) as trainer:
        apart(trainer, batches(1)[0])
        plan = trainer.programs.plans()["joint-True"]
    forward, backward = plan.ranges.values()

    def changed(**what: Any) -> Any:
        return dataclasses.replace(plan, ranges={"forward": dataclasses.replace(forward, **what), "backward": backward})

    for ranges, message in (
        (changed(stop=0), "not the items in order"),
        (changed(slots=frozenset()), "doesn't name"),
        (changed(outputs=(*forward.outputs, *backward.outputs)), "at the end"),
    ):
        with pytest.raises(PlanViolation, match=message):
            check_plan(ranges)


def test_the_garbage_collector_rests_while_the_graph_of_a_first_step_is_made() -> None:
    builder = df.GraphBuilder()
    x = builder.input("x", "float32", (4,))
    y = df.ops.mul(x, builder.parameter("w", np.full(4, 0.5, np.float32)))
    for _ in range(1500):
        y = df.ops.tanh(y)
    builder.output("y", y)
    counts: list[int] = []

    def seen(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            counts.append(info["generation"])

    given = {"x": np.ones(4, np.float32), "labels": np.zeros(4, np.float32)}
    with df.Trainer(df.Model(builder.build()), "mse", df.optim.SGD(lr=0.1), devices=["numpy"], fuse=False) as trainer:
        thresholds = gc.get_threshold()
        gc.callbacks.append(seen)
        gc.set_threshold(100, 1000, 1000)
        try:
            trainer.step(given)
        finally:
            gc.set_threshold(*thresholds)
            gc.callbacks.remove(seen)
    assert len(counts) < 30, f"{len(counts)} collections"
