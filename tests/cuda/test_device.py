"""The host side of the CUDA plugin: capture, faults, failures, memory, several cards."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import dataflow as df
from dataflow.ir.plan import Segment, Transfer
from tests.support import recorded, recording
from tests.train.test_memory import network, trained

DEVICES = ["cuda", "cpu"]


def mlp():
    data = recorded("mlp")
    return recording("mlp"), data["x"][0].astype(np.float32), data["y"][0].astype(np.int64)


def elementwise(*shape):
    """exp(relu(x)) + sin(x)"""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, shape)
    g.output("y", df.ops.add(df.ops.exp(df.ops.relu(x)), df.ops.sin(x)))
    return df.Model(g.build())


# ---- graphs -------------------------------------------------------------------------------------------


def test_a_replayed_graph_gives_the_bits_of_plain_launches(cuda, without_capture):
    model, x, _ = mlp()
    session = df.Session(model, devices=DEVICES, registry=cuda)
    first, second, third = (session.run(x)["logits"] for _ in range(3))
    plain = df.Session(model, devices=DEVICES, registry=without_capture(cuda))
    np.testing.assert_array_equal(first, second)  # launched, captured
    np.testing.assert_array_equal(first, third)  # replayed
    np.testing.assert_array_equal(first, [plain.run(x)["logits"] for _ in range(3)][-1])


def test_a_replayed_training_step_gives_the_bits_of_plain_launches(cuda, without_capture):
    results = []
    for registry in (cuda, without_capture(cuda)):
        model, x, y = mlp()
        with df.Trainer(model, optimizer=df.optim.AdamW(lr=1e-2), devices=DEVICES, registry=registry) as trainer:
            losses = [trainer.step({"x": x, "labels": y}) for _ in range(6)]
        results.append((losses, {n: p.array for n, p in model.parameters.items()}))
    assert results[0][0] == results[1][0]
    for name, array in results[0][1].items():
        np.testing.assert_array_equal(array, results[1][1][name])


def test_a_segment_is_one_graph_from_the_second_run_on(standin, standin_registry):
    session = df.Session(elementwise(3, 5), devices=DEVICES, registry=standin_registry)
    x = np.linspace(-2, 2, 15, dtype=np.float32).reshape(3, 5)
    (segment,) = session.plan().segments
    session.run(x)
    launches, graphs = standin.launches, standin.graph_launches
    session.run(x)  # records
    assert standin.launches == launches + len(segment.steps)
    for _ in range(3):
        got = session.run(2 * x)["y"]
    assert standin.launches == launches + len(segment.steps)
    assert standin.graph_launches == graphs + 4
    np.testing.assert_allclose(got, np.exp(np.maximum(2 * x, 0)) + np.sin(2 * x), rtol=1e-5)


def test_a_training_step_sends_only_inputs_up_and_the_loss_down(cuda):
    model, x, y = mlp()
    with df.Trainer(model, metrics=[], devices=DEVICES, registry=cuda) as trainer:
        for _ in range(2):
            trainer.step({"x": x, "labels": y})
        plans = trainer.programs.plans()
    assert set(plans) == {"step"}
    for plan in plans.values():
        assert {s.device for s in plan.segments} == {"cuda"}
        moves = [item for item in plan.items if isinstance(item, Transfer)]
        up = {m.name for m in moves if m.to_device == "cuda"}
        down = {m.name for m in moves if m.from_device == "cuda"}
        assert len(up) <= len(plan.inputs)
        assert len(down) == len(plan.outputs)
        kept = [a for a in plan.arenas if a.kind in ("weights", "state")]
        assert kept
        assert {a.memory for a in kept} == {"cuda:0"}


def test_a_budget_of_memory_is_kept_with_the_same_bits(cuda):
    options = {"devices": DEVICES, "registry": cuda}
    losses, bits, plans = trained(network(4, layers=10), memory="1x", **options)
    again, same, made = trained(network(4, layers=10), memory="0.8x", **options)
    assert (again, same) == (losses, bits)
    for name, plan in made.items():
        assert plan.again is not None
        assert plan.peak_bytes <= 0.8 * plans[name].peak_bytes


def test_one_launch_steps_all_parameters(standin, standin_registry):
    """The optimizer's program has a step per parameter, and one launch for all of them."""
    model, x, y = mlp()
    with df.Trainer(model, metrics=[], devices=DEVICES, registry=standin_registry) as trainer:
        trainer.forward({"x": x, "labels": y})
        trainer.backward()
        trainer.update()
        (segment,) = trainer.programs.plans()["optimizer"].segments  # inputs are there before it begins
        stepped = [s for s in segment.steps if s.node.op.name == "adamw_step"]
        assert len(stepped) == len(model.parameters)
        before = standin.launches
        trainer.programs.update(np.array([1e-3, 0.0, 0.1, 0.1], np.float32), np.float32(1))  # records
        assert standin.launches - before == len(segment.steps) - len(stepped) + 1


