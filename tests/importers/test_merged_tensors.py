"""Files in which an exporter merged tensors that begin alike: they train as those of a file that has each of them."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df

ONES, ZEROS = np.ones(4, np.float32), np.zeros(4, np.float32)


def saved(path: Path, nodes: list[Any], arrays: dict[str, np.ndarray]) -> str:
    """A file with an input x (n, 4, 5) and an output y (n, 4)."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4, 5])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "network", [x], [y], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return str(path)


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {f"w{i}": random.standard_normal((4, 4, 1)).astype(np.float32) / 2 for i in range(2)}


def normalized(path: Path, merged: str) -> str:
    """Two convolutions with batch norms; ``merged``: as no exporter, PyTorch's older or its newer one writes them."""
    nodes, h = [], "x"
    arrays: dict[str, np.ndarray] = {**weights(), "norm0.weight": ONES, "norm0.bias": ZEROS}
    for i in range(2):
        names = {f"norm{i}.{n}": ONES if n.endswith(("weight", "var")) else ZEROS
                 for n in ("weight", "bias", "running_mean", "running_var")}  # fmt: skip
        for name, array in names.items():
            kept = "norm0.weight" if array is ONES else "norm0.bias"
            if not merged:
                arrays[name] = array
            elif merged == "behind identities" and name != kept:
                nodes.append(helper.make_node("Identity", [kept], [name]))
        read = [*names]
        if merged == "read at once":
            read = ["norm0.weight", "norm0.bias", "norm0.bias", "norm0.weight"]
        nodes.append(helper.make_node("Conv", [h, f"w{i}"], [f"c{i}"]))
        nodes.append(helper.make_node("BatchNormalization", [f"c{i}", *read], [f"n{i}"], name=f"norm{i}"))
        nodes.append(helper.make_node("Relu", [f"n{i}"], [h := f"h{i}"]))
    nodes.append(helper.make_node("ReduceMean", [h], ["y"], axes=[2], keepdims=0))
    return saved(path, nodes, arrays)


def trained(path: str) -> tuple[df.Model, list[float]]:
    random = np.random.default_rng(1)
    batch = {"x": random.standard_normal((6, 4, 5)).astype(np.float32), "labels": random.integers(0, 4, 6)}
    model = df.load(path)
    with df.Trainer(model, batch_norm="update", devices=["cpu"], optimizer=df.optim.SGD(lr=0.3)) as trainer:
        return model, [trainer.step(batch) for _ in range(4)]


