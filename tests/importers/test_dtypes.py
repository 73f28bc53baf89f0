"""Tensors of every dtype as inputs, stored tensors, constants and results, through operators that move elements."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow.plugin import DTYPES
from dataflow_onnx.file.to_onnx import IR_OF
from dataflow_onnx.file.value_types import CODE_OF
from dataflow_onnx.loading import load_bytes

TYPES = [d for d in DTYPES if d.kind != "s"]
OPSET = 25


def elements(dtype, count, seed=0):
    """Elements of any bits that aren't NaN."""
    random = np.random.default_rng(seed)
    if dtype.name == "bool":
        return random.random(count) < 0.5
    if dtype.bits < 8 or dtype.name.startswith("float8"):
        found = random.integers(0, 1 << dtype.bits, 4 * count).astype(np.uint8).view(dtype.numpy)
        return found[~np.isnan(found.astype(np.float32))][:count]
    if dtype.kind == "c":
        return (random.standard_normal(count) + 1j * random.standard_normal(count)).astype(dtype.numpy)
    return random.integers(0, 100, count).astype(dtype.numpy)


def stored(name, array, typed):
    tensor = numpy_helper.from_array(array, name)
    if not typed:
        return tensor
    dtype = df.plugin.dtype(array)
    made = helper.make_tensor(name, CODE_OF[dtype], array.shape, array.reshape(-1), raw=False)
    assert not made.HasField("raw_data")
    return made


def model(dtype, typed):
    code = CODE_OF[dtype]
    x = helper.make_tensor_value_info("x", code, [4, 3])
    weight, constant = elements(dtype, 15, 1).reshape(5, 3), elements(dtype, 3, 2)
    ints = {
        "shape": [3, -1],
        "starts": [0, 1],
        "ends": [1, 9],
        "axes": [0, 1],
        "at": [4, 0, 2],
        "at2": [1, 1, 3],
        "wide": [2, 1, 1],
    }
    branch = [
        helper.make_graph([helper.make_node("Identity", [name], [name + "_out"])], name,
                          [], [helper.make_tensor_value_info(name + "_out", code, None)])
        for name in ("gathered", "other")
    ]  # fmt: skip
    nodes = [
        helper.make_node("Constant", [], ["constant"], value=stored("c", constant, typed)),
        helper.make_node("Concat", ["x", "w"], ["joined"], axis=0),
        helper.make_node("Transpose", ["joined"], ["transposed"], perm=[1, 0]),
        helper.make_node("Slice", ["transposed", "starts", "ends", "axes"], ["sliced"]),
        helper.make_node("Gather", ["transposed", "at"], ["gathered"], axis=1),
        helper.make_node("Gather", ["transposed", "at2"], ["other"], axis=1),
        helper.make_node("Reshape", ["joined", "shape"], ["reshaped"]),
        helper.make_node("Where", ["c", "constant", "w"], ["chosen"]),
        helper.make_node("Unsqueeze", ["chosen", "at0"], ["unsqueezed"]),
        helper.make_node("Expand", ["unsqueezed", "wide"], ["expanded"]),
        helper.make_node("Flatten", ["expanded"], ["flat"]),
        helper.make_node("Shape", ["joined"], ["sizes"]),
        helper.make_node("Size", ["joined"], ["count"]),
        helper.make_node("If", ["b"], ["branched"], then_branch=branch[0], else_branch=branch[1]),
        helper.make_node("ConstantOfShape", ["sizes"], ["full"], value=stored("f", constant[:1], typed)),
    ]
    results = ["sliced", "gathered", "reshaped", "expanded", "flat", "full"]
    outputs = [helper.make_tensor_value_info(name, code, None) for name in (*results, "branched")]
    outputs += [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in ("sizes", "count")]
    initializers = [stored("w", weight, typed), numpy_helper.from_array(np.array([0]), "at0")]
    initializers += [numpy_helper.from_array(np.array(value), name) for name, value in ints.items()]
    flags = [helper.make_tensor_value_info("c", TensorProto.BOOL, [5, 3]),
             helper.make_tensor_value_info("b", TensorProto.BOOL, [])]  # fmt: skip
    graph = helper.make_graph(nodes, "g", [x, *flags], outputs, initializers)
    opsets = [helper.make_opsetid("", OPSET)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=IR_OF[OPSET])

    def expected(x, c, b):
        joined = np.concatenate([x, weight])
        chosen = np.where(c, constant, weight)
        return {
            "gathered": joined.T[:, [4, 0, 2]],
            "reshaped": joined.reshape(3, -1),
            "expanded": np.broadcast_to(chosen, (2, 5, 3)),
            "flat": np.broadcast_to(chosen, (2, 5, 3)).reshape(2, 15),
            "full": np.full(joined.shape, constant[0]),
            "branched": joined.T[:, [4, 0, 2] if b else [1, 1, 3]],
            "sliced": joined.T[:1, 1:],
            "sizes": np.array(joined.shape),
            "count": np.array(joined.size),
        }

    return made, expected


def assert_same(found, expected):
    assert found.dtype == expected.dtype and found.shape == expected.shape
    if expected.dtype.kind == "V":  # some types of ml_dtypes don't compare
        found, expected = (np.ascontiguousarray(a).view(np.uint8) for a in (found, expected))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("typed", [False, True], ids=["raw", "typed"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_elements_are_moved_and_chosen(dtype, typed):
    made, expected = model(dtype, typed)
    session = df.Session(load_bytes(made.SerializeToString()), devices=["cpu"])
    feeds = {"x": elements(dtype, 12, 3).reshape(4, 3), "c": np.arange(15).reshape(5, 3) % 2 == 0}
    for b in (np.array(True), np.array(False)):
        found = session.run({**feeds, "b": b})
        for name, wanted in expected(b=b, **feeds).items():
            assert_same(found[name], wanted)
    assert {node.device for node in session.placement({**feeds, "b": b})} == {"cpu"}


@pytest.mark.parametrize("dtype", [d for d in TYPES if d.is_float], ids=str)
def test_a_file_gets_changed_parameters(dtype, tmp_path):
    loaded = load_bytes(model(dtype, False)[0].SerializeToString())
    array = elements(dtype, 15, 4).reshape(5, 3)
    loaded.parameters["w"].set(array)
    df.save(loaded, str(tmp_path / "m.onnx"))
    assert_same(df.load(str(tmp_path / "m.onnx")).parameters["w"].array, array)
    (tensor,) = (t for t in onnx.load(tmp_path / "m.onnx").graph.initializer if t.name == "w")
    assert_same(numpy_helper.to_array(tensor), array)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_model_built_by_hand_is_written_in_an_opset_that_has_the_dtype(dtype, tmp_path):
    array = elements(dtype, 15, 4).reshape(5, 3)
    g = df.GraphBuilder("built")
    g.output("y", df.ops.transpose(g.input("x", dtype, (5, 3)), perm=(1, 0)))
    g.output("w", g.constant(array))
    df.save(df.Model(g.build()), str(tmp_path / "m.onnx"))
    onnx.checker.check_model(onnx.load(tmp_path / "m.onnx"), full_check=True)
    found = df.load(str(tmp_path / "m.onnx"))(array)
    assert_same(found["y"], array.T)
    assert_same(found["w"], array)
