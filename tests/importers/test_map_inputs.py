"""Maps as inputs: DictVectorizer and CastMap against ONNX Runtime, which takes one map a run."""

import numpy as np
import onnxruntime
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper

import dataflow as df
from dataflow.cli.main import commands
from dataflow_onnx.loading import load_bytes

FLOAT, DOUBLE, INT64, STRING = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.STRING
CITIES = {"string_vocabulary": ["city=Oslo", "age", "city=Rome"]}
ROWS = [{"age": 31, "city=Rome": 1.0}, {"city=Oslo": 1, "age": 7.5, "size": 3.0}, {"city=Bonn": 1.0}]


def of_maps(name, key, element):
    return helper.make_value_info(name, helper.make_map_type_proto(key, helper.make_tensor_type_proto(element, ())))


def ml(op, inputs, output, **attributes):
    return helper.make_node(op, inputs, [output], domain="ai.onnx.ml", **attributes)


def file(nodes, inputs, *outputs):
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs]
    graph = helper.make_graph(nodes, "g", inputs, results)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()


def reads(op, key, element, to, **attributes):
    return file([ml(op, ["x"], "z", **attributes)], [of_maps("x", key, element)], ("z", to))


def run(data, x):
    return df.Session(load_bytes(data)).run({"x": x})["z"]


def same(data, row):
    (expected,) = onnxruntime.InferenceSession(data).run(None, {"x": row})
    found = run(data, row)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    return found


def test_the_vocabulary_orders_the_elements_of_a_map():
    data = reads("DictVectorizer", STRING, FLOAT, FLOAT, **CITIES)
    assert same(data, ROWS[0]).tolist() == [[0, 31, 1]]
    assert same(data, ROWS[1]).tolist() == [[1, 7.5, 0]]  # a key that isn't in it is left out
    assert same(data, ROWS[2]).tolist() == [[0, 0, 0]]
    data = reads("DictVectorizer", INT64, FLOAT, FLOAT, int64_vocabulary=[5, -2])
    assert same(data, {-2: 1.5, 9: 4.0}).tolist() == [[0, 1.5]]


@pytest.mark.parametrize("element", [DOUBLE, INT64, STRING])
def test_elements_that_onnxruntime_takes_from_cplusplus_alone(element):
    given, missing = {DOUBLE: (0.1, 0.0), INT64: (1 << 53 | 1, 0), STRING: ("é", "")}[element]
    data = reads("DictVectorizer", INT64, element, element, int64_vocabulary=[3, 1])
    assert run(data, {1: given}).tolist() == [[missing, given]]


def test_numbers_of_numpy_are_keys_and_elements():
    data = reads("DictVectorizer", INT64, FLOAT, FLOAT, int64_vocabulary=[5, -2])
    assert same(data, {np.int64(5): np.float32(1.5), -2: np.int32(3)}).tolist() == [[1.5, 3.0]]
    assert run(data, {np.int32(5): np.float16(1.5), -2: True}).tolist() == [[1.5, 1.0]]


@pytest.mark.parametrize("to", ["TO_FLOAT", "TO_INT64"])
def test_cast_maps(to):
    kind = FLOAT if to == "TO_FLOAT" else INT64
    dense = reads("CastMap", INT64, FLOAT, kind, cast_to=to)
    assert same(dense, {7: 1.5, -3: -2.7, 2: 1e10}).shape == (1, 3)  # in the order of the keys
    sparse = reads("CastMap", INT64, FLOAT, kind, cast_to=to, map_form="SPARSE", max_map=4)
    for row in ({1: 1.5, 3: -2.7, 9: 1e10}, {0: 4.0}, {8: 1.0}):
        assert same(sparse, row).shape == (1, 4)
    assert run(sparse, {-1: 1.5, 2: 3.0}).tolist() == [[0, 0, 3, 0]]  # which onnxruntime refuses
    assert run(reads("CastMap", INT64, STRING, kind, cast_to=to), {9: "2", 3: "-4"}).tolist() == [[-4, 2]]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_row_per_map_of_a_list(count):
    session = df.Session(load_bytes(reads("DictVectorizer", STRING, FLOAT, FLOAT, **CITIES)))
    expected = np.array([[0, 31, 1], [1, 7.5, 0], [0, 0, 0]], np.float32)[:count]
    rows = ROWS[:count]
    for given in ({"x": rows}, {"x": tuple(rows)}, {"x": expected}, expected, rows):
        found = session.run(given)["z"]
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, expected)
    listed = df.Session(load_bytes(reads("CastMap", INT64, FLOAT, FLOAT)))
    assert listed.run({"x": [{2: 1.0, 1: 4.0}] * count})["z"].tolist() == [[4.0, 1.0]] * count


