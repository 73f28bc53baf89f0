"""Dropout behind layers that have none in the file, and nodes that were exported while they dropped."""

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

RECORDINGS = Path(__file__).parents[1] / "recordings"
BATCH = {"words": np.random.default_rng(0).integers(0, 9, (6, 5)), "labels": np.arange(6) % 3}


def load(file="adapters"):
    return df.load(str(RECORDINGS / f"{file}.onnx"))


def losses(model, steps=3, **options):
    with df.Trainer(model, optimizer=df.optim.SGD(lr=0.0), **options) as trainer:
        return [trainer.step(BATCH) for _ in range(steps)]


@pytest.mark.parametrize("file", ["adapters", "adapters_script"])
def test_a_trainer_drops_behind_the_layers_that_patterns_name(file):
    quiet = losses(load(file))
    sites = {"dropout": 0.3, "dropout_at": ["*.out", "conv"], "seed": 4}
    model = load(file)
    noisy = losses(model, **sites)
    assert len(set(noisy)) == 3 and len(set(quiet)) == 1
    assert noisy == losses(load(file), **sites)
    assert noisy == losses(df.dropout(load(file), 0.3, sites["dropout_at"]), dropout=True, seed=4)
    np.testing.assert_array_equal(*(next(iter(m({"words": BATCH["words"]}).values())) for m in (model, load(file))))


def linear():
    g = df.GraphBuilder("linear")
    x = g.input("x", df.float32, ("batch", 8))
    g.output("y", df.ops.matmul(x, g.parameter("fc.weight", np.eye(8, dtype=np.float32))))
    return df.Model(g.build())


def test_what_stays_is_scaled():
    """The loss is the mean of the results: with ones, the share that stays by what it is scaled with."""
    with df.Trainer(
        linear(), loss=lambda g, outputs, batch: outputs["y"], optimizer=df.optim.SGD(lr=0.0), dropout=0.25,
        dropout_at="fc", metrics=[],
    ) as trainer:  # fmt: skip
        found = [trainer.step({"x": np.ones((500, 8), np.float32)}) for _ in range(3)]
    kept = np.array(found) * 0.75 * 4000  # how many results stay
    np.testing.assert_allclose(kept, np.round(kept), atol=1e-2)
    assert len(set(found)) == 3 and (abs(np.array(found) - 1) < 0.05).all()


def test_a_run_with_dropout_goes_on_from_a_checkpoint(tmp_path):
    ends = []
    data = {name: np.concatenate([array] * 2) for name, array in BATCH.items()}
    for epochs in ((3,), (1, 3)):
        for end in epochs:
            with df.Trainer(load(), dropout=0.2, dropout_at="v") as trainer:
                folder = tmp_path / str(len(epochs))
                history = trainer.fit(data, batch_size=6, epochs=end, checkpoint=folder, resume="auto", progress=False)
        ends.append(history.epochs["loss"])
    assert ends[0] == ends[1]


def test_a_saved_file_has_inactive_nodes(tmp_path):
    model = df.dropout(load(), 0.3, ["layers.0.q", "head"])
    path = tmp_path / "dropout.onnx"
    df.save(model, str(path))
    nodes = [node for node in onnx.load(str(path)).graph.node if node.op_type == "Dropout"]
    assert len(nodes) == 2
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (expected,) = load()({"words": BATCH["words"]}).values()
    np.testing.assert_allclose(session.run(None, {"words": BATCH["words"]})[0], expected, atol=1e-6)
    again = df.load(str(path))
    assert losses(again, dropout=True) == pytest.approx(losses(model, dropout=True), rel=1e-6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dropout": 0.1}, "needs dropout_at"),
        ({"dropout": 1.0, "dropout_at": "q"}, "dropout is 1.0"),
        ({"dropout": True, "dropout_at": "q"}, "expected the share"),
        ({"dropout": True}, "no dropout node"),
        ({"dropout": 0.1, "dropout_at": "mlp"}, "dropout_at: 'mlp' matches no layer.*candidates"),
        ({"dropout": 0.1, "dropout_at": []}, "dropout_at is empty"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, text):
    with pytest.raises(df.InputError, match=text):
        df.Trainer(load(), **options)


def test_a_file_in_training_mode_runs_without_dropping(caplog):
    """As exporters write a network that is being trained; the mask that nobody reads may be there."""
    weight = np.eye(20, dtype=np.float32)
    nodes = [
        helper.make_node("Dropout", ["x", "r", "t"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "w"], ["b"]),
        helper.make_node("Dropout", ["b", "", "t"], ["y", ""], name="second"),
    ]
    stored = [("r", np.float32(0.2)), ("t", np.array(True)), ("w", weight)]
    ends = [(name, TensorProto.FLOAT, ["N", 20]) for name in ("x", "y")]
    with caplog.at_level(logging.INFO, "dataflow"):
        model = load_bytes(onnx_model(nodes, ends[:1], ends[1:], stored, opset=17).SerializeToString())
    lines = [record.getMessage() for record in caplog.records if "training mode" in record.getMessage()]
    assert len(lines) == 1 and "2 dropout nodes" in lines[0]
    x = np.random.default_rng(0).normal(size=(50, 20)).astype(np.float32)
    np.testing.assert_allclose(model(x)["y"], x, atol=1e-6)
    batch = {"x": x, "labels": np.zeros(50, np.int64)}
    with df.Trainer(model, dropout=True, optimizer=df.optim.SGD(lr=0.0)) as trainer:
        assert trainer.step(batch) != trainer.step(batch)
