"""Stored tensors of bodies that have one name: to ONNX they are different tensors, which train and are saved apart."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df

FLOAT = TensorProto.FLOAT
RANDOM = np.random.default_rng(0)
OUTER, FIRST, SECOND = (RANDOM.standard_normal((3, 3)).astype(np.float32) for _ in range(3))
X = RANDOM.standard_normal((4, 3)).astype(np.float32)


def value(name, *shape):
    return helper.make_tensor_value_info(name, FLOAT, shape)


def branch(name, kind, array):
    nodes = [
        helper.make_node("MatMul", ["h", "W"], [f"{name}.m"]),
        helper.make_node(kind, [f"{name}.m"], [f"{name}.y"]),
    ]
    return helper.make_graph(nodes, name, [], [value(f"{name}.y", "n", 3)], [numpy_helper.from_array(array, "W")])


def repeated(name, array):
    """A loop of two iterations over a product with a stored tensor of its own."""
    nodes = [
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("MatMul", ["c", "W"], ["m"]),
        helper.make_node("Tanh", ["m"], ["next"]),
    ]
    inputs = [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", 9, [])]
    outputs = [helper.make_tensor_value_info("on", 9, []), value("next", 4, 3)]
    return helper.make_graph(nodes, name, [*inputs, value("c", 4, 3)], outputs, [numpy_helper.from_array(array, "W")])


def model(kind, outside):
    stored = [numpy_helper.from_array(np.array(2), "twice"), numpy_helper.from_array(np.float32(0), "zero")]
    nodes = [helper.make_node("Identity", ["x"], ["h"])]
    if outside:
        stored.append(numpy_helper.from_array(OUTER, "W"))
        nodes = [helper.make_node("MatMul", ["x", "W"], ["h"])]
    if kind == "if":
        nodes += [
            helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
            helper.make_node("Less", ["s", "zero"], ["b"]),
        ]
        bodies = {"then_branch": branch("t", "Tanh", FIRST), "else_branch": branch("e", "Sigmoid", SECOND)}
        nodes.append(helper.make_node("If", ["b"], ["y"], **bodies))
    else:
        nodes.append(helper.make_node("Loop", ["twice", "", "h"], ["k"], body=repeated("first", FIRST)))
        nodes.append(helper.make_node("Loop", ["twice", "", "k"], ["y"], body=repeated("second", SECOND)))
    graph = helper.make_graph(nodes, "g", [value("x", 4, 3)], [value("y", 4, 3)], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def with_constants(proto):
    """The model, whose bodies' stored tensors are nodes of Constant; that of the main graph is called V then."""
    for tensor in proto.graph.initializer:
        tensor.name = tensor.name.replace("W", "V")
    for node in proto.graph.node:
        node.input[:] = [name.replace("W", "V") for name in node.input]
        for body in [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]:
            nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in body.initializer]
            nodes += body.node
            del body.initializer[:], body.node[:]
            body.node.extend(nodes)
    return proto


def stored_in(graph):
    """The arrays called V or W of a graph and of its bodies, in order."""
    found = [numpy_helper.to_array(t) for t in graph.initializer if t.name in ("V", "W")]
    found += [numpy_helper.to_array(n.attribute[0].t) for n in graph.node if n.op_type == "Constant"]
    for node in graph.node:
        bodies = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
        for name in sorted(bodies, reverse=True):
            found += stored_in(bodies[name])
    return found


@pytest.mark.parametrize("held", ["initializers", "constants"])
@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("kind", ["if", "loop"])
def test_tensors_of_one_name_in_several_bodies_are_several(kind, outside, held, tmp_path):
    proto, file = model(kind, outside), tmp_path / "model.onnx"
    proto = proto if held == "initializers" else with_constants(proto)
    onnx.save(proto, file)
    made = df.load(str(file))
    names = ["W", "W.2", "W.3"][: 2 + outside] if held == "initializers" else ["V", "W", "W.2"][1 - outside :]
    for name, array in zip(names, [OUTER, FIRST, SECOND][1 - outside :], strict=True):
        # Where weights are initializers, constants are none by default.
        assert made.parameters[name].trainable == (held == "initializers" or not outside or name == "V")
        np.testing.assert_array_equal(made.parameters[name].array, array)
    batches = [{"x": s * np.abs(X), "labels": np.full((4, 3), 0.3, np.float32)} for s in (1, -1)]
    with df.Trainer(made, "mse", "sgd:lr=0.1", trainable=names, devices=["cpu"]) as trainer:
        for batch in batches:
            trainer.step(batch)
    df.save(made, str(tmp_path / "saved.onnx"))
    saved = onnx.load(tmp_path / "saved.onnx")
    onnx.checker.check_model(saved)
    for name, array, before in zip(names, stored_in(saved.graph), stored_in(proto.graph), strict=True):
        np.testing.assert_array_equal(made.parameters[name].array, array)
        assert not np.array_equal(array, before)
    again = df.load(str(tmp_path / "saved.onnx"))
    peer = onnxruntime.InferenceSession(saved.SerializeToString(), providers=["CPUExecutionProvider"])
    for batch in batches:
        (expected,) = peer.run(None, {"x": batch["x"]})
        for one in (made, again):
            np.testing.assert_allclose(one({"x": batch["x"]})["y"], expected, rtol=1e-5, atol=1e-6)


