"""Weights that are inputs, of sizes that the file only names: nodes are converted for those that come."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model, refusal

RANDOM = np.random.default_rng(7)
BOTH = {"num_heads": 2, "mask_filter_value": -1e4}


def f(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def u8(*shape):
    return RANDOM.integers(0, 9, shape).astype(np.uint8)


def ints(*numbers, dtype=np.int64):
    return np.array(numbers, dtype)


def one(number, dtype=np.float32):
    return np.array(number, dtype)


def quantized(x, w, bias=None):
    """Operands of QLinearConv."""
    zero = one(2, np.uint8)
    return [x, one(0.5), zero, w, one(0.25), zero, one(2.0), zero, bias]


CASES = {
    "conv": ("Conv", [f(1, 4, 6, 5), f(6, 2, 3, 2), f(6)], {"group": 2}),
    "conv, same": ("Conv", [f(2, 3, 7), f(2, 3, 3)], {"auto_pad": "SAME_UPPER"}),
    "integers": ("ConvInteger", [u8(1, 4, 5, 5), u8(6, 2, 2, 1)], {"group": 2}),
    "quantized": ("QLinearConv", quantized(u8(1, 3, 6), u8(4, 3, 3), ints(1, 2, 3, 4, dtype=np.int32)), {}),
    "transposed": ("ConvTranspose", [f(1, 4, 3, 3), f(4, 2, 3, 2), f(4)], {"group": 2, "strides": [2, 1]}),
    "deformed": ("DeformConv", [f(1, 2, 5, 5), f(3, 2, 3, 3), f(1, 18, 3, 3)], {}),
    "rnn": ("RNN", [f(4, 2, 3), f(1, 5, 3), f(1, 5, 5), f(1, 10)], {"hidden_size": 5}),
    "gru": ("GRU", [f(4, 2, 3), f(2, 15, 3), f(2, 15, 5)], {"hidden_size": 5, "direction": "bidirectional"}),
    "lstm": ("LSTM", [f(4, 2, 3), f(1, 20, 3), f(1, 20, 5)], {"hidden_size": 5, "clip": 1.0}),
    "scattered": ("ScatterND", [f(3, 4, 2), ints([0, 1], [2, 3], [1, 0]), f(3, 2)], {}),
    "gathered": ("GatherND", [f(3, 4, 2), ints([0, 1], [2, 3], [1, 0])], {}),
    "rotated": ("RotaryEmbedding", [f(2, 2, 3, 8), f(5, 4), f(5, 4), ints([0, 1, 2], [2, 3, 4])], {}),
    "blocks": ("MatMulNBits", [f(3, 32), u8(4, 2, 8), f(8)], {"K": 32, "N": 4, "block_size": 16}),
    "columns": (
        "MatMulNBits",
        [f(3, 32), u8(4, 2, 8), f(4, 2), None, RANDOM.integers(0, 2, 32).astype(np.int32)],
        {"K": 32, "N": 4, "block_size": 16},
    ),
    "projected": ("Attention", [f(2, 3, 4), f(4, 24), f(24), ints(2, 3, dtype=np.int32)], BOTH),
    "biased": ("MultiHeadAttention", [f(2, 3, 8), f(2, 5, 8), f(2, 5, 8), f(24)], BOTH),
}
THEIRS = ("MatMulNBits", "Attention", "MultiHeadAttention")


def model(op, operands, attributes, *, fixed=0):
    """One node whose operands are inputs; the first ``fixed`` have numbers for sizes, the others a name for each."""
    names = ["" if a is None else f"x{i}" for i, a in enumerate(operands)]
    given = [
        (
            name,
            helper.np_dtype_to_tensor_dtype(a.dtype),
            a.shape if i < fixed else [f"{name}.{n}" for n in range(a.ndim)],
        )
        for i, (name, a) in enumerate(zip(names, operands, strict=True))
        if a is not None
    ]
    domain = "com.microsoft" if op in THEIRS else ""
    node = helper.make_node(op, names, ["y"], domain=domain, **attributes)
    proto = onnx_model([node], given, [onnx.ValueInfoProto(name="y")], opset=23, ir_version=10)
    if domain:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    return proto, {name: a for name, a in zip(names, operands, strict=True) if a is not None}


@pytest.mark.parametrize("fixed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_named_sizes_are_known_once_inputs_come(name, fixed):
    op, operands, attributes = CASES[name]
    proto, feeds = model(op, operands, attributes, fixed=fixed)
    (wanted,) = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, feeds
    )
    del proto.graph.output[:]
    shape = [f"y{i}" for i in range(wanted.ndim)]
    proto.graph.output.append(helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(wanted.dtype), shape))
    for device in ("cpu", "numpy"):
        found = df.Session(load_bytes(proto.SerializeToString()), devices=[device]).run(feeds)["y"]
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_fits_no_sizes_is_refused_when_the_file_is_read():
    """What is wrong whatever the sizes are, and what one size for all names would have made right."""
    operands = [f(4, 2, 3), f(1, 20, 3), f(1, 20, 5)]
    proto, _ = model("LSTM", operands, {"hidden_size": 5, "activations": ["Tanh", "Cosine", "Tanh"]})
    assert "'cosine' is not known" in refusal(df.ModelError, load_bytes, proto.SerializeToString())
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    stored = [("w", np.ones((5, 2), np.float32))]
    proto = onnx_model(nodes, [("x", TensorProto.FLOAT, ["batch", "rows", 4])], ["y"], stored)
    assert "MatMul" in refusal(df.ModelError, load_bytes, proto.SerializeToString())


def test_sizes_that_do_not_fit_are_refused_when_inputs_come():
    proto, feeds = model("Conv", [f(1, 4, 6), f(6, 3, 3)], {})
    text = refusal(df.DataflowError, df.Session(load_bytes(proto.SerializeToString())).run, feeds)
    assert "Conv 'y'" in text


WRONG = {
    "an order of three axes": (
        "Transpose",
        [("x", TensorProto.FLOAT, "NM")],
        {"perm": [0, 1, 2]},
        "is no order of the 2",
    ),
    "two dtypes": ("Add", [("x", TensorProto.FLOAT, "NM"), ("z", TensorProto.INT64, "NM")], {}, "one dtype with cast"),
    "two ranks": (
        "Concat",
        [("x", TensorProto.FLOAT, "NM"), ("z", TensorProto.FLOAT, "N")],
        {"axis": 0},
        "does not fit",
    ),
    "text": ("MatMul", [("x", TensorProto.FLOAT, "NM"), ("z", TensorProto.STRING, "MK")], {}, "expected numbers"),
}


@pytest.mark.parametrize("case", WRONG)
def test_nodes_that_fit_no_sizes_are_refused_when_the_file_is_read(case):
    """As onnxruntime does."""
    op, operands, attributes, says = WRONG[case]
    inputs = [helper.make_tensor_value_info(name, kind, list(sizes)) for name, kind, sizes in operands]
    node = helper.make_node(op, [name for name, *_ in operands], ["y"], "wrong", **attributes)
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph([node], "wrong", inputs, outputs)
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    with pytest.raises(df.ModelError, match=rf"{op} 'wrong'.*{says}"):
        load_bytes(data)
    with pytest.raises(Exception, match=r"(?i)type|shape|perm|rank"):
        onnxruntime.InferenceSession(data)