@pytest.mark.parametrize("merged", ["behind identities", "read at once"])
def test_what_was_merged_trains_apart_and_is_saved_so(tmp_path: Path, merged: str) -> None:
    expected, losses = trained(normalized(tmp_path / "apart.onnx", ""))
    model, found = trained(normalized(tmp_path / "merged.onnx", merged))
    assert found == losses
    assert model.parameters.keys() == expected.parameters.keys()
    for name, parameter in expected.parameters.items():
        np.testing.assert_array_equal(model.parameters[name].array, parameter.array)
        assert model.parameters[name].trainable == parameter.trainable
    assert np.ptp(model.parameters["norm1.bias"].array - model.parameters["norm0.bias"].array) > 0.01
    df.save(model, str(tmp_path / "after.onnx"))
    df.save(expected, str(tmp_path / "expected.onnx"))
    x = np.random.default_rng(2).standard_normal((3, 4, 5)).astype(np.float32)
    results = [
        onnxruntime.InferenceSession(str(tmp_path / name), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for name in ("after.onnx", "expected.onnx")
    ]
    np.testing.assert_allclose(*results, rtol=1e-6)
    again = df.load(str(tmp_path / "after.onnx"))
    assert {name: p.array.tobytes() for name, p in again.parameters.items()} == {
        name: p.array.tobytes() for name, p in model.parameters.items()
    }


def test_a_file_that_nobody_changed_keeps_its_bytes(tmp_path: Path) -> None:
    path = normalized(tmp_path / "merged.onnx", "read at once")
    df.save(df.load(path), str(tmp_path / "copy.onnx"))
    assert (tmp_path / "copy.onnx").read_bytes() == Path(path).read_bytes()


def test_layers_that_share_a_matrix_share_what_is_beside_it(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w0", "bias"], ["c0"]),
        helper.make_node("Conv", ["c0", "w0", "bias"], ["c1"]),
        helper.make_node("ReduceMean", ["c1"], ["y"], axes=[2], keepdims=0),
    ]
    path = saved(tmp_path / "shared.onnx", nodes, {"w0": weights()["w0"], "bias": ZEROS})
    assert df.load(path).parameters.keys() == {"w0", "bias"}


@pytest.mark.parametrize("merged", ["", "behind identities", "read at once"])
def test_a_network_that_is_applied_twice_keeps_one_tensor_for_each_operand(tmp_path: Path, merged: str) -> None:
    nodes, arrays, names = (
        [],
        {"w0": weights()["w0"]},
        ["norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"],
    )
    kept = {name: "norm.weight" if name.endswith(("weight", "var")) else "norm.bias" for name in names}
    for name in names:
        if not merged or kept[name] == name:
            arrays[name] = ONES if kept[name] == "norm.weight" else ZEROS
        elif merged == "behind identities":
            nodes.append(helper.make_node("Identity", [kept[name]], [name]))
    read = [kept[name] for name in names] if merged == "read at once" else names
    for i, h in enumerate(("x", "n0")):
        nodes.append(helper.make_node("Conv", [h, "w0"], [f"c{i}"]))
        label = "norm" if i == 0 else "norm_1"
        nodes.append(
            helper.make_node("BatchNormalization", [f"c{i}", *read], [f"n{i}"], name=f"/{label}/BatchNormalization")
        )
    nodes.append(helper.make_node("ReduceMean", ["n1"], ["y"], axes=[2], keepdims=0))
    model, losses = trained(saved(tmp_path / "twice.onnx", nodes, arrays))
    assert model.parameters.keys() == {"w0", *names}
    df.save(model, str(tmp_path / "after.onnx"))
    again = df.load(str(tmp_path / "after.onnx"))
    assert {n: p.array.tobytes() for n, p in again.parameters.items()} == {
        n: p.array.tobytes() for n, p in model.parameters.items()
    }
    assert np.ptp(model.parameters["norm.running_mean"].array - model.parameters["norm.bias"].array) > 0.01
    x = np.random.default_rng(2).standard_normal((3, 4, 5)).astype(np.float32)
    (expected,) = onnxruntime.InferenceSession(str(tmp_path / "after.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(df.Session(model, devices=["cpu"]).run(x)["y"], expected, rtol=1e-4, atol=1e-6)
    other = (
        saved(tmp_path / "apart.onnx", [n for n in nodes if n.op_type != "Identity"], arrays) if not merged else None
    )
    assert other is None or trained(other)[1] == losses


def relative(path: Path, merged: str, *, layers_twice: bool) -> str:
    """Two layers that read one table of positions from the left, each a product with its own weight and bias.

    With ``layers_twice`` they are those that read the input, too.
    """
    random = np.random.default_rng(3)
    matrices = {name: random.standard_normal((5, 5)).astype(np.float32) for name in ("r", "a.w", "b.w", "c.w", "d.w")}
    biases = [f"{name}.b" for name in ("abcd" if not layers_twice else "ab")]
    zeros = np.zeros(5, np.float32)
    arrays = {**matrices, **dict.fromkeys(biases[:1] if merged else biases, zeros)}
    nodes = []
    if merged == "behind identities":
        nodes = [helper.make_node("Identity", [biases[0]], [name]) for name in biases[1:]]
    third, fourth = "ab" if layers_twice else "cd"
    reads = [("r", "a"), ("r", "b"), ("x", third), ("x", fourth)]
    for i, (left, layer) in enumerate(reads):
        bias = biases[0] if merged == "read at once" else f"{layer}.b"
        nodes.append(helper.make_node("MatMul", [left, f"{layer}.w"], [f"p{i}"]))
        nodes.append(helper.make_node("Add", [f"p{i}", bias], [f"s{i}"], name=f"/{layer}/Add"))
    nodes.append(helper.make_node("Mul", ["s0", "s1"], ["rr"]))
    nodes.append(helper.make_node("ReduceMean", ["rr"], ["rm"], axes=[0], keepdims=0))
    nodes.append(helper.make_node("Relu", ["s2"], ["h2"]))
    nodes.append(helper.make_node("Add", ["h2", "rm"], ["t"]))
    nodes.append(helper.make_node("Mul", ["t", "s3"], ["u"]))
    nodes.append(helper.make_node("ReduceMean", ["u"], ["y"], axes=[2], keepdims=0))
    used = {name for node in nodes for name in node.input}
    return saved(path, nodes, {name: array for name, array in arrays.items() if name in used})


@pytest.mark.parametrize(
    ("merged", "layers_twice"), [("behind identities", False), ("read at once", False), ("behind identities", True)]
)
def test_a_table_that_two_layers_multiply_is_no_shared_weight(tmp_path: Path, merged: str, layers_twice: bool) -> None:
    """Nor are names of one matrix several, where layers run twice: biases of their own names train apart."""
    expected, losses = trained(relative(tmp_path / "apart.onnx", "", layers_twice=layers_twice))
    model, found = trained(relative(tmp_path / "merged.onnx", merged, layers_twice=layers_twice))
    np.testing.assert_allclose(found, losses, rtol=1e-6)
    assert len(model.parameters) == len(expected.parameters)


def test_layers_of_two_names_that_are_one_stay_one(tmp_path: Path) -> None:
    """PyTorch's older exporter writes an Identity node for each name of a tied matrix, as for merged biases."""
    nodes = [
        helper.make_node("Identity", ["w0"], ["again.weight"]),
        helper.make_node("Identity", ["bias"], ["again.bias"]),
        helper.make_node("Conv", ["x", "w0", "bias"], ["c0"]),
        helper.make_node("Conv", ["c0", "again.weight", "again.bias"], ["c1"]),
        helper.make_node("ReduceMean", ["c1"], ["y"], axes=[2], keepdims=0),
    ]
    path = saved(tmp_path / "tied.onnx", nodes, {"w0": weights()["w0"], "bias": ZEROS})
    assert df.load(path).parameters.keys() == {"w0", "bias"}
