"""``CDist``: distances between rows by products, as exact as differences are."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow_onnx.loading import load_bytes

CODES = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE}


def model(dtype, metric):
    node = helper.make_node("CDist", ["a", "b"], ["y"], domain="com.microsoft", metric=metric)
    inputs = [helper.make_tensor_value_info(n, CODES[dtype], [f"{n}0", 6]) for n in "ab"]
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("y", CODES[dtype], ["a0", "b0"])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def distances(a, b, metric):
    squared = np.square(a.astype(np.float64)[:, None] - b.astype(np.float64)[None]).sum(-1)
    return squared if metric == "sqeuclidean" else np.sqrt(squared)


@pytest.mark.parametrize("offset", [0, 1000, -1e5])
@pytest.mark.parametrize("metric", ["euclidean", "sqeuclidean"])
@pytest.mark.parametrize(("dtype", "error"), [(np.float32, 2e-7), (np.float64, 1e-12)])
def test_they_are_exact_far_from_zero(dtype, error, metric, offset):
    rng = np.random.default_rng(0)
    a, b = ((rng.standard_normal((n, 6)) + offset).astype(dtype) for n in (40, 50))
    data = model(dtype, metric)
    loaded = load_bytes(data)
    found = df.Session(loaded, devices=["cpu"]).run({"a": a, "b": b})["y"]
    assert found.dtype == dtype
    np.testing.assert_allclose(found, distances(a, b, metric), rtol=error)
    if not offset:
        peer = onnxruntime.InferenceSession(data).run(None, {"a": a, "b": b})[0]
        np.testing.assert_allclose(found, peer, rtol=1e-4, atol=1e-5)
    assert all(v.type.rank == 2 for node in loaded.graph.nodes for v in node.outputs)  # no difference of all pairs


def test_what_is_not_finite_stays_in_its_row_and_column():
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((n, 6)).astype(np.float32) for n in (4, 5))
    a[1, 2], b[2, 0], b[4, 1] = np.nan, np.nan, np.inf
    found = df.Session(load_bytes(model(np.float32, "sqeuclidean")), devices=["cpu"]).run({"a": a, "b": b})["y"]
    rows, columns = [0, 2, 3], [0, 1, 3]
    wanted = distances(a, b, "sqeuclidean")
    np.testing.assert_allclose(found[np.ix_(rows, columns)], wanted[np.ix_(rows, columns)], rtol=2e-7)
    assert not np.isfinite(found[1]).any()
    assert not np.isfinite(found[:, [2, 4]]).any()