def branching(inside):
    """A loop around a branch, each with tensors of its own; ``inside``: in the branches, or in the main graph."""
    names, arrays = ["V", "W"], [FIRST, SECOND]
    tensors = [numpy_helper.from_array(array, name) for name, array in zip(names, arrays, strict=True)]
    branches = {}
    for attribute, kind, tensor in zip(["then_branch", "else_branch"], ["Tanh", "Sigmoid"], tensors, strict=True):
        result, stored = f"{tensor.name}.y", [tensor] if inside else []
        nodes = [
            helper.make_node("MatMul", ["c", tensor.name], [f"{tensor.name}.m"]),
            helper.make_node(kind, [f"{tensor.name}.m"], [result]),
        ]
        branches[attribute] = helper.make_graph(nodes, attribute, [], [value(result, 4, 3)], stored)
    nodes = [
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("ReduceSum", ["c"], ["s"], keepdims=0),
        helper.make_node("Less", ["s", "zero"], ["b"]),
        helper.make_node("If", ["b"], ["r"], **branches),
        helper.make_node("MatMul", ["r", "U"], ["next"]),
    ]
    inputs = [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", 9, [])]
    outputs = [helper.make_tensor_value_info("on", 9, []), value("next", 4, 3)]
    own = [numpy_helper.from_array(OUTER, "U")]
    body = helper.make_graph(nodes, "body", [*inputs, value("c", 4, 3)], outputs, own)
    stored = [numpy_helper.from_array(np.array(3), "n"), numpy_helper.from_array(np.float32(0), "zero")]
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    graph = helper.make_graph(
        [loop], "g", [value("x", 4, 3)], [value("y", 4, 3)], [*stored, *([] if inside else tensors)]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_tensors_of_bodies_within_bodies_train_as_those_around_them(tmp_path):
    proto, models, losses = branching(True), [], []
    onnx.checker.check_model(proto, full_check=True)
    for inside in (True, False):
        onnx.save(branching(inside), tmp_path / "model.onnx")
        models.append(df.load(str(tmp_path / "model.onnx")))
        with df.Trainer(models[-1], "mse", "sgd:lr=0.1,momentum=0", devices=["cpu"]) as trainer:
            batches = [{"x": s * X, "labels": np.full((4, 3), 0.3, np.float32)} for s in (1, -1, 0.5)]
            losses.append([trainer.step(batch) for batch in batches])
    np.testing.assert_allclose(*losses, rtol=1e-6)
    found, expected = ({name: model.parameters[name].array for name in "UVW"} for model in models)
    for name, before in zip("UVW", (OUTER, FIRST, SECOND), strict=True):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)
        assert not np.array_equal(found[name], before)
    df.save(models[0], str(tmp_path / "saved.onnx"))
    onnx.checker.check_model(onnx.load(tmp_path / "saved.onnx"), full_check=True)
    peer = onnxruntime.InferenceSession(str(tmp_path / "saved.onnx"), providers=["CPUExecutionProvider"])
    for batch in batches:
        (wanted,) = peer.run(None, {"x": batch["x"]})
        np.testing.assert_allclose(models[0]({"x": batch["x"]})["y"], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("held", ["initializers", "constants"])
def test_a_tensor_may_be_called_as_what_another_body_computes(held, tmp_path):
    def body(name, array, stored, computed):
        nodes = [helper.make_node("MatMul", ["x", stored], [computed]), helper.make_node("Tanh", [computed], ["r"])]
        return helper.make_graph(nodes, name, [], [value("r", 4, 3)], [numpy_helper.from_array(array, stored)])

    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    branches = {"then_branch": body("t", FIRST, "V", "W"), "else_branch": body("e", SECOND, "W", "m")}
    node = helper.make_node("If", ["c"], ["y"], **branches)
    graph = helper.make_graph([node], "g", [condition, value("x", 4, 3)], [value("y", 4, 3)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    proto, file = proto if held == "initializers" else with_constants(proto), str(tmp_path / "model.onnx")
    onnx.save(proto, file)
    made = df.load(file)
    for name, array in {"V": FIRST, "W.2": SECOND}.items():
        np.testing.assert_array_equal(made.parameters[name].array, array)
        made.parameters[name].set(array + 1)
    df.save(made, file, overwrite=True)
    saved = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    for chosen, array in {True: FIRST, False: SECOND}.items():
        given = {"c": np.array(chosen), "x": X}
        for one in (made(given)["y"], df.load(file)(given)["y"], saved.run(None, given)[0]):
            np.testing.assert_allclose(one, np.tanh(X @ (array + 1)), rtol=1e-5, atol=1e-6)
