"""Weights that a file dequantizes before a product: read as they are stored, with the results of onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow_onnx.loading import load_bytes

ROWS, SIZE = 24, 70
TYPES = {
    "int4": (TensorProto.INT4, -8, 7), "uint4": (TensorProto.UINT4, 0, 15), "int8": (TensorProto.INT8, -128, 127),
    "uint8": (TensorProto.UINT8, 0, 255),
}  # fmt: skip


def file(kind, form, block, node, zeros):
    """x (N, 70) by a weight (70, 24), stored so or transposed, with scales per tensor, column or block."""
    code, low, high = TYPES[kind]
    rng = np.random.default_rng(0)
    shape = (ROWS, SIZE) if node != "MatMul" else (SIZE, ROWS)
    inner = shape.index(SIZE)
    count = -(-SIZE // block) if form == "block" else 0
    scales = {"tensor": (), "column": (ROWS,), "block": (count, ROWS) if inner == 0 else (ROWS, count)}[form]
    axis = {"tensor": 1, "column": 1 - inner, "block": inner}[form]

    def integers(name, shape):
        values = rng.integers(low, high + 1, shape)
        return helper.make_tensor(name, code, shape, values.astype(int).reshape(-1).tolist())

    stored = [
        integers("w", shape),
        onnx.numpy_helper.from_array((rng.random(scales) / 50 + 0.01).astype(np.float32), "s"),
        onnx.numpy_helper.from_array(rng.normal(size=ROWS).astype(np.float32), "b"),
        *([integers("z", scales)] if zeros else []),
    ]
    options = {"axis": axis, **({"block_size": block} if form == "block" else {})}
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", *(["z"] if zeros else [])], ["d"], "dq", **options)]
    if node == "Transpose":
        nodes += [
            helper.make_node("Transpose", ["d"], ["t"], "turn", perm=[1, 0]),
            helper.make_node("MatMul", ["x", "t"], ["p"], "/fc/MatMul"),
            helper.make_node("Add", ["p", "b"], ["y"], "add"),
        ]
    elif node == "MatMul":
        nodes += [helper.make_node("MatMul", ["x", "d"], ["y"], "/fc/MatMul")]
    else:
        nodes += [helper.make_node("Gemm", ["x", "d", "b"], ["y"], "/fc/Gemm", transB=1)]
    types = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", s]) for n, s in (("x", SIZE), ("y", ROWS))]
    graph = helper.make_graph(nodes, "g", types[:1], types[1:], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def session_of(model):
    """Of the nodes as they are: optimized, they become products that round x to 8 bits."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("node", ["MatMul", "Gemm", "Transpose"])
@pytest.mark.parametrize(
    ("kind", "form", "block", "zeros"),
    [
        ("int4", "block", 16, False), ("uint4", "block", 32, True), ("int4", "column", 0, True),
        ("uint8", "block", 64, False), ("int8", "column", 0, False), ("int8", "tensor", 0, True),
        ("uint4", "tensor", 0, True),
    ],
)  # fmt: skip
def test_products_read_blocks(tmp_path, node, kind, form, block, zeros):
    proto = file(kind, form, block, node, zeros)
    model = load_bytes(proto.SerializeToString())
    ops = [n.op.name for n in model.graph.nodes]
    assert "matmul_blocks" in ops and not {"matmul", "dequantize", "mul"} & set(ops)
    session = session_of(proto.SerializeToString())
    for rows in (1, 3, 40):
        x = np.random.default_rng(rows).normal(size=(rows, SIZE)).astype(np.float32)
        expected = session.run(None, {"x": x})[0]
        np.testing.assert_allclose(model({"x": x})["y"], expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    adapted = df.lora(model, rank=2, targets="fc")
    assert [adapter.path for adapter in adapted.adapters] == ["fc"]
    with df.Trainer(adapted, optimizer=df.optim.SGD(lr=0.01)) as trainer:
        batch = {"x": x, "labels": np.arange(40) % ROWS}
        losses = [trainer.step(batch) for _ in range(5)]
    assert losses[-1] < losses[0]
    df.save(adapted, str(tmp_path / "nodes.onnx"))
    session = session_of(str(tmp_path / "nodes.onnx"))
    expected = adapted({"x": x})["y"]
    found = session.run(None, {"x": x})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_blocks_that_no_product_takes_are_dequantized():
    """A block of 7 elements is none of the op's."""
    model = load_bytes(file("int8", "block", 7, "MatMul", False).SerializeToString())
    assert "matmul" in [n.op.name for n in model.graph.nodes]
