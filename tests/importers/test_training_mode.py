"""Batch norms of files that were exported in training mode."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.file.inference_form import as_in_inference
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model


def normalized(path: Path, trains: int, **options: Any) -> df.Model:
    """A product with a batch norm; in training mode it has results that nothing reads, as exporters write them."""
    random = np.random.default_rng(0)
    arrays = {"w": random.standard_normal((4, 3)), "scale": random.uniform(0.5, 1.5, 3), "bias": random.normal(size=3)}
    arrays |= {"mean": random.normal(size=3), "var": random.uniform(0.5, 2, 3)}
    stored = [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()]
    more: dict[str, Any] = {"training_mode": 1} if trains else {}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("BatchNormalization", ["h", *list(arrays)[1:]], ["y", "m", "v"][: 3 if trains else 1], **more),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph(nodes, "network", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return df.load(str(path), **options)


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
        for options in ({}, {"mode": "inference"}):
            caplog.clear()
            model = normalized(tmp_path / f"{mode}.onnx", mode, **options)
            df.Trainer(model, batch_norm=batch_norm, devices=["cpu"]).close()
            said = "1 batch norms are in training mode" in caplog.text and "mode='inference'" in caplog.text
            assert said == (bool(mode) and not options)


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


def by_onnxruntime(path: Path, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x})
    return np.asarray(found)


def test_in_inference_mode_it_trains_by_batches_and_runs_and_is_saved_by_the_running_statistics(
    tmp_path: Path,
) -> None:
    plain, chosen = normalized(tmp_path / "0.onnx", 0), normalized(tmp_path / "1.onnx", 1, mode="inference")
    x = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    for model in (plain, chosen):
        assert trained(model, "update")[0] == trained(normalized(tmp_path / "2.onnx", 1), "update")[0]
    wanted = df.Session(plain).run(x)["y"]
    np.testing.assert_array_equal(df.Session(chosen).run(x)["y"], wanted)
    p = {name: parameter.array.astype(np.float64) for name, parameter in chosen.parameters.items()}
    by_hand = (x @ p["w"] - p["mean"]) / np.sqrt(p["var"] + 1e-5) * p["scale"] + p["bias"]
    df.save(chosen, str(tmp_path / "saved.onnx"))
    for rows in (x, x[:1]):
        np.testing.assert_allclose(
            by_onnxruntime(tmp_path / "saved.onnx", rows), by_hand[: len(rows)], rtol=1e-4, atol=1e-5
        )
    (node,) = (n for n in onnx.load(tmp_path / "saved.onnx").graph.node if n.op_type == "BatchNormalization")
    assert list(node.output) == ["y"]
    assert not [a for a in node.attribute if a.name == "training_mode"]


def test_a_file_that_was_trained_in_training_mode_is_saved_anew_in_inference_mode(tmp_path: Path) -> None:
    model = normalized(tmp_path / "1.onnx", 1)
    trained(model, "update")
    df.save(model, str(tmp_path / "trained.onnx"))
    df.save(df.load(str(tmp_path / "trained.onnx"), mode="inference"), str(tmp_path / "saved.onnx"))
    plain = normalized(tmp_path / "0.onnx", 0)
    trained(plain, "update")
    x = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    found = by_onnxruntime(tmp_path / "saved.onnx", x)
    np.testing.assert_allclose(found, df.Session(plain).run(x)["y"], rtol=1e-5, atol=1e-6)


def in_body(nodes: list[onnx.NodeProto], where: str) -> onnx.ModelProto:
    """Nodes from x to y, in the main graph, a branch or a function; the stored tensors lie in the main graph."""
    stored = [(name, np.array(numbers, np.float32)) for name, numbers in VECTORS.items()]
    stored += [("ratio", np.float32(0.5)), ("on", np.array(True))]
    x, y = (("x", TensorProto.FLOAT, ["N", 2]), ("y", TensorProto.FLOAT, ["N", 2]))
    if where == "branch":
        then = helper.make_graph(nodes, "then", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])])
        other = helper.make_graph(
            [helper.make_node("Neg", ["x"], ["z"])], "else", [],
            [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["N", 2])],
        )  # fmt: skip
        branch = helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)
        test = [
            helper.make_node("ReduceMax", ["x"], ["max"], keepdims=0),
            helper.make_node("Greater", ["max", "low"], ["c"]),
        ]
        return onnx_model([*test, branch], [x], [y], [*stored, ("low", np.float32(-99))], opset=17)
    if where == "function":
        names = ["x", *VECTORS, "ratio", "on"]
        layer = helper.make_function("own", "Layer", names, ["y"], nodes, [helper.make_opsetid("", 17)])
        call = helper.make_node("Layer", names, ["y"], domain="own")
        return onnx_model([call], [x], [y], stored, opset=17, functions=[layer], domains=["own"])
    return onnx_model(nodes, [x], [y], stored, opset=17)


VECTORS = {"s": [2, 3], "b": [1, -1], "m": [0.5, 1], "v": [4, 0.25]}


@pytest.mark.parametrize("where", ["graph", "branch", "function"])
def test_nodes_of_branches_and_functions_are_in_inference_mode_too(where: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("BatchNormalization", ["x", *VECTORS], ["h", "m1", "v1"], training_mode=1),
        helper.make_node("Dropout", ["h", "ratio", "on"], ["y", "mask"]),
    ]
    onnx.save(in_body(nodes, where), tmp_path / "model.onnx")
    x = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)
    s, b, m, v = (np.array(VECTORS[name]) for name in "sbmv")
    wanted = (x - m) / np.sqrt(v + 1e-5) * s + b
    model = df.load(str(tmp_path / "model.onnx"), mode="inference")
    np.testing.assert_allclose(df.Session(model).run(x)["y"], wanted, rtol=1e-5, atol=1e-6)
    df.save(model, str(tmp_path / "saved.onnx"))
    np.testing.assert_allclose(by_onnxruntime(tmp_path / "saved.onnx", x), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [6, 9])
def test_old_files_that_train_are_read_in_inference_mode(opset: int, tmp_path: Path) -> None:
    more = ["m1", "v1", "m2", "v2"]
    norm = helper.make_node("BatchNormalization", ["x", *VECTORS], ["h", *more])
    drop = helper.make_node("Dropout", ["h"], ["y", "mask"])
    stored = [(name, np.array(numbers, np.float32)) for name, numbers in VECTORS.items()]
    x, y = (("x", TensorProto.FLOAT, ["N", 2]), ("y", TensorProto.FLOAT, ["N", 2]))
    onnx.save(onnx_model([norm, drop], [x], [y], stored, opset=opset, ir_version=4), tmp_path / "model.onnx")
    data = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)
    s, b, m, v = (np.array(VECTORS[name]) for name in "sbmv")
    wanted = (data - m) / np.sqrt(v + 1e-5) * s + b
    model = df.load(str(tmp_path / "model.onnx"), mode="inference")
    np.testing.assert_allclose(df.Session(model).run(data)["y"], wanted, rtol=1e-5, atol=1e-6)
    df.save(model, str(tmp_path / "saved.onnx"))
    found = df.Session(df.load(str(tmp_path / "saved.onnx"))).run(data)["y"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    if opset == 9:
        np.testing.assert_allclose(by_onnxruntime(tmp_path / "saved.onnx", data), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("what", ["weights", "statistics"])
def test_a_batch_norm_without_running_statistics_stays_as_it_is(what: str) -> None:
    """A convolution's standardized weights; and a module that keeps none, for which exporters compute the batch's."""
    source = "w" if what == "weights" else "x"
    mean = helper.make_node("ReduceMean", ["x"], ["mean"], axes=[0], keepdims=0)
    norm = helper.make_node(
        "BatchNormalization", [source, "s", "b", "m" if what == "weights" else "mean", "v"], ["h"], training_mode=1
    )
    stored = [(name, np.array(numbers, np.float32)) for name, numbers in VECTORS.items()]
    weights = np.random.default_rng(0).standard_normal((6, 2)).astype(np.float32)
    nodes = [mean, norm, helper.make_node("Add", ["h", "x"], ["y"])]
    x, y = (("x", TensorProto.FLOAT, [6, 2]), ("y", TensorProto.FLOAT, [6, 2]))
    proto = onnx_model(nodes, [x], [y], [*stored, ("w", weights)], opset=17)
    before = proto.SerializeToString()
    assert as_in_inference(proto) == 0
    assert proto.SerializeToString() == before


def test_statistics_of_a_batch_that_are_read_have_no_inference_mode(tmp_path: Path) -> None:
    norm = helper.make_node("BatchNormalization", ["x", *VECTORS], ["y", "m1", "v1"], name="norm", training_mode=1)
    outputs = [("y", TensorProto.FLOAT, ["N", 2]), ("m1", TensorProto.FLOAT, [2])]
    stored = [(name, np.array(numbers, np.float32)) for name, numbers in VECTORS.items()]
    onnx.save(onnx_model([norm], [("x", TensorProto.FLOAT, ["N", 2])], outputs, stored, opset=17), tmp_path / "m.onnx")
    with pytest.raises(df.ModelError, match=r"'norm' gives 'm1', statistics of the batch, which are read"):
        df.load(str(tmp_path / "m.onnx"), mode="inference")
    with pytest.raises(df.InputError, match="mode is 'eval'; expected 'inference'"):
        df.load(str(tmp_path / "m.onnx"), mode="eval")


@pytest.mark.parametrize("mode", [{}, {"mode": "inference"}])
@pytest.mark.parametrize("operands", [[], ["x"], ["x", "s", "s", "s"]])
def test_nodes_without_their_operands_are_named_in_either_mode(
    mode: dict[str, str], operands: list[str], tmp_path: Path
) -> None:  # fmt: skip
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy")
    nodes = [helper.make_node("BatchNormalization", operands, ["y"], training_mode=1)]
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(np.ones(3, np.float32), "s")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "m.onnx")
    with pytest.raises(df.ModelError, match=f"BatchNormalization 'y'.* it has {len(operands)} inputs; expected 5"):
        df.load(str(tmp_path / "m.onnx"), **mode)
