"""The plan checker: it passes on every plan, and rejects what would compute something else."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow.execute.bound import Bound
from dataflow.execute.program import Program
from dataflow.ir.plan import Wait
from dataflow.planning.verify import PlanViolation, check_plan
from dataflow.testing import SAMPLES
from dataflow.testing.conformance import trials
from tests.fuzz.plan_mutations import moved, reordered
from tests.support import recorded, recording


def batches(name):
    data = recorded(name)
    return data["x"].astype(np.float32), data["y"].astype(np.int64)


def trained(name, **options):
    """A trainer that has made all its programs."""
    x, y = batches(name)
    trainer = df.Trainer(recording(name), accumulate=2, clip_norm=1.0, **options)
    for step in range(2):
        trainer.step({"x": x[step], "labels": y[step]})
    trainer.evaluate({"x": x[0], "labels": y[0]})
    return trainer


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet"])
@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_every_program_of_training_is_right(name, device):
    with trained(name, devices=[device]) as trainer:
        plans = trainer.programs.plans()
        assert len(plans) == 4
        for plan in plans.values():
            check_plan(plan)
            assert plan.peak_bytes <= 1.02 * plan.lower_bound_bytes


@pytest.mark.parametrize("sample", SAMPLES[::3], ids=lambda s: s.name)
def test_plans_of_samples_are_right(sample):
    forms = trials(sample, [True] * len(sample.inputs))
    for layouts in {layouts for variant, layouts in forms if variant != "broadcast"}:
        session = df.Session(sample.build(layouts), devices=["cpu"], fold=False)
        check_plan(session.plan())


# ---- corrupted plans ----------------------------------------------------------------------------------


def results(plan, program, variables, feeds):
    """What a plan computes from poisoned memory, with the state it leaves; None when it is refused or fails."""
    before = {key: variables.read(key) for key in variables.names()}
    try:
        changed = Program(plan, program.lowered, program._devices, variables, 1)
        bound = Bound(plan, changed._devices, changed.persistent)
        for _, buffer in bound._scratch:
            poison(bound, buffer)
        out = {n: np.full(o.type.sizes, -7, o.type.dtype.numpy) for n, o in plan.outputs.items()}
        bound.run({n: a.copy() for n, a in feeds.items()}, out)  # a wrong plan may write them
        after = {key: variables.read(key).tobytes() for key in variables.names()}
        return {n: a.tobytes() for n, a in out.items()}, after
    except df.DataflowError:
        return None
    finally:
        for key, array in before.items():
            variables.write(key, array)
        program._devices.failed = None


def poison(bound, buffer):
    from dataflow._runtime import ffi

    if hasattr(buffer, "handle"):  # the remote device's memory begins as noise
        return
    ffi.memmove(buffer.base, b"\xff" * buffer.bytes, buffer.bytes)


def corrupt_and_compare(program, variables, feeds, count, seed):
    random = np.random.default_rng(seed)
    plan = program.plan
    check_plan(plan)
    right = results(plan, program, variables, feeds)
    assert right is not None
    assert results(plan, program, variables, feeds) == right
    differing = rejected = 0
    for _ in range(count):
        wrong = (moved if random.integers(3) else reordered)(plan, random)
        try:
            check_plan(wrong)
            accepted = True
        except PlanViolation:
            accepted = False
        rejected += not accepted
        same = results(wrong, program, variables, feeds) == right
        differing += not same
        assert same or not accepted, "a plan that computes something else was accepted"
    return differing, rejected


@pytest.mark.parametrize(("name", "kind"), [("mlp", "joint-False"), ("cnn", "joint-True"), ("resnet", "evaluate")])
def test_corrupted_plans_that_compute_something_else_are_rejected(name, kind):
    x, y = batches(name)
    with trained(name, devices=["cpu"]) as trainer:
        program = next(p for k, p in trainer.programs.engine.programs.items() if "-".join(map(str, k[0])) == kind)
        feeds = {"x": x[0], "labels": y[0]}
        differing, rejected = corrupt_and_compare(program, trainer.programs.engine.variables, feeds, 300, seed=11)
    assert differing > 150
    assert rejected >= differing


def test_corrupted_plans_over_two_memories_are_rejected(remote):
    x, y = batches("mlp")
    with trained("mlp", devices=["remote", "cpu"], registry=remote) as trainer:
        program = next(p for k, p in trainer.programs.engine.programs.items() if k[0] == ("joint", True))
        check_plan(program.plan)
        assert program.plan.asynchronous == {"remote"}
        feeds = {"x": x[0], "labels": y[0]}
        differing, rejected = corrupt_and_compare(program, trainer.programs.engine.variables, feeds, 100, seed=5)
        for at, item in enumerate(program.plan.items):
            if isinstance(item, Wait):
                items = program.plan.items[:at] + program.plan.items[at + 1 :]
                with pytest.raises(PlanViolation, match="may still be working"):
                    check_plan(dataclasses.replace(program.plan, items=items, ranges={}))
    assert differing > 30
    assert rejected >= differing
