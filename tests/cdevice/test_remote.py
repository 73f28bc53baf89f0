"""A device with its own memory, a queue and a few ops: placement, fallback, transfers, arenas per memory."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow.ir.plan import Segment, Transfer, Wait
from dataflow.testing import SAMPLES, check_device
from dataflow.testing.conformance import BASIC
from tests.support import recorded, recording

DEVICES = ["remote", "cpu"]


def test_work_goes_to_the_remote_device_and_back(remote):
    model = recording("mlp")
    x = recorded("mlp")["x"][0].astype(np.float32)
    session = df.Session(model, devices=DEVICES, registry=remote)
    plan = session.plan(x.shape)
    device_of = {p.node: p.device for p in session.placement(x.shape)}
    assert set(device_of.values()) == {"remote", "cpu"}
    by_op = {p.op: p for p in session.placement(x.shape)}
    assert by_op["matmul"].device == by_op["relu"].device == "remote"
    assert by_op["fused_elementwise"].device == "cpu"  # of a row that is added, and tanh: the remote one takes neither
    assert "no kernel for fused_elementwise" in by_op["fused_elementwise"].refusals["remote"]
    moves = [item for item in plan.items if isinstance(item, Transfer)]
    directions = {(m.from_device == "remote", m.to_device == "remote") for m in moves}
    assert directions == {(True, False), (False, True)}
    memories = {arena.memory for arena in plan.arenas if arena.kind == "arena"}
    assert memories == {"host", "remote:0"}
    assert {arena.memory for arena in plan.arenas if arena.kind == "weights"} >= {"remote:0"}
    assert any(isinstance(item, Wait) for item in plan.items)
    alone = df.Session(model, devices=["cpu"]).run(x)["logits"]
    for _ in range(5):
        np.testing.assert_allclose(session.run(x)["logits"], alone, rtol=1e-5, atol=1e-5)


def test_a_value_moves_once_per_memory(remote):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (4, 4))
    h = df.ops.relu(x)
    t = df.ops.tanh(h)
    g.output("y", df.ops.add(df.ops.sin(h), df.ops.add(t, df.ops.relu(h))))
    session = df.Session(df.Model(g.build()), devices=DEVICES, registry=remote)
    moves = [item.name for item in session.plan().items if isinstance(item, Transfer)]
    assert len(moves) == len(set(moves))
    data = np.linspace(-2, 2, 16, dtype=np.float32).reshape(4, 4)
    r = np.maximum(data, 0)
    np.testing.assert_allclose(session.run(data)["y"], np.sin(r) + np.tanh(r) + r, rtol=1e-5)


@pytest.mark.parametrize(("rows", "first", "moved"), [(1000, 998, 2), (1000, 500, 1000), (100, 98, 100)])
def test_of_a_small_view_of_a_large_result_only_its_elements_move(remote, rows, first, moved):
    g = df.GraphBuilder()
    h = df.ops.relu(g.input("x", df.float32, (rows, 100)))
    g.output("y", df.ops.slice(h, starts=(first, 0), stops=(rows, 100), steps=(1, 1)))
    session = df.Session(df.Model(g.build()), devices=DEVICES, registry=remote)
    down = [m for m in session.plan().items if isinstance(m, Transfer) and m.from_device == "remote"]
    assert [m.source.type.shape for m in down] == [(moved, 100)]
    data = np.random.default_rng(0).standard_normal((rows, 100)).astype(np.float32)
    np.testing.assert_array_equal(session.run(data)["y"], np.maximum(data, 0)[first:])


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet"])
def test_training_with_both_memories_gives_the_recorded_losses(remote, name):
    data = recorded(name)
    model = recording(name)
    rate = 3e-3 if name == "resnet" else 1e-2
    with df.Trainer(
        model, optimizer=df.optim.AdamW(lr=rate, no_decay=()), devices=DEVICES, registry=remote, accumulate=1
    ) as trainer:
        batches = zip(data["x"][:8].astype(np.float32), data["y"][:8].astype(np.int64), strict=True)
        losses = [trainer.step({"x": x, "labels": y}) for x, y in batches]
        plans = trainer.programs.plans()
        assert set(plans) == {"step"}
        joint = plans["step"]
        assert {s.device for s in joint.items if isinstance(s, Segment)} >= {"remote"}
        backward = joint.items[joint.ranges["backward"].start :]
        assert any(isinstance(item, Transfer) for item in backward)
        assert any(isinstance(item, Segment) and item.device == "remote" for item in backward)
    np.testing.assert_allclose(losses, data["plain/losses"][:8], rtol=1e-3)


def test_parameters_come_back_from_the_device(remote):
    data = recorded("mlp")
    results = []
    for devices in (DEVICES, ["cpu"]):
        model = recording("mlp")
        with df.Trainer(model, optimizer=df.optim.SGD(lr=0.1), devices=devices, registry=remote) as trainer:
            trainer.step({"x": data["x"][0].astype(np.float32), "labels": data["y"][0].astype(np.int64)})
        results.append({n: p.array for n, p in model.parameters.items()})
    for name, array in results[0].items():
        np.testing.assert_allclose(array, results[1][name], rtol=1e-4, atol=1e-5)


def test_a_fallback_can_be_refused(remote):
    g = df.GraphBuilder()
    g.output("y", df.ops.tanh(g.input("x", df.float32, (64,))))
    session = df.Session(df.Model(g.build()), devices=["remote"], registry=remote, fallback="error")
    with pytest.raises(df.ModelError, match=r"100% of the work runs on cpu.*no kernel for tanh"):
        session.run(np.zeros(64, np.float32))


def test_a_fallback_is_said_once(remote, caplog):
    g = df.GraphBuilder()
    g.output("y", df.ops.tanh(g.input("x", df.float32, ("n",))))
    session = df.Session(df.Model(g.build()), devices=["remote"], registry=remote)
    session.run(np.zeros(64, np.float32))
    session.run(np.zeros(32, np.float32))
    assert [r.levelname for r in caplog.records].count("WARNING") == 1


@pytest.mark.parametrize(
    ("optimizer", "average"),
    [(df.optim.Adafactor(groups=[df.optim.Group("bias", optimizer=df.optim.SGD(lr=0.1))]), "ema:decay=0.5"),
     (df.optim.ScheduleFreeAdamW(lr=0.05), None)],
)  # fmt: skip
def test_slots_of_other_shapes_and_averages_lie_on_the_device(remote, optimizer, average):
    data = recorded("mlp")
    batch = {"x": data["x"][0].astype(np.float32), "labels": data["y"][0].astype(np.int64)}
    found = []
    for devices in (DEVICES, ["cpu"]):
        with df.Trainer(
            recording("mlp"), optimizer=optimizer, average=average, devices=devices, registry=remote, clip_norm=1.0
        ) as trainer:
            losses = [trainer.step(batch) for _ in range(4)]
            state = trainer.programs.state()
            trainer.programs.load_state(state)
            losses += [trainer.step(batch), trainer.evaluate(batch)["loss"]]
            found.append((losses, state, trainer.predict({"x": batch["x"]})["logits"]))
            keys = trainer.programs.engine.variables.names()
            assert any(k.startswith("remote:0/optimizer/") for k in keys) == (devices == DEVICES)
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-4)
    np.testing.assert_allclose(found[0][2], found[1][2], rtol=1e-3, atol=1e-4)
    for name, array in found[1][1].items():
        np.testing.assert_allclose(found[0][1][name], array, rtol=2e-3, atol=1e-5, err_msg=name)


def test_the_kit_says_once_that_copies_are_missing(remote):
    """What it has without them is tried as with them; ``--sample`` of another op says it too."""
    kept = {op: found for op, found in remote.kernels["remote"].items() if op != "copy"}
    lacking = dataclasses.replace(remote, kernels={**remote.kernels, "remote": kept})
    samples = [s for s in SAMPLES if s.op.name in ("relu", "add") and all(np.prod(o.shape) < 4000 for o in s.inputs)]
    options = {"samples": samples, "complete": False, "select": "relu", "variants": BASIC}
    found = list(check_device("remote", registry=lacking, **options))
    (said,) = [outcome for outcome in found if outcome.status not in ("passed", "not claimed")]
    assert (said.status, said.sample, said.variant) == ("failed", "copies", "strided")
    assert "no kernel of the device copies f32 with any strides" in said.text and '"~f32->f32"' in said.text
    complete = list(check_device("remote", registry=remote, **options))
    assert {o.status for o in complete} <= {"passed", "not claimed"}
    left = {(o.sample, o.variant) for o in complete} - {(o.sample, o.variant) for o in found}
    assert left == {(o.sample, o.variant) for o in complete if o.variant in ("strided", "transposed")} != set()
