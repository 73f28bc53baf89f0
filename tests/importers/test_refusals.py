"""What can't be imported or trained is said once, with every cause: node, operator and opset."""

from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests import support
from tests.support import onnx_model

ROOT = Path(__file__).parents[2]
node = helper.make_node


def model(nodes, initializers=(), opset=18, out="y", inputs=(("x", ["batch", 4]),), rank=2):
    given = [(name, TensorProto.FLOAT, shape) for name, shape in inputs]
    return onnx_model(nodes, given, [(out, TensorProto.FLOAT, [None] * rank)], initializers, opset=opset)


def loaded(proto):
    return load_bytes(proto.SerializeToString())


refusal = partial(support.refusal, df.ModelError, loaded)


def test_operators_that_are_not_known():
    nodes = [node("Strange", ["x"], ["a"], name="one"), node("Stranger", ["a"], ["y"], name="two")]
    text = refusal(model(nodes))
    for expected in ("ai.onnx.Strange, opset 18", "'one'", "ai.onnx.Stranger, opset 18", "'two'"):
        assert expected in text


def test_nodes_that_do_not_fit():
    nodes = [
        node("Softmax", ["x"], ["a"], name="softened", axis=7),
        node("Relu", ["a"], ["b"], name="after"),  # depends on a refused node: not a cause
        node("Reshape", ["x", "wrong"], ["c"], name="shaped"),
        node("MatMul", ["x", "w"], ["d"], name="product"),
        node("Add", ["b", "d"], ["y"], name="sum"),
    ]
    stored = [("wrong", np.array([3, -1, -1])), ("w", np.zeros((5, 2), np.float32))]
    text = refusal(model(nodes, stored))
    assert "3 nodes can't be imported" in text
    for name, operator in (("softened", "Softmax"), ("shaped", "Reshape"), ("product", "MatMul")):
        assert f"{operator} {name!r}, opset 18" in text
    assert "after" not in text
    assert "sum" not in text


def test_a_shape_of_several_axes():
    nodes = [
        node("Cast", ["x"], ["integers"], to=TensorProto.INT64),
        node("Expand", ["x", "integers"], ["r"], name="first"),
        node("ConstantOfShape", ["integers"], ["z"], name="second"),
        node("Concat", ["r", "z"], ["y"], axis=0),
    ]
    text = refusal(model(nodes))
    assert "2 nodes can't be imported" in text
    assert "Expand 'first', opset 18" in text
    assert "ConstantOfShape 'second', opset 18" in text
    assert text.count("is computed and int64[batch, 4]; expected a list of sizes") == 2


def growing(limit):
    """The body of a loop that doubles its value until it is large: how often is not known."""
    return helper.make_graph(
        [
            node("Add", ["v", "v"], ["twice"]),
            node("ReduceMax", ["twice"], ["top"], keepdims=0),
            node("Less", ["top", limit], ["go"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("twice", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(np.float32(100), limit)],
    )


def loops():
    nodes = [
        node("MatMul", ["x", "w"], ["a"], name="product"),
        node("Loop", ["", "", "a"], ["b"], name="grow", body=growing("limit")),
        node("Loop", ["", "", "b"], ["y"], name="more", body=growing("limit2")),
    ]
    return model(nodes, [("w", np.random.default_rng(0).random((4, 3), np.float32))])


def test_loops_of_unknown_length_run():
    x = np.random.default_rng(1).random((2, 4), np.float32)
    proto = loops()
    (expected,) = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, {"x": x})
    session = df.Session(loaded(proto), devices=["cpu"], fallback="error")
    np.testing.assert_allclose(session.run(x)["y"], expected, rtol=1e-6)


def test_nodes_without_a_gradient():
    with (
        pytest.raises(df.GradientError) as caught,
        df.Trainer(loaded(loops()), loss="mse", devices=["cpu"]) as trainer,
    ):
        trainer.step({"x": np.ones((2, 4), np.float32), "labels": np.ones((2, 3), np.float32)})
    text = str(caught.value)
    assert "2 nodes have no gradient" in text
    for name in ("grow", "more"):
        assert f"Loop {name!r}, opset 18" in text


def test_parameters_that_cannot_be_trained():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 4))
    integers = [g.parameter(name, np.arange(4)) for name in ("i", "j")]
    g.output("y", df.ops.add(x, df.ops.cast(df.ops.add(*integers), to=df.float32)))
    with pytest.raises(df.InputError, match=r"'i' is int64\[4\], 'j' is int64\[4\]"):
        df.Trainer(df.Model(g.build()), trainable=["i", "j"])


def test_a_stored_tensor_that_is_an_input_too_is_no_input_of_a_run():
    x, w = np.ones((2, 4), np.float32), np.full((4, 3), 0.5, np.float32)
    proto = model([node("MatMul", ["x", "w"], ["y"])], [numpy_helper.from_array(w, "w")], inputs=[("x", ["batch", 4])])
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 3]))
    fed = {"x": x, "w": w + 1}
    expected = onnxruntime.InferenceSession(proto.SerializeToString()).run(None, fed)[0]
    found = loaded(proto)
    session = df.Session(found, devices=["cpu"])
    with pytest.raises(
        df.InputError, match=r"'w' is stored in the model.*model\.parameters\['w'\]\.set\(array\) and session.reload"
    ):
        session.run(fed)
    found.parameters["w"].set(fed["w"])
    session.reload()
    np.testing.assert_allclose(session.run({"x": x})["y"], expected)