def test_nodes_that_read_different_keys_of_one_map():
    nodes = [
        ml("DictVectorizer", ["x"], "a", int64_vocabulary=[5, -2]),
        ml("DictVectorizer", ["x"], "b", int64_vocabulary=[2, 5]),
        ml("CastMap", ["x"], "c", map_form="SPARSE", max_map=3),
    ]
    data = file(nodes, [of_maps("x", INT64, FLOAT)], *((name, FLOAT) for name in "abc"))
    row = {5: 1.0, 2: 2.0, 0: 3.0, 7: 4.0}
    session = df.Session(load_bytes(data))
    for found, expected in zip(
        session.run({"x": row}).values(), onnxruntime.InferenceSession(data).run(None, {"x": row}), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    assert session.model.maps == {"x": (5, -2, 2, 0, 1)}
    only = df.Session(df.Model(session.model.graph))
    np.testing.assert_array_equal(only.run({"x": [row, {}]}, ["b"])["b"], [[2, 1], [0, 0]])


def test_a_map_beside_a_sequence():
    sequence = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, (None, 3)))
    zero = helper.make_node("Constant", [], ["zero"], value_int=0)
    nodes = [ml("DictVectorizer", ["x"], "v", **CITIES), zero, helper.make_node("SequenceAt", ["s", "zero"], ["first"])]
    nodes.append(helper.make_node("Add", ["v", "first"], ["z"]))
    data = file(nodes, [of_maps("x", STRING, FLOAT), helper.make_value_info("s", sequence)], ("z", FLOAT))
    session = df.Session(load_bytes(data))
    assert session.model.graph.has(df.ops.deferred) and session.model.maps["x"] == tuple(CITIES["string_vocabulary"])
    feeds = {"x": ROWS[0], "s": [np.ones((1, 3), np.float32)]}
    np.testing.assert_array_equal(session.run(feeds)["z"], onnxruntime.InferenceSession(data).run(None, feeds)[0])


# ---- a pipeline as skl2onnx writes it -------------------------------------------------------------------


def pipeline(path):
    labels = {"classlabels_strings": ["no", "yes"]}
    weights = {"coefficients": [1.0, -0.1, 2.0, -1.0, 0.1, -2.0], "intercepts": [0.5, -0.5]}
    nodes = [
        ml("DictVectorizer", ["x"], "features", **CITIES),
        helper.make_node("LinearClassifier", ["features"], ["label", "p"], domain="ai.onnx.ml", **labels, **weights),
        ml("ZipMap", ["p"], "z", **labels),
    ]
    kind = helper.make_map_type_proto(STRING, helper.make_tensor_type_proto(FLOAT, ()))
    results = [helper.make_value_info("z", helper.make_sequence_type_proto(kind))]
    results.append(helper.make_tensor_value_info("label", STRING, [None]))
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph(nodes, "g", [of_maps("x", STRING, FLOAT)], results)
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return str(path)


def test_a_saved_pipeline_still_takes_maps(tmp_path):
    path, again = pipeline(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")
    model = df.load(path)
    df.save(model, again)
    z, label = onnxruntime.InferenceSession(path).run(None, {"x": ROWS[1]})
    assert onnxruntime.InferenceSession(again).run(None, {"x": ROWS[1]})[0] == z
    for read in (model, df.load(again)):
        found = df.Session(read).run({"x": ROWS})
        assert found["label"][1] == label[0]
        assert found["z"][1] == pytest.approx(z[0])


def test_a_model_trained_on_the_matrix_takes_maps(tmp_path):
    nodes = [ml("DictVectorizer", ["x"], "v", **CITIES), helper.make_node("MatMul", ["v", "w"], ["z"])]
    path, again = tmp_path / "a.onnx", str(tmp_path / "b.onnx")
    proto = helper.make_graph(
        nodes,
        "g",
        [of_maps("x", STRING, FLOAT)],
        [helper.make_tensor_value_info("z", FLOAT, None)],
        [helper.make_tensor("w", FLOAT, (3, 1), [0.1, 0.2, 0.3])],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 1)]
    path.write_bytes(helper.make_model(proto, opset_imports=opsets, ir_version=8).SerializeToString())
    model = df.load(str(path))
    x = np.array([[0, 31, 1], [1, 7.5, 0]], np.float32)
    trainer = df.Trainer(model, loss=df.losses.MSE(), optimizer=df.optim.SGD(1e-3))
    trainer.step({"x": x, "labels": np.ones((2, 1), np.float32)})
    df.save(model, again)
    found = df.Session(model).run({"x": ROWS[0]})["z"]
    assert abs(found - 6.5).max() > 0.1  # what the weights of the file give
    np.testing.assert_allclose(onnxruntime.InferenceSession(again).run(None, {"x": ROWS[0]})[0], found, rtol=1e-6)


