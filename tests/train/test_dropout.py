"""Dropout nodes: inactive but in training that asks for it, seeded, and the same after a resume."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

X = np.random.default_rng(0).standard_normal((64, 20)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, 64)
W = np.random.default_rng(2).standard_normal((20, 4)).astype(np.float32) / 4


def loaded(opset=18, ratio=0.5):
    if opset < 12:
        node, stored = helper.make_node("Dropout", ["x"], ["d"], ratio=ratio), []
    else:
        node = helper.make_node("Dropout", ["x", "ratio"], ["d"])
        stored = [("ratio", np.float32(ratio))]
    nodes = [node, helper.make_node("MatMul", ["d", "w"], ["y"])]
    x, y = ("x", TensorProto.FLOAT, ["N", 20]), ("y", TensorProto.FLOAT, ["N", 4])
    return load_bytes(onnx_model(nodes, [x], [y], [*stored, ("w", W)], opset=opset).SerializeToString())


@pytest.mark.parametrize("opset", [7, 10, 12, 22])
def test_it_is_inactive_outside_of_training(opset):
    model = loaded(opset)
    np.testing.assert_allclose(df.Session(model).run(X)["y"], X @ W, rtol=1e-4, atol=1e-5)
    with df.Trainer(model, dropout=True, devices=["cpu"]) as trainer:
        np.testing.assert_allclose(trainer.predict(X)["y"], X @ W, rtol=1e-4, atol=1e-5)
        quiet = trainer.evaluate({"x": X, "labels": Y})["loss"]
        noisy = trainer.step({"x": X, "labels": Y})
    with df.Trainer(loaded(opset), devices=["cpu"]) as trainer:
        assert trainer.step({"x": X, "labels": Y}) == pytest.approx(quiet, rel=1e-5)
    assert abs(noisy - quiet) > 1e-3 * quiet


def gradient(seed, steps=1, **options):
    """The gradient of the sum of the outputs: each weight's is the sum of the inputs that stay."""
    model = loaded()
    with df.Trainer(
        model, loss=lambda g, outputs, batch: outputs["y"], optimizer=df.optim.SGD(lr=0.0), dropout=True, seed=seed,
        metrics=[], devices=["cpu"], **options,
    ) as trainer:  # fmt: skip
        found = []
        update = trainer.programs.update
        trainer.programs.update = lambda *a: (found.append(trainer.programs.gradients()["w"].copy()), update(*a))[1]
        for _ in range(steps):
            trainer.step({"x": np.ones((640, 20), np.float32)})
    return found


def test_what_stays_is_scaled_and_chosen_by_seed_and_step():
    first, second = gradient(3, steps=2)
    counts = first[:, 0] / 2  # each that stays counts twice
    np.testing.assert_array_equal(first, np.repeat(first[:, :1], 4, axis=1))
    np.testing.assert_array_equal(counts, np.round(counts))
    assert abs(counts.mean() / 640 - 0.5) < 4 * 0.5 / np.sqrt(640 * 20)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(first, gradient(3)[0])
    assert not np.array_equal(first, gradient(4)[0])


def test_a_resumed_run_drops_the_same(tmp_path):
    def run(epochs, **options):
        model = loaded()
        with df.Trainer(model, dropout=True, seed=5, accumulate=2, devices=["cpu"]) as trainer:
            trainer.fit({"x": X, "labels": Y}, epochs=epochs, batch_size=16, progress=False, **options)
        return model.parameters["w"].array

    uninterrupted = run(4)
    run(2, checkpoint=tmp_path)
    np.testing.assert_array_equal(run(4, checkpoint=tmp_path, resume="auto"), uninterrupted)


def test_a_model_without_dropout_is_refused():
    g = df.GraphBuilder()
    g.output("y", df.ops.matmul(g.input("x", df.float32, ("N", 20)), g.parameter("w", W)))
    with pytest.raises(df.InputError, match="no dropout node"):
        df.Trainer(df.Model(g.build()), dropout=True)


def test_a_saved_file_keeps_its_dropout(tmp_path):
    model = loaded(opset=18)
    with df.Trainer(model, dropout=True, devices=["cpu"]) as trainer:
        trainer.step({"x": X, "labels": Y})
    df.save(model, str(tmp_path / "m.onnx"))
    assert [n.op_type for n in onnx.load(tmp_path / "m.onnx").graph.node] == ["Dropout", "MatMul"]


def test_nodes_of_one_stream_drop_different_elements():
    g = df.GraphBuilder("net")
    x, w = g.input("x", df.float32, ("n", 400)), g.parameter("w", np.ones((), np.float32))
    scaled = df.ops.mul(x, w)
    first, second = df.ops.dropout(scaled, ratio=0.5), df.ops.dropout(scaled, ratio=0.5)
    twice = df.ops.dropout(first, ratio=0.5, stream=1)
    for name, value in (("first", first), ("second", second), ("twice", twice)):
        g.output(name, value)
    g.output("loss", df.ops.reduce_mean(scaled, axes=(1,), keepdims=False))
    ones = np.ones((10, 400), np.float32)
    with df.Trainer(df.Model(g.build()), df.losses.output("loss"), dropout=True, devices=["cpu"]) as trainer:
        found = trainer.forward({"x": ones}, outputs=["first", "second", "twice"])
    kept = {name: array != 0 for name, array in found.items() if name in ("first", "second", "twice")}
    assert abs(np.mean(kept["first"] == kept["second"]) - 0.5) < 0.05
    assert abs(kept["twice"].mean() - 0.25) < 0.05


def test_dropout_in_a_loop_drops_others_in_each_iteration_and_has_the_gradient_of_what_it_kept():
    body = df.GraphBuilder("step")
    total, row, w = (body.input(name, df.float32, (400,)) for name in ("total", "row", "w"))
    kept = df.ops.dropout(df.ops.mul(row, w), ratio=0.5)
    body.output("total", df.ops.add(total, kept))
    body.output("kept", kept)
    g = df.GraphBuilder("net")
    x, w = g.input("x", df.float32, (5, 400)), g.parameter("w", np.ones(400, np.float32))
    zeros = g.constant(np.zeros(400, np.float32))
    last, kept, *_ = df.ops.scan(zeros, x, w, n_carries=1, n_xs=1, bodies=(body.build(),))
    g.output("kept", kept)
    g.output("loss", df.ops.reduce_sum(last, axes=(0,), keepdims=False))
    model, ones = df.Model(g.build()), {"x": np.ones((5, 400), np.float32)}
    rate = df.optim.SGD(lr=1.0, momentum=0.0)
    with df.Trainer(model, df.losses.output("loss"), rate, dropout=True, devices=["cpu"]) as trainer:
        first = trainer.forward(ones, outputs=["kept"])["kept"].copy()
        assert set(np.unique(first)) == {0, 2} and abs((first != 0).mean() - 0.5) < 0.05
        for one, other in ((first[0], first[1]), (first[3], first[4])):
            assert abs(np.mean(one == other) - 0.5) < 0.1
        trainer.backward()
        np.testing.assert_allclose(trainer.gradients["w"], 5 * first.sum(0))  # of a mean over 5 samples, as a sum
        second = trainer.forward(ones, outputs=["kept"])["kept"]
        assert not np.array_equal(first, second)
