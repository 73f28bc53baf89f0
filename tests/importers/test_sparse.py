"""Sparse tensors of a file are read as dense ones, beside onnxruntime; those that can't be are refused."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.loading import load_bytes

LINEAR, AXES = [1, 5], [[0, 1], [1, 2]]
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def sparse(indices, shape=(2, 3), values=(1.5, -2), name="w"):
    proto = onnx.SparseTensorProto(dims=shape)
    proto.values.CopyFrom(numpy_helper.from_array(np.array(values, np.float32), name))
    proto.indices.CopyFrom(numpy_helper.from_array(np.array(indices, np.int64)))
    return proto


def model(tensor, *, constant=False, body=False, outputs=("y",)):
    """``x`` plus a sparse tensor, which is stored or a constant; in the branch of an If, ``body``."""
    nodes = [helper.make_node("Constant", [], ["w"], sparse_value=tensor)] if constant else []
    stored = [] if constant else [tensor]
    nodes.append(helper.make_node("Add", ["x", "w"], ["y"]))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    if body:
        branch = helper.make_graph(nodes, "branch", [], [y], sparse_initializer=stored)
        other = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "other", [], [y])
        first = helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0)
        cast = helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL)
        nodes = [first, cast, helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)]
        stored = []
    graph = helper.make_graph(nodes, "g", [x], [y], sparse_initializer=stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def by_onnxruntime(data):
    return onnxruntime.InferenceSession(data).run(None, {"x": X})[0]


@pytest.mark.parametrize("body", [False, True])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("indices", [LINEAR, AXES], ids=["linear", "axes"])
def test_they_give_what_onnxruntime_gives(indices, constant, body):
    data = model(sparse(indices), constant=constant, body=body)
    np.testing.assert_array_equal(df.Session(load_bytes(data), devices=["cpu"]).run(X)["y"], by_onnxruntime(data))


def test_indices_have_any_order():
    data = model(sparse(LINEAR[::-1], values=(-2, 1.5)))
    found = df.Session(load_bytes(data), devices=["cpu"]).run(X)["y"]
    np.testing.assert_array_equal(found, by_onnxruntime(model(sparse(LINEAR))))


def test_one_without_values_is_zero():
    data = model(sparse([], values=[]))
    np.testing.assert_array_equal(df.Session(load_bytes(data), devices=["cpu"]).run(X)["y"], X)


@pytest.mark.parametrize("constant", [False, True])
def test_a_saved_model_is_read_by_onnxruntime_with_old_data_and_new(constant, tmp_path):
    data = model(sparse(LINEAR), constant=constant)
    loaded, path = load_bytes(data), tmp_path / "saved.onnx"
    df.save(loaded, path)
    np.testing.assert_array_equal(by_onnxruntime(path.read_bytes()), by_onnxruntime(data))
    loaded.parameters["w"].set(np.full((2, 3), 7, np.float32))
    df.save(loaded, path, overwrite=True)
    np.testing.assert_array_equal(by_onnxruntime(path.read_bytes()), X + 7)
    np.testing.assert_array_equal(df.Session(df.load(path), devices=["cpu"]).run(X)["y"], X + 7)
    df.save(loaded, path, outputs=["y"], overwrite=True)
    np.testing.assert_array_equal(by_onnxruntime(path.read_bytes()), X + 7)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (sparse([1, 6]), "exceed its shape"),
        (sparse([-1, 5]), "exceed its shape"),
        (sparse([[0, 1], [2, 0]]), "exceed its shape"),
        (sparse([5, 5]), "name an element twice"),
        (sparse([[0, 1], [0, 1]]), "name an element twice"),
        (sparse([1, 2, 3]), "expected as many"),
        (sparse([[[0, 1]], [[1, 2]]]), "expected as many"),
        (sparse([0, 1], shape=(1 << 20, 1 << 20)), "bytes"),
        (sparse([0, 1], shape=(1 << 62, 1 << 62)), "bytes"),
        (sparse([0, 1], shape=(-2, 3)), "expected 1 to"),
        (sparse([0, 1], shape=()), "expected 1 to"),
        (sparse([0, 1], name=""), "has no name"),
    ],
)
def test_what_is_no_sparse_tensor_is_refused(tensor, message):
    with pytest.raises(df.ModelError, match=message):
        load_bytes(model(tensor))