def test_a_hundred_parameters_are_stepped_by_one_launch(standin, standin_registry):
    random = np.random.default_rng(0)
    shift = [random.standard_normal(5).astype(np.float32) for _ in range(100)]

    def trained(devices, count):
        g = df.GraphBuilder()
        y = g.input("x", df.float32, (2, 5))
        for index, array in enumerate(shift):
            y = df.ops.add(y, g.parameter(f"shift{index}", array))
        g.output("logits", y)
        model = df.Model(g.build())
        with df.Trainer(model, metrics=[], devices=devices, registry=standin_registry) as trainer:
            feeds = {"x": np.ones((2, 5), np.float32), "labels": np.array([1, 4])}
            trainer.forward(feeds)
            trainer.backward()
            trainer.update()
            before = standin.launches
            trainer.programs.update(np.array([1e-3, 0.0, 0.1, 0.1], np.float32), np.float32(1))  # records
            launches = standin.launches - before
            if count:
                (segment,) = trainer.programs.plans()["optimizer"].segments
                stepped = [s for s in segment.steps if s.node.op.name == "adamw_step"]
                assert len(stepped) == len(shift)
                assert launches == len(segment.steps) - len(stepped) + 1
        return {name: p.array for name, p in model.parameters.items()}

    expected = trained(["cpu"], False)
    for name, array in trained(DEVICES, True).items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-6)


# ---- faults and failures ------------------------------------------------------------------------------


def test_an_index_out_of_range_names_the_node_and_leaves_the_session_usable(cuda):
    g = df.GraphBuilder()
    table, indices = g.input("table", df.float32, (4, 3)), g.input("indices", df.int64, (2,))
    g.output("y", df.ops.gather(table, indices, axis=0))
    session = df.Session(df.Model(g.build()), devices=DEVICES, registry=cuda)
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    for _ in range(3):  # launched, captured, replayed
        with pytest.raises(df.InputError, match=r"gather 'gather' .*: kernel 'gather any cuda': 7 is out of range for"):
            session.run({"table": values, "indices": np.array([1, 7])})
        got = session.run({"table": values, "indices": np.array([1, -1])})["y"]
        np.testing.assert_array_equal(got, values[[1, -1]])


def test_a_fault_is_reported_to_the_thread_that_made_it(cuda):
    g = df.GraphBuilder()
    table, indices = g.input("table", df.float32, (4, 3)), g.input("indices", df.int64, (2,))
    g.output("y", df.ops.gather(table, indices, axis=0))
    session = df.Session(df.Model(g.build()), devices=DEVICES, registry=cuda)
    values = np.arange(12, dtype=np.float32).reshape(4, 3)

    def run(index):
        try:
            got = session.run({"table": values, "indices": np.array([1, 7 if index % 2 else 2])})["y"]
        except df.InputError:
            return index % 2 == 1
        return index % 2 == 0 and np.array_equal(got, values[[1, 2]])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(40)))


def test_labels_out_of_range_are_refused(cuda):
    model, x, y = mlp()
    with df.Trainer(model, devices=DEVICES, registry=cuda) as trainer, pytest.raises(df.InputError, match=r"99"):
        trainer.step({"x": x, "labels": np.full_like(y, 99)})


def test_a_launch_that_is_refused_names_the_node(standin, standin_registry):
    session = df.Session(elementwise(7), devices=DEVICES, registry=standin_registry, fuse=False)
    standin.fail("launch", "df_map")
    try:
        with pytest.raises(df.DeviceError, match=r"relu 'relu'.*: launching .*invalid configuration"):
            session.run(np.zeros(7, np.float32))
    finally:
        standin.fail("")
    with pytest.raises(df.DeviceError, match=r"failed before.*make a new session"):
        session.run(np.zeros(7, np.float32))
    other = df.Session(elementwise(7), devices=DEVICES, registry=standin_registry)
    np.testing.assert_array_equal(other.run(np.zeros(7, np.float32))["y"], np.ones(7))


@pytest.mark.parametrize("runs", [0, 1, 3])
def test_a_card_that_fails_is_said_and_not_waited_for(runs, standin, standin_registry):
    session = df.Session(elementwise(7), devices=DEVICES, registry=standin_registry, fuse=False)
    x = np.zeros(7, np.float32)
    for _ in range(runs):
        session.run(x)
    standin.fail("kernel", "df_map")
    try:
        with pytest.raises(df.DeviceError, match=r"cuda:0 \(stand-in\): .*illegal memory access"):
            session.run(x)
        with pytest.raises(df.DeviceError, match=r"failed before.*make a new session"):
            session.run(x)
    finally:
        standin.fail("")


