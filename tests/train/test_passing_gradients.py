"""Gradients in the arena of a step, updates as they are ready: the bits of programs run apart, in less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.planning.verify import check_plan
from dataflow.train.joint import ACCUMULATOR
from dataflow.train.nonfinite import NonFiniteLoss
from tests.train.test_failed_batches import assert_equal, batches, state, trainer_of
from tests.train.test_memory import batches as memory_batches
from tests.train.test_memory import network

Bits = tuple[list[float], dict[str, bytes], dict[str, bytes] | None]


def trained(seed: int, apart: bool, **options: Any) -> tuple[Bits, Any]:
    """Losses, what changed and the gradients of three steps, and the plan of a step."""
    options = {"batch_norm": "update", "devices": ["cpu"], **options}
    with df.Trainer(network(seed, layers=8), **options) as trainer:
        losses = []
        for batch in memory_batches(3):
            if apart:
                terms = trainer.forward(batch)
                losses.append(float(terms["loss"]) / float(terms["weight"]))
                trainer.backward()
                trainer.update()
            else:
                losses.append(trainer.step(batch))
        gradients = None
        if options.get("update") != "as_ready":
            gradients = {name: array.tobytes() for name, array in trainer.programs.gradients().items()}
        found = {name: array.tobytes() for name, array in trainer.programs.state().items()}
        plans = trainer.plans()
        for plan in plans.values():
            check_plan(plan)
        return (losses, found, gradients), plans.get("step")


@pytest.mark.parametrize("device", ["cpu", "remote"])
@pytest.mark.parametrize("clip_norm", [None, 0.5])
def test_a_step_has_the_bits_of_its_programs_and_its_gradients_in_the_arena(
    device: str, clip_norm: float | None, remote: Any
) -> None:
    options: dict[str, Any] = {"clip_norm": clip_norm}
    if device == "remote":
        options |= {"devices": ["remote", "cpu"], "registry": remote}
    expected, _ = trained(5, True, **options)
    budgets = ("1x", "0.75x") if device == "cpu" else ("0.75x",)
    for memory in budgets:
        found, plan = trained(5, False, memory=memory, **options)
        assert found == expected
        assert not [arena for arena in plan.arenas if arena.name.startswith(ACCUMULATOR)]
        assert (plan.again is None) == (memory == "1x")
    losses, parameters, _ = expected
    for memory in budgets if clip_norm is None else ():
        found, plan = trained(5, False, memory=memory, update="as_ready", **options)
        assert found == (losses, parameters, None)
        assert [*plan.ranges] == ["forward", "optimizer"]


def test_a_parameter_is_read_for_the_last_time_before_it_is_updated() -> None:
    """Shared and tied weights, read by forward, by backward, and by what runs again."""

    def made() -> df.Model:
        random = np.random.default_rng(0)
        g = df.GraphBuilder("shared")
        h, w = g.input("x", df.float32, (24, 16)), g.parameter("w", random.standard_normal((16, 16)).astype(np.float32))
        scale = g.parameter("scale", np.ones(16, np.float32))
        for _ in range(5):
            h = ops.tanh(ops.mul(ops.matmul(h, w), scale))
        g.output("y", ops.matmul(h, ops.transpose(w, perm=(1, 0))))
        return df.Model(g.build())

    found = []
    for options in ({}, {"update": "as_ready"}, {"update": "as_ready", "memory": "0.8x"}):
        with df.Trainer(made(), "mse", devices=["cpu"], **options) as trainer:  # type: ignore[arg-type]
            random = np.random.default_rng(1)
            batch = {key: random.standard_normal((24, 16)).astype(np.float32) for key in ("x", "labels")}
            losses = [trainer.step(batch) for _ in range(3)]
            check_plan(trainer.plans()["step"])
            found.append((losses, {name: array.tobytes() for name, array in trainer.programs.state().items()}))
    assert found[1] == found[0] == found[2]


def test_updates_as_they_are_ready_keep_no_gradients() -> None:
    taken = {}
    width, layers = 64, 6
    for update in ("together", "as_ready", "apart"):
        random = np.random.default_rng(0)
        g = df.GraphBuilder("wide")
        h = g.input("x", df.float32, (2, width))
        for layer in range(layers):
            h = ops.relu(ops.matmul(h, g.parameter(f"w{layer}", random.random((width, width), np.float32))))
        g.output("y", h)
        how: Any = "as_ready" if update == "as_ready" else "together"
        with df.Trainer(df.Model(g.build()), update=how, devices=["cpu"]) as trainer:
            trainer.keeps_gradients = update == "apart"
            trainer.step({"x": np.ones((2, width), np.float32), "labels": np.array([0, 1])})
            arenas = {(a.kind, a.name): a.bytes for plan in trainer.plans().values() for a in plan.arenas}
            taken[update] = sum(size for (kind, _), size in arenas.items() if kind in ("weights", "state", "arena"))
    matrix = width * width * 4
    assert taken["together"] <= taken["apart"] + 2048
    assert taken["as_ready"] < taken["together"] - (layers - 2) * matrix


def test_a_loss_that_is_not_finite_changes_nothing_and_a_gradient_spoils_parameters() -> None:
    fine, other = batches(2)
    trainer, same = trainer_of(update="as_ready"), trainer_of()
    assert trainer.step(fine) == same.step(fine)
    at = state(trainer)
    with pytest.raises(NonFiniteLoss, match="the batch was discarded and changed nothing"):
        trainer.step({**other, "x": other["x"] * np.float32(np.nan)})
    assert_equal(state(trainer), at)
    assert np.isnan(trainer.step({**other, "sample_weight": np.zeros(4)}))
    assert_equal(state(trainer), at)
    assert trainer.step(other) == same.step(other)
    assert_equal(state(trainer), state(same))
    with pytest.raises(NonFiniteLoss, match="tensors aren't finite any more: load the newest checkpoint") as error:
        trainer.step({**other, "x": other["x"] * 0})
    assert (error.value.parameter, error.value.step) == ("'w'", 3)
    assert error.value.moved == 3  # with its two moments
    trainer.programs.load_state({name: array for name, array in at.items() if not name.startswith("model/")})
    assert np.isfinite(trainer.step(other))


def test_what_needs_all_gradients_is_refused_beside_updates_as_they_are_ready() -> None:
    for options in ({"accumulate": 2}, {"clip_norm": 1.0}):
        with pytest.raises(df.InputError, match='update="as_ready" keeps no gradients; they are kept for'):
            trainer_of(update="as_ready", **options)
    with pytest.raises(df.InputError, match="update is 'soon'"):
        trainer_of(update="soon")
    with trainer_of(update="as_ready") as trainer:
        trainer.step(batches(1)[0])
        with pytest.raises(df.InputError, match="keeps no gradients, and they are to be read"):
            trainer.keeps_gradients = True
        with pytest.raises(df.InputError, match="are gone"):
            trainer.statistics("gradients")


def test_gradients_of_the_last_step_are_there_until_another_program_runs() -> None:
    (batch,) = batches(1)
    trainer = trainer_of()
    trainer.step(batch)
    norm = trainer.statistics("gradients")["w"].norm
    trainer.evaluate(batch)
    with pytest.raises(df.InputError, match=r"are gone: .* trainer\.keeps_gradients = True"):
        trainer.statistics("gradients")
    kept = trainer_of()
    kept.keeps_gradients = True
    kept.step(batch)
    kept.evaluate(batch)
    assert kept.statistics("gradients")["w"].norm == norm
    assert_equal(state(kept), state(trainer))


def test_steps_and_programs_apart_may_follow_each_other() -> None:
    mixed, same = trainer_of(), trainer_of()
    for number, batch in enumerate(batches(6)):
        if number % 3 == 1:
            mixed.forward(batch)
            mixed.backward()
            mixed.update()
        else:
            mixed.step(batch)
        same.step(batch)
        for name, array in same.programs.gradients().items():
            np.testing.assert_array_equal(mixed.programs.gradient(name), array)
        mixed.evaluate(batch)
    assert_equal(state(mixed), state(same))


def test_biases_are_updated_when_nothing_runs_again_any_more() -> None:
    width = 128
    random = np.random.default_rng(0)
    g = df.GraphBuilder("wide")
    h = g.input("x", df.float32, (2, width))
    for layer in range(4):
        w, b = random.random((width, width), np.float32), np.zeros(width, np.float32)
        h = ops.relu(ops.add(ops.matmul(h, g.parameter(f"w{layer}", w)), g.parameter(f"b{layer}", b)))
    g.output("y", h)
    with df.Trainer(df.Model(g.build()), update="as_ready", devices=["cpu"]) as trainer:
        trainer.step({"x": np.ones((2, width), np.float32), "labels": np.array([0, 1])})
        steps = [step for segment in trainer.plans()["step"].segments for step in segment.steps]
    sizes = [step.outputs[0].type.elements for step in steps if step.node.op.name == "adamw_step"]
    names = [step.node.op.name for step in steps]
    assert sizes[-4:] == [width] * 4 and sizes[:4] == [width * width] * 4
    assert names.index("adamw_step") < len(names) - 1 - names[::-1].index("matmul")
