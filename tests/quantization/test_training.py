"""Training of models that round weights and values, by straight-through gradients; stored as integers at last."""

import logging

import numpy as np
import onnx
import pytest

import dataflow as df
from dataflow import ops
from tests.quantization.models import DATA, DIGITS, in_runtime, linear, off, random


@pytest.fixture(scope="module")
def five():
    """The samples of the classes that the example's model knows."""
    data = dict(np.load(DATA))
    known = data["labels"] < 5
    return {"x": data["x"][known], "labels": (data["labels"][known] + 1) % 5}  # not those that it learned


@pytest.mark.parametrize("bits", [7, 8])
def test_a_rounded_model_trains_and_its_integers_give_its_results(tmp_path, caplog, five, bits):
    rounded = df.quantize_static(df.load(DIGITS), five, bits=bits, train=True, progress=False)
    stored = df.quantize_static(df.load(DIGITS), five, bits=bits, progress=False)
    given = {"x": five["x"][:32]}
    before = df.Session(stored).run(given)["logits"]
    assert off(df.Session(rounded).run(given)["logits"], before) < 0.01  # biases are floats in the one
    trained = df.straight_through(rounded)
    assert {name for name, p in trained.parameters.items() if p.trainable} == set(df.load(DIGITS).parameters)
    first = df.evaluate(trained, five)["loss"]
    with caplog.at_level(logging.INFO, "dataflow"), df.Trainer(trained, "cross_entropy", df.optim.AdamW(lr=2e-3)) as t:
        t.fit(five, epochs=3, batch_size=32, progress=False)
    assert df.evaluate(trained, five)["loss"] < first / 4
    assert "not trained unless" not in caplog.text  # the scales are nobody's parameters
    df.save(trained, tmp_path / "trained.onnx")
    again = df.load(str(tmp_path / "trained.onnx"))
    found = df.Session(again).run(given)["logits"]
    assert off(found, df.Session(trained).run(given)["logits"]) < 0.01
    assert off(found, before) > 0.01
    small = df.quantize_static(again)
    np.testing.assert_array_equal(df.Session(small).run(given)["logits"], found)
    df.save(small, tmp_path / "small.onnx")
    assert off(in_runtime(tmp_path / "small.onnx", given)["logits"], found) < 0.01
    tensors = onnx.load(tmp_path / "small.onnx").graph.initializer
    weights = [onnx.numpy_helper.to_array(t) for t in tensors if len(t.dims) > 1]
    assert {array.dtype for array in weights} == {np.dtype(np.int8)}
    assert max(np.abs(array.astype(int)).max() for array in weights) <= {7: 64, 8: 128}[bits]


def test_gradients_are_those_of_the_rounded_model():
    """Of a product: by x and w as rounded, 1 within their ranges, by the chain rule in NumPy."""
    x, labels = random(16, 12), random(16, 5, seed=5)
    model = df.straight_through(df.quantize_static(linear(), x, bits=8, train=True, progress=False))
    before = {name: array.astype(np.float64) for name, array in model.arrays().items()}
    with df.Trainer(model, "mse", df.optim.SGD(lr=0.1), metrics=[]) as trainer:
        trainer.step({"x": x, "labels": labels})
    scale, zero = float(before["x.scale"]), float(before["x.zero"])
    rounded = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale
    w = np.rint(before["w"] / before["w.scale"]) * before["w.scale"]
    dy = 2 * (rounded @ w + before["b"] - labels) / labels.size
    after = model.arrays()
    np.testing.assert_allclose(after["w"], before["w"] - 0.1 * rounded.T @ dy, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(after["b"], before["b"] - 0.1 * dy.sum(0), rtol=1e-4, atol=1e-6)


def test_adapters_beside_a_trained_form_need_a_file(tmp_path, five):
    """What a file has in another form than the model can't be renamed; loaded again it can."""
    g = df.GraphBuilder()
    one = {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1), "groups": 1}
    y = ops.conv(g.input("x", df.float32, ("batch", 1, 8, 8)), g.parameter("w", random(4, 1, 3, 3)), None, **one)
    stored = (g.constant(a, n) for a, n in ((random(4), "mean"), (random(4) ** 2 + 1, "variance")))
    y = ops.batch_norm(y, g.parameter("scale", random(4)), g.parameter("shift", random(4)), *stored)
    g.output("y", y)
    df.save(df.Model(g.build()), tmp_path / "model.onnx")
    rounded = df.quantize_static(df.load(str(tmp_path / "model.onnx")), five["x"], train=True, progress=False)
    trained = df.straight_through(rounded)
    with pytest.raises(df.ModelError, match="save the model and load it, then change it"):
        df.lora(trained, rank=2, targets="*")
    df.save(trained, tmp_path / "trained.onnx")
    adapted = df.lora(df.straight_through(df.load(str(tmp_path / "trained.onnx"))), rank=2, targets="*")
    df.save(adapted, tmp_path / "adapted.onnx")
    given = {"x": five["x"][:4]}
    assert off(in_runtime(tmp_path / "adapted.onnx", given)["y"], df.Session(trained).run(given)["y"]) < 0.01


def test_weights_that_several_nodes_read_keep_their_floats(caplog):
    g = df.GraphBuilder()
    table = g.parameter("table", random(9, 6))
    x = ops.gather(table, g.input("ids", df.int64, ("batch",)), axis=0)
    x = ops.relu(ops.matmul(x, g.parameter("w", random(6, 6, seed=1))))
    g.output("y", ops.matmul(x, ops.transpose(table, perm=(1, 0))))
    with caplog.at_level(logging.INFO, "dataflow"):
        made = df.quantize_static(df.Model(g.build()), {"ids": np.arange(9)}, progress=False)
    assert "1 of 2 layers keep their floats" in caplog.text
    assert {name for name, a in made.arrays().items() if a.dtype == np.float32 and a.ndim > 1} == {"table"}
