"""Packed copies of constant weights: which there are, that they are counted, remade, shared and checked."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow.cdevice.host_memory import allocated
from dataflow.ir.plan import Segment
from dataflow.planning.verify import PlanViolation, check_plan

WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
RANDOM = np.random.default_rng(5)
WEIGHT = RANDOM.standard_normal((20, 3, 3, 3)).astype(np.float32)
X = RANDOM.standard_normal((2, 3, 9, 8)).astype(np.float32)


def model():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 3, 9, 8))
    g.output("y", df.ops.conv(x, g.parameter("w", WEIGHT), **WINDOW))
    return df.Model(g.build())


def expected(weight, x=X):
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    return np.einsum("ncyxij,fcij->nfyx", windows, weight.astype(np.float64))


def prepacked_of(plan):
    return [arena for arena in plan.arenas if arena.kind == "prepacks"]


def test_a_constant_weight_is_prepacked_counted_and_again_on_reload():
    m = model()
    before = allocated()[0]
    session = df.Session(m, devices=["cpu"])
    np.testing.assert_allclose(session.run(X)["y"], expected(WEIGHT), rtol=1e-5, atol=1e-5)
    plan = session.plan(X.shape)
    check_plan(plan)
    (arena,) = prepacked_of(plan)
    assert plan.memory["prepacks"] == arena.bytes >= WEIGHT.nbytes
    assert allocated()[0] - before == sum(plan.memory.values())
    m.parameters["w"].set(-2 * WEIGHT)
    session.reload()
    np.testing.assert_allclose(session.run(X)["y"], expected(-2 * WEIGHT), rtol=1e-5, atol=1e-5)
    assert allocated()[0] - before == sum(plan.memory.values())
    del session
    assert allocated()[0] == before


def test_a_new_value_of_a_variable_is_prepacked_again():
    session = df.Session(model(), devices=["cpu"])
    session.run(X)
    session._loaded().engine.variables.write("w", 3 * WEIGHT)
    np.testing.assert_allclose(session.run(X)["y"], expected(3 * WEIGHT), rtol=1e-5, atol=1e-5)


def test_plans_for_several_shapes_share_a_prepacked_weight():
    session = df.Session(model(), devices=["cpu"])
    session.run(X)
    before = allocated()[0]
    session.run(X[:1])
    first, second = session.plan(X.shape), session.plan((1, *X.shape[1:]))
    assert [a.name for a in prepacked_of(first)] == [a.name for a in prepacked_of(second)]
    assert allocated()[0] - before == second.peak_bytes


def test_a_weight_that_is_fed_is_not_prepacked():
    g = df.GraphBuilder()
    x, w = g.input("x", df.float32, X.shape), g.input("w", df.float32, WEIGHT.shape)
    g.output("y", df.ops.conv(x, w, **WINDOW))
    session = df.Session(df.Model(g.build()), devices=["cpu"])
    np.testing.assert_allclose(session.run((X, WEIGHT))["y"], expected(WEIGHT), rtol=1e-5, atol=1e-5)
    assert prepacked_of(session.plan()) == []


def test_only_what_training_leaves_alone_is_prepacked():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, X.shape)
    frozen = df.ops.conv(x, g.parameter("frozen", WEIGHT + 1), **WINDOW)
    g.output("y", df.ops.add(frozen, df.ops.conv(x, g.parameter("w", WEIGHT, trainable=True), **WINDOW)))
    m = df.Model(g.build())
    batch = {"x": X, "labels": np.zeros((2, 20, 9, 8), np.float32)}
    optimizer = df.optim.SGD(lr=0.1)
    with df.Trainer(m, loss="mse", optimizer=optimizer, trainable=["w"], accumulate=1, devices=["cpu"]) as trainer:
        first = trainer.evaluate(batch)["loss"]  # before it is known what the loss reaches
        for _ in range(3):
            trainer.step(batch)
        last = trainer.evaluate(batch)["loss"]
        for plan in trainer.programs.plans().values():
            assert all(arena.name.startswith("frozen:") for arena in prepacked_of(plan))
        assert prepacked_of(trainer.programs.plans()["evaluate"])
    assert last < 0.97 * first
    found = df.Session(m, devices=["cpu"]).run(X)["y"]
    np.testing.assert_allclose(np.mean(found.astype(np.float64) ** 2), last, rtol=1e-4)


def test_the_checker_finds_a_prepacked_copy_of_another_weight_and_one_of_the_wrong_size():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, X.shape)
    first = df.ops.conv(x, g.parameter("w", WEIGHT), **WINDOW)
    g.output("y", df.ops.add(first, df.ops.conv(x, g.parameter("v", WEIGHT + 1), **WINDOW)))
    plan = df.Session(df.Model(g.build()), devices=["cpu"]).plan()
    check_plan(plan)
    (segment,) = plan.segments
    one, two = [step for step in segment.steps if step.prepacks]
    assert one.prepacks[0].arena != two.prepacks[0].arena

    def changed(step):
        steps = tuple(step if s is one else s for s in segment.steps)
        return dataclasses.replace(plan, items=(Segment(segment.device, steps),))

    with pytest.raises(PlanViolation, match="a copy of something else than input 1"):
        check_plan(changed(dataclasses.replace(one, prepacks=two.prepacks)))
    short = dataclasses.replace(one.prepacks[0], type=df.TensorType(df.uint8, (64,)))
    with pytest.raises(PlanViolation, match="has 64 bytes, it needs"):
        check_plan(changed(dataclasses.replace(one, prepacks=(short,))))
    kinds = [dataclasses.replace(a, kind="state") if a.kind == "source" else a for a in plan.arenas]
    with pytest.raises(PlanViolation, match="a copy of what a program changes"):
        check_plan(dataclasses.replace(plan, arenas=tuple(kinds)))
    with pytest.raises(PlanViolation, match="reads input 1, which has no memory"):
        check_plan(changed(dataclasses.replace(one, prepacks=())))


def test_a_weight_that_is_read_otherwise_too_keeps_its_memory():
    g = df.GraphBuilder()
    w = g.parameter("w", WEIGHT)
    g.output("y", df.ops.conv(g.input("x", df.float32, X.shape), w, **WINDOW))
    g.output("z", df.ops.mul(w, g.input("s", df.float32, ())))
    session = df.Session(df.Model(g.build()), devices=["cpu"])
    found = session.run({"x": X, "s": np.float32(2)})
    np.testing.assert_array_equal(found["z"], 2 * WEIGHT)
    np.testing.assert_allclose(found["y"], expected(WEIGHT), rtol=1e-5, atol=1e-5)
    assert {a.kind for a in session.plan().arenas if a.name == "w"} == {"weights"}
    np.testing.assert_allclose(session.run({"x": X, "s": np.float32(2)}, ["y"])["y"], found["y"])
    plan = session.plan({"x": X.shape, "s": ()}, ["y"])
    assert {a.kind for a in plan.arenas if a.name == "w"} == {"source"}
    assert "weights" not in plan.memory


@pytest.mark.parametrize("rows", [2, 8, 40, 100])
def test_a_constant_operand_of_a_product_is_prepacked_where_that_counts(rows):
    """Then the weight itself isn't kept."""
    weight = RANDOM.standard_normal((96, 64)).astype(np.float32)
    x = RANDOM.standard_normal((rows, 64)).astype(np.float32)
    g = df.GraphBuilder()
    columns = df.ops.transpose(g.parameter("w", weight), perm=(1, 0))
    g.output("y", df.ops.matmul(g.input("x", df.float32, x.shape), columns))
    session = df.Session(df.Model(g.build()), devices=["cpu"])
    np.testing.assert_allclose(session.run(x)["y"], x.astype(np.float64) @ weight.T, rtol=1e-5, atol=1e-4)
    plan = session.plan(x.shape)
    check_plan(plan)
    assert [arena.bytes for arena in prepacked_of(plan)] == ([weight.nbytes] if 4 < rows <= 64 else [])
    assert not prepacked_of(plan) or not plan.memory.get("weights")