# ---- memory -------------------------------------------------------------------------------------------


def test_a_plan_that_is_too_large_is_refused_before_it_runs(standin, standin_registry):
    session = df.Session(elementwise("n", 1024), devices=DEVICES, registry=standin_registry, fuse=False)
    before = standin.allocated()
    with pytest.raises(df.OutOfMemoryError) as caught:
        session.plan((1_000_000, 1024))
    text = str(caught.value)
    assert "cuda:0: the plan needs 7.6 GiB more" in text
    assert "of 4.0 GiB are free" in text
    assert "relu 3.8 GiB" in text
    assert "smaller batches" in text
    assert standin.allocated() == before
    np.testing.assert_array_equal(session.run(np.zeros((1, 1024), np.float32))["y"], np.ones((1, 1024)))


def test_a_plan_leaves_memory_for_the_code_of_kernels(alone):
    """Of 64 MiB 63.98 could be allocated, and then no kernel could be loaded."""
    text = """
g = df.GraphBuilder()
x = g.input("x", df.float32, ("n", 1024))
g.output("y", df.ops.relu(x))
session = df.Session(df.Model(g.build()), devices=["cuda"], registry=registry)
plan = session.plan((14336, 1024))
print(sum(arena.bytes for arena in plan.arenas if arena.memory == "cuda:0"))
np.testing.assert_array_equal(session.run(np.full((14336, 1024), 2, np.float32))["y"], 2)
try:
    session.run(np.ones((16380, 1024), np.float32))
except df.OutOfMemoryError as error:
    print("the plan needs" in str(error))
"""
    assert alone(text, STANDIN_MEMORY=str(64 << 20)) == [str(56 << 20), "True"]


@pytest.mark.parametrize(("depth", "numbers"), [(1, 6), (2, 30), (3, 120)])
def test_scatter_nd_needs_a_number_per_row(depth, numbers, standin_registry):
    shape = (6, 5, 4)
    g = df.GraphBuilder()
    data, indices = g.input("data", df.float32, shape), g.input("indices", df.int64, (2, depth))
    updates = g.input("updates", df.float32, (2, *shape[depth:]))
    g.output("y", df.ops.scatter_nd(data, indices, updates))
    session = df.Session(df.Model(g.build()), devices=["cuda"], registry=standin_registry)
    given = [np.zeros(shape, np.float32), np.array([[1, 2, 3], [4, 0, 1]])[:, :depth].copy()]
    given.append(np.ones((2, *shape[depth:]), np.float32))
    y = session.run(dict(zip(("data", "indices", "updates"), given, strict=True)))["y"]
    given[0][tuple(given[1].T)] = 1
    np.testing.assert_array_equal(y, given[0])
    (step,) = [s for segment in session.plan().segments for s in segment.steps if s.node.op.name == "scatter_nd"]
    assert step.prepared.workspace == 8 * numbers


@pytest.mark.parametrize(("reduction", "join"), [("add", np.add), ("mul", np.multiply)])
@pytest.mark.parametrize("count", [1, 40, 3000, 9000])
def test_scatters_join_the_updates_of_an_element_in_their_order(count, reduction, join, standin, standin_registry):
    rng = np.random.default_rng(count)
    data, updates = (rng.uniform(0.9, 1.1, n).astype(np.float32) for n in (70, count))
    indices = rng.integers(-70, 70, count)
    g = df.GraphBuilder()
    given = [g.input("data", df.float32, (70,)), g.input("indices", df.int64, (count,))]
    given.append(g.input("updates", df.float32, (count,)))
    g.output("y", df.ops.scatter_elements(*given, reduction=reduction))
    g.output(
        "z", df.ops.scatter_nd(given[0], df.ops.reshape(given[1], shape=(count, 1)), given[2], reduction=reduction)
    )
    expected = data.copy()
    join.at(expected, indices, updates)
    session = df.Session(df.Model(g.build()), devices=["cuda"], registry=standin_registry)
    for reverse in (False, True):
        standin.reverse(reverse)
        try:
            found = session.run({"data": data, "indices": indices, "updates": updates})
        finally:
            standin.reverse(False)
        np.testing.assert_array_equal(found["y"], expected)
        np.testing.assert_array_equal(found["z"], expected)


def test_an_allocation_that_fails_leaves_the_session_usable(standin, standin_registry):
    session = df.Session(elementwise("n"), devices=DEVICES, registry=standin_registry)
    standin.fail("allocation")
    try:
        with pytest.raises(df.OutOfMemoryError, match=r"out of memory"):
            session.run(np.zeros(9, np.float32))
    finally:
        standin.fail("")
    np.testing.assert_array_equal(session.run(np.zeros(9, np.float32))["y"], np.ones(9))


