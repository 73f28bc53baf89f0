"""Batch norms of files that were exported in training mode."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model


def normalized(path: Path, mode: int) -> df.Model:
    """A product with a batch norm; in training mode it has results that nothing reads, as exporters write them."""
    random = np.random.default_rng(0)
    arrays = {"w": random.standard_normal((4, 3)), "scale": random.uniform(0.5, 1.5, 3), "bias": random.normal(size=3)}
    arrays |= {"mean": random.normal(size=3), "var": random.uniform(0.5, 2, 3)}
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    more: dict[str, Any] = {"training_mode": 1} if mode else {}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("BatchNormalization", ["h", *list(arrays)[1:]], ["y", "m", "v"][: 3 if mode else 1], **more),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "network", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return df.load(str(path))


def trained(model: df.Model, batch_norm: Literal["fixed", "update"]) -> tuple[list[float], dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    batch = {"x": random.standard_normal((8, 4)).astype(np.float32), "labels": random.integers(0, 3, 8)}
    with df.Trainer(model, optimizer="sgd:lr=0.3", batch_norm=batch_norm, devices=["cpu"]) as trainer:
        losses = [trainer.step(batch) for _ in range(4)]
        return losses, {name: p.array for name, p in trainer.model.parameters.items()}


def test_it_trains_as_the_one_of_a_file_in_inference_mode_whose_statistics_are_updated(tmp_path: Path) -> None:
    plain, training = (normalized(tmp_path / f"{mode}.onnx", mode) for mode in (0, 1))
    assert {name for name, p in training.parameters.items() if p.trainable} == {"w", "scale", "bias"}
    wanted, expected = trained(plain, "update")
    losses, found = trained(training, "update")
    assert losses == wanted
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


def test_fixed_statistics_of_the_file_stay_beside_those_of_the_batch(tmp_path: Path) -> None:
    model = normalized(tmp_path / "1.onnx", 1)
    before = {name: p.array.copy() for name, p in model.parameters.items()}
    losses, found = trained(model, "fixed")
    assert losses == trained(normalized(tmp_path / "2.onnx", 1), "update")[0]
    assert all(np.array_equal(found[name], before[name]) == (name in ("mean", "var")) for name in before)


@pytest.mark.parametrize("batch_norm", ["fixed", "update"])
def test_it_is_said_that_evaluations_take_the_statistics_of_their_batches(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, batch_norm: Literal["fixed", "update"]
) -> None:
    for mode in (0, 1):
        caplog.clear()
        df.Trainer(normalized(tmp_path / f"{mode}.onnx", mode), batch_norm=batch_norm, devices=["cpu"]).close()
        assert ("1 batch norms are in training mode" in caplog.text) == bool(mode)


@pytest.mark.parametrize("momentum", [0.9, 0.5, 0.0])
def test_statistics_are_updated_by_the_momentum_of_the_file(momentum: float, tmp_path: Path) -> None:
    vectors = {"s": np.ones(2), "b": np.zeros(2), "m": np.zeros(2), "v": np.ones(2)}
    node = helper.make_node("BatchNormalization", ["x", *vectors], ["y"], momentum=momentum)
    stored = [(name, array.astype(np.float32)) for name, array in vectors.items()]
    x, y = (("x", TensorProto.FLOAT, ["N", 2]), ("y", TensorProto.FLOAT, ["N", 2]))
    file = tmp_path / "model.onnx"
    onnx.save(onnx_model([node], [x], [y], stored, opset=17), file)
    model = df.load(str(file))
    batch = {"x": np.array([[2.0, 4.0], [4.0, 8.0]], np.float32), "labels": np.zeros((2, 2), np.float32)}
    with df.Trainer(model, "mse", "sgd:lr=0", batch_norm="update", devices=["cpu"]) as trainer:
        trainer.step(batch)
    mean, variance = np.array([3.0, 6.0]), np.array([1.0, 4.0])
    np.testing.assert_allclose(model.parameters["m"].array, (1 - momentum) * mean, rtol=1e-6)
    np.testing.assert_allclose(model.parameters["v"].array, momentum + (1 - momentum) * variance, rtol=1e-6)
    df.save(model, str(tmp_path / "saved.onnx"))
    (saved,) = onnx.load(tmp_path / "saved.onnx").graph.node
    assert helper.get_node_attr_value(saved, "momentum") == pytest.approx(momentum)


@pytest.mark.parametrize("opset", [9, 13])
def test_before_opset_14_more_results_say_that_a_batch_norm_trains(opset: int) -> None:
    """As onnxruntime reads it; its other results are the new statistics and those of the batch."""
    random = np.random.default_rng(0)
    vectors = {"s": random.normal(size=3), "b": random.normal(size=3), "m": random.normal(size=3), "v": np.ones(3)}
    outputs = ["y", "new_mean", "new_var", "mean", "var"]
    node = helper.make_node("BatchNormalization", ["x", *vectors], outputs, momentum=0.9)
    stored = [(name, array.astype(np.float32)) for name, array in vectors.items()]
    x = random.standard_normal((6, 3, 2)).astype(np.float32)
    declared = [(name, TensorProto.FLOAT, ["N", 3, 2] if name == "y" else [3]) for name in outputs]
    proto = onnx_model([node], [("x", TensorProto.FLOAT, ["N", 3, 2])], declared, stored, opset=opset, ir_version=7)
    found = df.Session(load_bytes(proto.SerializeToString())).run(x)
    mean, variance = x.mean((0, 2)), x.var((0, 2))
    scale, bias = (vectors[name].astype(np.float32)[:, None] for name in "sb")
    expected = (x - mean[:, None]) / np.sqrt(variance[:, None] + 1e-5) * scale + bias
    np.testing.assert_allclose(found["y"], expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found["mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["var"], variance, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["new_mean"], 0.9 * vectors["m"] + 0.1 * mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["new_var"], 0.9 + 0.1 * variance, rtol=0.05)


@pytest.mark.parametrize("reads", [False, True])
def test_a_dropout_node_drops_only_where_its_mask_is_read(reads: bool) -> None:
    """PyTorch's older exporter names a mask in training mode, and nothing reads it."""
    nodes = [helper.make_node("Dropout", ["x", "ratio", "on"], ["d", "mask"])]
    nodes += [helper.make_node("Cast", ["mask"], ["m"], to=1)] if reads else []
    nodes += [helper.make_node("Mul", ["d", "m" if reads else "one"], ["y"])]
    stored = [("ratio", np.float32(0.5)), ("on", np.array(True)), ("one", np.float32(1))]
    shapes = [("x", TensorProto.FLOAT, [64])], [("y", TensorProto.FLOAT, [64])]
    proto = onnx_model(nodes, *shapes, stored)
    found = df.Session(load_bytes(proto.SerializeToString())).run(np.ones(64, np.float32))["y"]
    assert (found == 1).all() != reads