def test_the_command_line_takes_the_matrix(tmp_path):
    path, x, z = pipeline(tmp_path / "a.onnx"), tmp_path / "x.npy", tmp_path / "z.npz"
    np.save(x, np.array([[0, 31, 1]], np.float32))
    assert "  x: float32[x_rows, 3], as a list of maps\n" in CliRunner().invoke(commands, ["inspect", path]).output
    done = CliRunner().invoke(commands, ["run", path, "--input", str(x), "--output", str(z)])
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(np.load(z)["z"][0], [*df.Session(df.load(path)).run({"x": ROWS[0]})["z"][0].values()])


# ---- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "nodes", "key", "element"),
    [
        ("'x' of the main graph is a map from int32 to", [ml("CastMap", ["x"], "z")], TensorProto.INT32, FLOAT),
        ("a map from int64 to bool", [ml("CastMap", ["x"], "z")], INT64, TensorProto.BOOL),
        ("keys of string; .*CastMap 'z' reads those of int64", [ml("CastMap", ["x"], "z")], STRING, FLOAT),
        ("keys of int64; .* has no int64_vocabulary", [ml("DictVectorizer", ["x"], "z", **CITIES)], INT64, FLOAT),
        ("a map that Identity 'z' reads; expected Dict", [helper.make_node("Identity", ["x"], ["z"])], INT64, FLOAT),
        ("a map that no node reads", [helper.make_node("Constant", [], ["z"], value_float=1.0)], INT64, FLOAT),
        ("max_map is 0", [ml("CastMap", ["x"], "z", map_form="SPARSE", max_map=0)], INT64, FLOAT),
        ("max_map is 9000000", [ml("CastMap", ["x"], "z", map_form="SPARSE", max_map=9000000)], INT64, FLOAT),
        ("makes string of float32", [ml("CastMap", ["x"], "z", cast_to="TO_STRING")], INT64, FLOAT),
        ("float32 of string, SPARSE", [ml("CastMap", ["x"], "z", map_form="SPARSE")], INT64, STRING),
        ("'cast_to' is 'TO_BOOL'", [ml("CastMap", ["x"], "z", cast_to="TO_BOOL")], INT64, FLOAT),
        (
            "CastMap 'z' reads as a list of any length, and others by its keys",
            [ml("DictVectorizer", ["x"], "v", int64_vocabulary=[1]), ml("CastMap", ["x"], "z")],
            INT64,
            FLOAT,
        ),
    ],
)
def test_files_that_are_refused(match, nodes, key, element):
    with pytest.raises(df.ModelError, match=match):
        load_bytes(file(nodes, [of_maps("x", key, element)], ("z", FLOAT)))


def test_only_inputs_are_maps():
    x = helper.make_tensor_value_info("x", FLOAT, [None, 3])
    with pytest.raises(df.ModelError, match=r"operand 'x' is float32.*expected a map"):
        load_bytes(file([ml("DictVectorizer", ["x"], "z", **CITIES)], [x], ("z", FLOAT)))


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({1: 2.0}, "the map has the key 1; expected a text"),
        ({"age": "31"}, "the map has '31' under 'age'; expected a number; a category is a key of its own, 'age=31'"),
        ({"age": None}, "the map has None under 'age'; expected a number"),
        ([ROWS[0], 3], "'x': 3 stands at 1 among maps"),
        (["age"], "expected float32"),
        (np.ones((2, 4), np.float32), "axis 1 must be 3"),
    ],
)
def test_arguments_that_are_refused(given, match):
    session = df.Session(load_bytes(reads("DictVectorizer", STRING, FLOAT, FLOAT, **CITIES)))
    with pytest.raises(df.InputError, match=match):
        session.run({"x": given})


def test_numbers_and_lengths_that_are_refused():
    integers = df.Session(load_bytes(reads("DictVectorizer", INT64, INT64, INT64, int64_vocabulary=[1, 2])))
    for given, match in (({1: 0.5}, "expected a whole number"), ({2: 1 << 70}, "a number doesn't fit int64")):
        with pytest.raises(df.InputError, match=match):
            integers.run({"x": given})
    with pytest.raises(df.InputError, match="the map has the key 'a'; expected a whole number"):
        integers.run({"x": {"a": 1}})
    with pytest.raises(df.InputError, match="missing inputs: x"):
        integers.run({1: 2})
    listed = df.Session(load_bytes(reads("CastMap", INT64, FLOAT, FLOAT)))
    with pytest.raises(df.InputError, match="give maps of one length"):
        listed.run({"x": [{1: 1.0}, {1: 1.0, 2: 2.0}]})
