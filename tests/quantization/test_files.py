"""Files of quantized models: what the file before can't have, and models that had none, against onnxruntime."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from tests.quantization.models import in_runtime, linear, off, random

NODE = helper.make_node
NORM = {"scale": 1 + random(6) / 4, "shift": random(6), "mean": random(6), "variance": 1 + random(6) ** 2}
CONVS = {"w": random(6, 3, 3, 3, seed=1) / 5, "b": random(6, seed=2), "v": random(4, 6, 1, 1, seed=3)}


def stored(path, nodes, tensors, shape, opset=17, ir=8, extra=(), rank=4):
    """A file whose outputs are ``y`` and others; before IR 4 its tensors are inputs too."""
    inputs = {"x": ("batch", *shape), **({n: a.shape for n, a in tensors.items()} if ir < 4 else {})}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in extra)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=ir), path)
    return str(path)


def norm_between(path):
    """A convolution reads the result of a batch norm, as those of linear bottlenecks do."""
    nodes = [
        NODE("Conv", ["x", "w", "b"], ["h"]),
        NODE("BatchNormalization", ["h", *NORM], ["k"]),
        NODE("Conv", ["k", "v"], ["y"]),
    ]
    return stored(path, nodes, CONVS | NORM, (3, 6, 6))


def einsums(path):
    nodes = [
        NODE("Einsum", ["x", "w"], ["h"], equation="bhij,hk->bkij"),
        NODE("Relu", ["h"], ["r"]),
        NODE("Einsum", ["r", "v"], ["y"], equation="bkij,ko->boij"),
    ]
    return stored(path, nodes, {"w": random(3, 6, seed=1), "v": random(6, 4, seed=2)}, (3, 4, 8))


def fused(path):
    own = {"domain": "com.microsoft", "activation": "Relu"}
    nodes = [
        NODE("FusedConv", ["x", "w", "b"], ["h"], **own),
        NODE("FusedConv", ["h", "u", "b", "h"], ["k"], pads=[1] * 4, **own),
        NODE("Conv", ["k", "v"], ["y"]),
    ]
    return stored(path, nodes, CONVS | {"u": random(6, 6, 3, 3, seed=4) / 8}, (3, 6, 6), extra=["com.microsoft"])


def old(path, opset=8, ir=3):
    nodes = [
        NODE("Conv", ["x", "w", "b"], ["h"]),
        NODE("Relu", ["h"], ["r"]),
        NODE("GlobalAveragePool", ["r"], ["g"]),
        NODE("Flatten", ["g"], ["f"]),
        NODE("Gemm", ["f", "u"], ["y"]) if opset > 10 else NODE("MatMul", ["f", "u"], ["y"]),
    ]
    return stored(path, nodes, CONVS | {"u": random(6, 5, seed=4)}, (3, 6, 6), opset, ir, rank=2)


def opset_13(path):
    return old(path, 13, 7)


def opset_11(path):
    return old(path, 11, 6)


@pytest.mark.parametrize("make", [norm_between, einsums, fused, old, opset_11, opset_13])
def test_what_the_file_cannot_have_is_written_from_the_graph(tmp_path, make):
    """Quantized at once, and after training: the file says what the model computes."""
    model = df.load(make(tmp_path / "float.onnx"))
    given = {"x": random(16, *model.graph.inputs[0].type.shape[1:], seed=9)}
    exact = in_runtime(tmp_path / "float.onnx", given)["y"]
    small = df.quantize_static(model, given, progress=False)
    df.save(small, tmp_path / "small.onnx")
    ours = df.Session(small).run(given)["y"]
    assert off(ours, exact) < 0.1
    assert off(in_runtime(tmp_path / "small.onnx", given)["y"], ours) < 0.01
    np.testing.assert_array_equal(df.Session(df.load(str(tmp_path / "small.onnx"))).run(given)["y"], ours)
    onnx.checker.check_model(str(tmp_path / "small.onnx"), full_check=True)

    trained = df.straight_through(df.quantize_static(model, given, train=True, progress=False))
    with df.Trainer(trained, "mse", df.optim.SGD(lr=1e-2), metrics=[]) as trainer:
        trainer.step({**given, "labels": exact * 2})
    df.save(trained, tmp_path / "trained.onnx")
    last = df.quantize_static(df.load(str(tmp_path / "trained.onnx")))
    df.save(last, tmp_path / "last.onnx")
    after = df.Session(trained).run(given)["y"]
    assert off(in_runtime(tmp_path / "last.onnx", given)["y"], after) < 0.02
    assert not np.array_equal(after, df.Session(small).run(given)["y"])
    kinds = {node.op_type for node in onnx.load(tmp_path / "trained.onnx").graph.node}
    assert "DequantizeLinear" in kinds
    assert not kinds & {"Round", "Div"}


@pytest.mark.parametrize("saved", [True, False])
def test_a_model_built_by_hand_keeps_its_pairs_when_it_was_trained(tmp_path, saved):
    x = random(32, 12)
    trained = df.straight_through(df.quantize_static(linear(), x, train=True, progress=False))
    with df.Trainer(trained, "mse", df.optim.SGD(lr=0.1), metrics=[]) as trainer:
        trainer.step({"x": x, "labels": random(32, 5, seed=5)})
    found = trained
    if saved:
        df.save(trained, tmp_path / "trained.onnx")
        found = df.load(str(tmp_path / "trained.onnx"))
    small = df.quantize_static(found)
    df.save(small, tmp_path / "small.onnx")
    kinds = [node.op_type for node in onnx.load(tmp_path / "small.onnx").graph.node]
    assert sorted({*kinds} - {"Identity"}) == ["Add", "DequantizeLinear", "MatMul", "QuantizeLinear"]
    after = df.Session(trained).run({"x": x})["y"]
    assert off(in_runtime(tmp_path / "small.onnx", {"x": x})["y"], after) < 1e-5
    assert off(after, df.Session(linear()).run({"x": x})["y"]) > 0.01
