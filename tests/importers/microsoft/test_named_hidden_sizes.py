"""Operators whose hidden sizes a file only names are converted once these come; masks of lengths and their sums."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.loading import load_bytes

CODES = {"f": TensorProto.FLOAT, "i": TensorProto.INT32}
RNG = np.random.default_rng(3)


def f(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def model(op, operands, outputs, *, named, stored=(), **attributes):
    """One node of inputs and of ``stored`` tensors; ``named``: every size of the inputs is."""
    given = [(n, a) for n, a in operands if a is not None and n not in stored]
    inputs = [
        helper.make_tensor_value_info(
            n, CODES[a.dtype.char], [f"{n}{i}" for i in range(a.ndim)] if named else list(a.shape)
        )
        for n, a in given
    ]
    names = [n if a is not None else "" for n, a in operands]
    node = helper.make_node(op, names, outputs, domain="com.microsoft", **attributes)
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    tensors = [numpy_helper.from_array(a, n) for n, a in operands if n in stored]
    graph = helper.make_graph([node], "g", inputs, results, tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return data, dict(given)


def check(data, feeds):
    found = df.Session(load_bytes(data), devices=["cpu"], fallback="allow").run(feeds)
    peer = onnxruntime.InferenceSession(data)
    names = [output.name for output in peer.get_outputs()]
    for name, wanted in zip(names, peer.run(None, feeds), strict=True):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5)


def grouped():
    operands = [("q", f(2, 3, 16)), ("k", f(2, 3, 8)), ("v", f(2, 3, 8)), ("pk", f(2, 1, 0, 8)), ("pv", f(2, 1, 0, 8))]
    lengths = [("sl", np.array([2, 2], np.int32)), ("ts", np.array(3, np.int32))]
    return model(
        "GroupQueryAttention", [*operands, *lengths], ["y", "pk2", "pv2"], named=True, num_heads=2, kv_num_heads=1
    )


def mixture():
    operands = [("x", f(3, 8)), ("r", f(3, 2)), ("w1", f(2, 8, 8)), ("b1", None), ("w2", f(2, 8, 8))]
    return model("MoE", operands, ["y"], named=True, stored=("w1", "w2"), k=1)


@pytest.mark.parametrize("case", [grouped, mixture])
def test_hidden_sizes_that_are_named(case):
    check(*case())


@pytest.mark.parametrize("lengths", [[5, 2, 0, 3, 6, 0, 5, 10], [3, 4, 0, 3, 6, 0, 3, 7]])
def test_a_mask_of_the_lengths_of_keys_and_of_their_sums(lengths):
    operands = [("q", f(2, 3, 16)), ("k", f(2, 5, 16)), ("v", f(2, 5, 16)), ("b", None)]
    check(
        *model("MultiHeadAttention", [*operands, ("m", np.array(lengths, np.int32))], ["y"], named=False, num_heads=2)
    )