def test_a_training_takes_what_its_plans_say_and_gives_it_back(standin, standin_registry):
    import gc

    gc.collect()
    before = standin.allocated()
    model, x, y = mlp()
    with df.Trainer(model, metrics=[], devices=DEVICES, registry=standin_registry) as trainer:
        trainer.step({"x": x, "labels": y})
        plans = trainer.programs.plans().values()
        kept = {a.name: a.bytes for p in plans for a in p.arenas if a.kind in ("weights", "state")}
        scratch = max(a.bytes for p in plans for a in p.arenas if a.kind == "arena" and a.memory == "cuda:0")
        page = 4096  # the stand-in's unit of allocation
        blocks = len(kept) + 1 + len(trainer.programs.plans())  # a page for the faults of each segment
        planned = sum(kept.values()) + scratch
        assert planned <= standin.allocated() - before <= planned + blocks * page
    del trainer, plans
    gc.collect()
    assert standin.allocated() == before


# ---- several cards ------------------------------------------------------------------------------------


def test_pins_split_a_model_over_two_cards(standin_registry):
    model, x, _ = mlp()
    alone = df.Session(model, devices=["cpu"])
    last = [node.name for node in model.graph.nodes if node.op.name == "matmul"][-1]
    session = df.Session(model, devices=["cuda", "cuda:1", "cpu"], pin={last: "cuda:1"}, registry=standin_registry)
    device_of = {p.node: p.device for p in session.placement(x.shape)}
    assert device_of["add.1"] == "cuda"
    assert device_of[last] == "cuda:1"
    moves = {(m.from_device, m.to_device) for m in session.plan(x.shape).items if isinstance(m, Transfer)}
    assert ("cuda", "cuda:1") in moves  # straight from card to card
    for _ in range(3):
        np.testing.assert_allclose(session.run(x)["logits"], alone.run(x)["logits"], rtol=1e-5, atol=1e-5)


def test_training_over_two_cards_gives_the_recorded_losses(standin_registry):
    data, model = recorded("mlp"), recording("mlp")
    last = [node.name for node in model.graph.nodes if node.op.name == "matmul"][-1]
    optimizer = df.optim.AdamW(lr=1e-2, weight_decay=0.01, no_decay=())
    devices = ["cuda", "cuda:1", "cpu"]
    with df.Trainer(
        model, optimizer=optimizer, devices=devices, pin={last: "cuda:1"}, registry=standin_registry
    ) as trainer:
        batches = zip(data["x"][:6].astype(np.float32), data["y"][:6].astype(np.int64), strict=True)
        losses = [trainer.step({"x": x, "labels": y}) for x, y in batches]
        joint = trainer.programs.plans()["step"]
    np.testing.assert_allclose(losses, data["plain/losses"][:6], rtol=1e-3)
    backward = joint.ranges["backward"]
    segments = [item for item in joint.items[backward.start : backward.stop] if isinstance(item, Segment)]
    assert {segment.device for segment in segments} >= {"cuda", "cuda:1"}


def test_pins_that_fit_nothing_are_refused(standin_registry):
    model, _, _ = mlp()
    with pytest.raises(df.InputError, match=r"pin 'decoder\.\*' matches no node, value or parameter; nodes are named"):
        df.Session(model, devices=DEVICES, pin={"decoder.*": "cuda"}, registry=standin_registry)
    with pytest.raises(df.InputError, match=r"device 'cuda:1' is not in the list of devices: cuda, cpu, numpy"):
        df.Session(model, devices=DEVICES, pin={"*": "cuda:1"}, registry=standin_registry)


# ---- options ------------------------------------------------------------------------------------------


def test_options_are_checked(standin_registry):
    model = elementwise(3)
    x = np.zeros(3, np.float32)
    session = df.Session(model, devices=[("cuda", {"capture": 0}), "cpu"], registry=standin_registry)
    np.testing.assert_array_equal(session.run(x)["y"], np.ones(3))
    with pytest.raises(df.InputError, match=r"device 'cuda' has no option 'streams'; it has capture"):
        df.Session(model, devices=[("cuda", {"streams": 2})], registry=standin_registry)
    with pytest.raises(df.InputError, match=r"option 'capture': expected a whole number, got 'no'"):
        df.Session(model, devices=[("cuda", {"capture": "no"})], registry=standin_registry)
    with pytest.raises(df.InputError, match=r"precision is 'fp8'; expected 'float32', 'bf16x6', 'tf32', 'bf16'"):
        df.Session(model, devices=DEVICES, precision="fp8", registry=standin_registry)
