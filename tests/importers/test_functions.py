"""Local functions: run, trained and saved as the nodes that they stand for."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model


def model_of(*functions):
    used = [
        helper.make_node("Layer", ["x"], ["h"], domain="own"),
        helper.make_node("Layer", ["h"], ["y"], domain="own"),
    ]
    x, y = ((name, TensorProto.FLOAT, ["batch", 3]) for name in "xy")
    return onnx_model(used, [x], [y], functions=functions, domains=["own"])


def function(name, nodes, inputs, outputs):
    return helper.make_function(
        "own", name, inputs, outputs, nodes, [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    )


def layers():
    weight = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
    inner = function(
        "Product",
        [
            helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight)),
            helper.make_node("MatMul", ["a", "w"], ["b"]),
        ],
        ["a"],
        ["b"],
    )
    outer = function(
        "Layer",
        [helper.make_node("Product", ["a"], ["b"], domain="own"), helper.make_node("Tanh", ["b"], ["c"])],
        ["a"],
        ["c"],
    )
    return outer, inner


def theirs(data, x):
    return onnxruntime.InferenceSession(data).run(None, {"x": x})[0]


def test_functions_within_functions():
    proto = model_of(*layers())
    x = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    found = df.Session(load_bytes(proto.SerializeToString())).run({"x": x})["y"]
    np.testing.assert_allclose(found, theirs(proto.SerializeToString(), x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tie", [True, False])
def test_a_constant_of_a_function_trains(tie, tmp_path):
    """As one for all uses, which it is in the file; or apart."""
    path, tuned = str(tmp_path / "m.onnx"), str(tmp_path / "tuned.onnx")
    onnx.save(model_of(*layers()), path)
    model = df.load(path)
    weights = [name for name, p in model.parameters.items() if p.trainable]
    assert len(weights) == 2
    x = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    with df.Trainer(model, loss="mse", optimizer=df.optim.SGD(lr=0.1), tie=tie) as trainer:
        trainer.step({"x": x, "labels": np.zeros((4, 3), np.float32)})
    assert tie == np.array_equal(*(model.parameters[name].array for name in weights))
    df.save(model, tuned)
    np.testing.assert_allclose(df.Session(df.load(tuned)).run({"x": x})["y"], theirs(tuned, x), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(df.Session(model).run({"x": x})["y"], theirs(tuned, x), rtol=1e-5, atol=1e-6)


def test_a_function_that_calls_itself_is_refused():
    around = function("Layer", [helper.make_node("Layer", ["a"], ["c"], domain="own")], ["a"], ["c"])
    with pytest.raises(df.ModelError, match="'Layer' calls itself"):
        load_bytes(model_of(around).SerializeToString())


def test_an_unchanged_model_keeps_its_functions(tmp_path):
    path, copy = tmp_path / "m.onnx", tmp_path / "copy.onnx"
    onnx.save(model_of(*layers()), path)
    df.save(df.load(str(path)), str(copy))
    assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("given", [{}, {"by": 3.0}])
def test_calls_take_attributes_at_their_defaults(given):
    """Also those of functions within functions, and of bodies."""
    by = helper.make_node("Constant", [], ["by"])
    by.attribute.append(helper.make_attribute_ref("value_float", onnx.AttributeProto.FLOAT))
    by.attribute[0].ref_attr_name = "by"
    inner = function("Scaled", [by, helper.make_node("Mul", ["a", "by"], ["b"])], ["a"], ["b"])
    inner.attribute_proto.append(helper.make_attribute("by", 2.0))
    body = helper.make_graph(
        [helper.make_node("Scaled", ["a"], ["c"], domain="own", **given)],
        "body",
        [],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, None)],
    )
    nodes = [
        helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["yes"], ["b"], then_branch=body, else_branch=body),
    ]
    proto = model_of(function("Layer", nodes, ["a"], ["b"]), inner)
    x = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    found = df.Session(load_bytes(proto.SerializeToString())).run({"x": x})["y"]
    np.testing.assert_allclose(found, theirs(proto.SerializeToString(), x), rtol=1e-6)
    np.testing.assert_allclose(found, x * given.get("by", 2.0) ** 2, rtol=1e-6)


def test_functions_of_another_opset_whose_operators_are_the_same():
    proto = model_of(*layers())
    for one in proto.functions:
        next(opset for opset in one.opset_import if not opset.domain).version = 16
    onnx.checker.check_model(proto)
    x = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    found = df.Session(load_bytes(proto.SerializeToString())).run({"x": x})["y"]
    np.testing.assert_allclose(found, theirs(proto.SerializeToString(), x), rtol=1e-5, atol=1e-6)


def test_calls_within_functions_that_import_their_domain_at_another_version():
    """As jax2onnx writes them: the model imports version 1, the functions that of ONNX."""
    proto = model_of(*layers())
    for one in proto.functions:
        next(opset for opset in one.opset_import if opset.domain == "own").version = 18
    x = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32)
    found = df.Session(load_bytes(proto.SerializeToString())).run({"x": x})["y"]
    np.testing.assert_allclose(found, theirs(proto.SerializeToString(), x), rtol=1e-5, atol=1e-6)


def test_functions_of_an_opset_that_differs_are_refused():
    largest = function("Layer", [helper.make_node("ReduceMax", ["a"], ["b"], axes=[1])], ["a"], ["b"])
    largest.opset_import[0].version = 13
    with pytest.raises(df.ModelError, match=r"local functions \(Layer\) are of another opset"):
        load_bytes(model_of(largest).SerializeToString())
