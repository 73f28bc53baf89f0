"""Files made to harm: small ones that stand for much, data that lies elsewhere, names and numbers that nobody takes."""

import itertools
import os
import types

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import dataflow as df
from dataflow_onnx.converters import Collector, Table
from dataflow_onnx.file import inferred
from dataflow_onnx.file.inferred import inferred_types
from dataflow_onnx.loading import load_bytes
from tests.support import external_tensor, ints, onnx_model

F = TensorProto.FLOAT
N = helper.make_node


def value(name, shape=("n", 4), kind=F):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs=(("x", ("n", 4)),), stored=(), functions=(), outputs=("y",)):
    return onnx_model(nodes, [(n, F, s) for n, s in inputs], outputs, stored, functions=functions, domains=["own"])


def refused(proto, *texts, **options):
    data = proto if isinstance(proto, bytes) else proto.SerializeToString()
    with pytest.raises(df.ModelError) as caught:
        load_bytes(data, **options)
    for text in ("model: ", *texts):
        assert text in str(caught.value), caught.value


# ---- functions ----------------------------------------------------------------------------------------


def function(name, nodes):
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["c"], nodes, opsets)


def chain(count, calls):
    """Functions that call the next one, so many times."""
    names = ["a", *(f"b{i}" for i in range(calls - 1)), "c"]
    made = [
        function(f"f{i}", [N(f"f{i + 1}", [a], [b], domain="own") for a, b in itertools.pairwise(names)])
        for i in range(count)
    ]
    made.append(function(f"f{count}", [N("Relu", ["a"], ["c"])]))
    return model([N("f0", ["x"], ["y"], domain="own")], functions=made)


def test_functions_that_double_each_other_are_counted_not_replaced():
    refused(chain(40, 2), f"{(1 << 42) - 1 - (1 << 40)} nodes", "at most 200000")
    x = np.array([[-1, 2, -3, 4]], np.float32)
    assert (load_bytes(chain(6, 2).SerializeToString())(x)["y"] == np.maximum(x, 0)).all()


def test_functions_that_repeat_large_data_are_counted():
    data = numpy_helper.from_array(np.ones(1 << 14, np.float32))
    heavy = [N("Constant", [], ["w"], value=data), N("ReduceMax", ["w"], ["m"]), N("Add", ["a", "m"], ["c"])]
    proto = chain(15, 2)
    proto.functions[-1].CopyFrom(function("f15", heavy))
    assert proto.ByteSize() < 1 << 17
    refused(proto, "bytes", f"at most 200000 nodes, {(1 << 31) - 1} bytes")


def test_functions_nested_too_deeply_or_within_themselves():
    refused(chain(150, 1), "100 deep")
    inner = helper.make_graph([N("Layer", ["a"], ["q"], domain="own")], "b", [], [value("q", None)])
    decide = [N("ReduceMax", ["a"], ["m"], keepdims=0), N("Cast", ["m"], ["k"], to=TensorProto.BOOL)]
    own = function("Layer", [*decide, N("If", ["k"], ["c"], then_branch=inner, else_branch=inner)])
    refused(model([N("Layer", ["x"], ["y"], domain="own")], functions=[own]), "'Layer' calls itself")


# ---- names, axes and lists ----------------------------------------------------------------------------


def test_names_that_are_no_text_are_refused_wherever_they_stand():
    proto = model([N("Softmax", ["x"], ["y"], name="op", axis=1)], stored=[ints("used", 1)])
    proto.opset_import.add(domain="domain", version=1)
    proto.graph.name = "graph"
    data = proto.SerializeToString()
    for field in (b"Softmax", b"op", b"axis", b"domain", b"graph", b"used"):
        assert data.count(field) == 1
        refused(data.replace(field, b"\xff" * len(field)), "no text")
    other = model([N("Softmax", ["in1"], ["out1"], domain="own")], inputs=[("in1", ("n", 4))], outputs=["out1"])
    for field in (b"in1", b"out1", b"own"):
        refused(other.SerializeToString().replace(field, b"\xff" * len(field)), "no text")


def test_an_output_that_is_listed_twice_is_one_result():
    """ONNX's checker takes such files, and hummingbird makes them."""
    data = model([N("Neg", ["x"], ["y"])], outputs=["y", "y"]).SerializeToString()
    found = df.Session(load_bytes(data), devices=["cpu"]).run(np.ones((1, 4), np.float32))
    assert {name: array.tolist() for name, array in found.items()} == {"y": [[-1] * 4]}


def test_what_has_no_name_or_a_name_twice():
    refused(model([N("Relu", ["x"], [""])], outputs=[""]), "output 0 of the main graph has no name")
    refused(model([N("Relu", ["x"], ["y"])], inputs=[("x", (2,)), ("", (2,))]), "input 1", "no name")
    refused(model([N("Identity", ["x"], []), N("Relu", ["x"], ["y"])]), "node 0 (Identity", "no outputs")
    twice = model([N("Softmax", ["x"], ["y"], axis=1)])
    twice.graph.node[0].attribute.append(helper.make_attribute("axis", 0))
    refused(twice, "two attributes called 'axis'")
    loose = model([N("Softmax", ["x"], ["y"])])
    loose.graph.node[0].attribute.add(name="axis", type=2, ref_attr_name="axis")
    refused(loose, "attribute 'axis'", "function")
    body = helper.make_graph([N("Relu", ["x"], ["q"]), N("Neg", ["x"], ["q"])], "b", [], [value("q", None)])
    refused(model([N("If", ["k"], ["y"], then_branch=body, else_branch=body)], [("k", ())]), "defines 'q'")


def test_more_axes_than_arrays_have():
    many = numpy_helper.from_array(np.ones(1, np.float32), "w")
    many.dims[:] = [1] * 65
    refused(model([N("Relu", ["x"], ["y"])], inputs=[("x", [1] * 65)]), "input 'x'", "65 axes; at most 64")
    refused(model([N("Add", ["x", "w"], ["y"])], stored=[many]), "initializer 'w'", "65 axes")
    refused(model([N("Constant", [], ["y"], value=many)]), "node 0 (Constant", "65 axes")
    for op in ("Reshape", "Expand"):
        proto = model([N(op, ["x", "s"], ["y"], name="it")], inputs=[("x", [1])], stored=[ints("s", *[1] * 65)])
        refused(proto, f"{op} 'it', opset 18", "65 axes")
    proto = model([N("ConstantOfShape", ["s"], ["y"], name="it")], stored=[ints("s", *[1] * 65)])
    refused(proto, "ConstantOfShape 'it', opset 18", "65")


# ---- data in other files ------------------------------------------------------------------------------


def external(location, offset=0, length=48, names=("w",)):
    products = [N("MatMul", ["x", name], [f"y{name}"]) for name in names]
    total = N("Sum", [f"y{name}" for name in names], ["y"])
    return model([*products, total], stored=[external_tensor(name, (4, 3), location, offset, length) for name in names])


def refused_beside(folder, proto, text):
    path = folder / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(df.ModelError, match=rf"model\.onnx: initializer 'w'.*{text}"):
        df.load(str(path))


def test_external_data_in_what_is_no_file(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "data.bin").write_bytes(bytes(48))
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder" / "up").symlink_to("..")
    (tmp_path / "far").symlink_to("/")
    os.mkfifo(tmp_path / "pipe")
    refused_beside(tmp_path, external("folder"), "can't be read: Is a directory")
    refused_beside(tmp_path, external("pipe"), "no file")
    refused_beside(tmp_path, external("circle"), "can't be read: Too many levels of symbolic links")
    refused_beside(tmp_path, external("missing"), "can't be read: No such file")
    refused_beside(tmp_path, external("a" * 300), "can't be read: File name too long")
    refused_beside(tmp_path, external("a/" * 3000), "can't be read: No such file")
    refused_beside(tmp_path, external("data.bin/in/it"), "can't be read: Not a directory")
    refused_beside(tmp_path, external("zero"), "leads out of the model's folder")
    refused_beside(tmp_path, external("far/etc/hostname"), "leads out of the model's folder")
    refused_beside(tmp_path, external("."), "can't be read: Is a directory")
    refused_beside(tmp_path, external("folder/up/data.bin", length=1 << 62), "needs 48 bytes")
    refused_beside(tmp_path, external("data.bin", offset=(1 << 63) - 1), "which has 48")
    refused_beside(tmp_path, external("data.bin", offset="9" * 5000), "no number")
    text = external("data.bin")
    raw = text.SerializeToString().replace(b"data.bin", b"\xffata.bin")
    (tmp_path / "model.onnx").write_bytes(raw)
    with pytest.raises(df.ModelError, match="no name of a file"):
        df.load(str(tmp_path / "model.onnx"))


def test_tensors_may_share_one_range_of_a_file_but_not_overlap(tmp_path):
    (tmp_path / "data.bin").write_bytes(np.ones(12, np.float32).tobytes())
    path = tmp_path / "model.onnx"
    path.write_bytes(external("data.bin", names=("w", "v")).SerializeToString())
    assert (df.load(str(path))(np.ones((1, 4), np.float32))["y"] == 8).all()
    (tmp_path / "data.bin").write_bytes(bytes(60))
    proto = external("data.bin", names=("v", "w"))
    proto.graph.initializer[1].external_data[1].value = "4"
    refused_beside(tmp_path, proto, "overlap")


# ---- what is foreign ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raised", [AttributeError("a"), RecursionError(), AssertionError(), OSError("b"), KeyError("c")]
)
def test_what_is_foreign_becomes_our_own_and_names_the_node(raised):
    operator = Collector()

    @operator("Relu")
    def broken(c, x):
        raise raised

    where = "nested too deeply" if isinstance(raised, RecursionError) else "Relu 'it', opset 18"
    refused(model([N("Relu", ["x"], ["y"], name="it")]), where, table=Table(operator.converters))


def test_types_nested_ten_thousand_deep():
    def field(number, data):
        length = bytearray()
        count = len(data)
        while count >= 128:
            length.append(count & 127 | 128)
            count >>= 7
        return bytes([number << 3 | 2, *length, count]) + data

    proto = model([N("Relu", ["x"], ["y"])])
    kind = b""
    for _ in range(10_000):
        kind = field(4, field(1, kind))  # a sequence of sequences
    graph = proto.graph.SerializeToString() + field(11, field(1, b"z") + field(2, kind))
    proto.ClearField("graph")
    refused(proto.SerializeToString() + field(7, graph), "can't be decoded")


# ---- loops within loops -------------------------------------------------------------------------------


def loops(depth, stored=()):
    """Loops in each other, each with a fixed number of iterations and a condition that is computed."""
    body = None
    for level in range(depth):
        inner = N("Relu", [f"v{level}"], [f"w{level}"])
        if body is not None:
            inner = N("Loop", ["limit", "", f"v{level}"], [f"w{level}"], body=body)
        inputs = [value(f"i{level}", (), TensorProto.INT64), value(f"c{level}", (), TensorProto.BOOL)]
        outputs = [value(f"d{level}", (), TensorProto.BOOL), value(f"w{level}")]
        nodes = [inner, N("ReduceMax", [f"w{level}"], [f"m{level}"], keepdims=0)]
        nodes.append(N("Cast", [f"m{level}"], [f"d{level}"], to=TensorProto.BOOL))
        body = helper.make_graph(
            nodes, "body", [*inputs, value(f"v{level}")], outputs, list(stored) if not level else []
        )
    return model([N("Loop", ["limit", "", "x"], ["y"], body=body)], stored=[helper.make_tensor("limit", 7, (), [2])])


def test_loops_within_loops_are_converted_once(monkeypatch):
    from dataflow_onnx.importer import Importer

    count = 0
    convert = Importer.convert

    def counted(self, node):
        nonlocal count
        count += 1
        convert(self, node)

    monkeypatch.setattr(Importer, "convert", counted)
    load_bytes(loops(20).SerializeToString())
    assert count < 200  # not the 2**20 of two conversions at each level


def test_a_stored_tensor_of_the_body_of_a_loop_that_may_end_early():
    weight = numpy_helper.from_array(np.full((4, 4), 0.5, np.float32), "weight")
    proto = loops(1, [weight])
    proto.graph.node[0].attribute[0].g.node[0].CopyFrom(N("MatMul", ["v0", "weight"], ["w0"]))
    x = np.array([[1, 2, 3, 4]], np.float32)
    np.testing.assert_allclose(load_bytes(proto.SerializeToString())(x)["y"], np.full((1, 4), 10.0))


# ---- named sizes that grow ----------------------------------------------------------------------------


def thirds(cur, made, axis, step="three"):
    return N("Slice", [cur, "zero", "far", f"axis{axis}", step], [made])


STORED = [ints("zero", 0), ints("far", 1 << 62), ints("three", 3), ints("five", 5)]
STORED += [ints(f"axis{axis}", axis) for axis in range(24)]


def test_a_product_of_sums_of_named_sizes():
    """2**24 terms in 3 KB: no expression for all sizes, but a number for those of an input."""
    names, nodes, cur = [f"n{axis}" for axis in range(24)], [], "x"
    for axis in range(24):
        nodes += [thirds(cur, f"part{axis}", axis), N("Concat", [cur, f"part{axis}"], [f"h{axis}"], axis=axis)]
        cur = f"h{axis}"
    found = load_bytes(
        model([*nodes, N("Flatten", [cur], ["y"], axis=0)], inputs=[("x", names)], stored=STORED).SerializeToString()
    )
    assert df.Session(found, devices=["cpu"]).run(np.ones((0,) + (1,) * 23, np.float32))["y"].shape == (1, 0)


def test_a_size_that_doubles_with_each_node():
    nodes, cur = [], "x"
    for i in range(40):
        nodes += [thirds(cur, f"a{i}", 0), thirds(cur, f"b{i}", 0, "five")]
        nodes.append(N("Concat", [f"a{i}", f"b{i}"], [f"h{i}"], axis=0))
        cur = f"h{i}"
    found = load_bytes(model([*nodes, N("Relu", [cur], ["y"])], stored=STORED).SerializeToString())
    x = np.ones((5, 4), np.float32)
    results = [df.Session(found, devices=[device]).run({"x": x})["y"] for device in ("cpu", "numpy")]
    np.testing.assert_array_equal(*results)


def test_a_slice_of_a_slice_of_a_slice():
    """Steps that together exceed what a stride can be, and one that does alone."""
    nodes = [thirds("x" if i == 0 else f"h{i - 1}", f"h{i}", 0) for i in range(100)]
    last = [N("Slice", ["h99", "zero", "far", "axis1", "far"], ["h"]), N("Neg", ["h"], ["y"])]
    found = load_bytes(model([*nodes, *last], stored=STORED).SerializeToString())
    x = np.arange(20, dtype=np.float32).reshape(5, 4) + 1
    for device in ("cpu", "numpy"):
        assert df.Session(found, devices=[device]).run({"x": x})["y"].tolist() == [[-1.0]]


def test_an_axis_that_is_split_into_more_tensors_than_a_graph_may_have():
    rows = [("x", (2**31, 4))]
    refused(model([N("SplitToSequence", ["x"], ["y"])], rows), "SplitToSequence", "2147483648 tensors", "200000")
    sizes = [numpy_helper.from_array(np.array(2, np.int64), "two")]
    split = N("SplitToSequence", ["x", "two"], ["y"])
    refused(model([split], rows, sizes), "SplitToSequence", "1073741824 tensors")


@pytest.mark.parametrize(("size", "shape"), [(-1, None), (3, (20, 3, 5))])
def test_a_file_for_which_onnx_ends_its_process(size, shape):
    """Types of outputs that aren't declared are inferred by onnx, whose assertions are no exceptions."""
    stored = [numpy_helper.from_array(np.array(a, np.int64), n) for n, a in (("s", [0]), ("e", [10]), ("a", [1]))]
    y = helper.make_empty_tensor_value_info("y")
    graph = helper.make_graph([N("Slice", ["x", *"sea"], ["y"])], "g", [value("x", (20, size, 5))], [y], stored)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    record = types.SimpleNamespace(content=types.SimpleNamespace(small=file.SerializeToString()))
    found = inferred_types(record).get("y")
    assert (found and found.shape) == shape


def test_an_inference_that_never_ends_is_ended(monkeypatch):
    """onnx goes round in circles on some einsum equations; what it may compute is limited, not how long it waits."""
    monkeypatch.setattr(inferred, "_SECONDS", 600.0)
    monkeypatch.setattr(inferred, "_CPU_SECONDS", 2)
    y = helper.make_empty_tensor_value_info("y")
    node = N("Einsum", ["x"], ["y"], equation=b"\xe9j-\x00i")
    graph = helper.make_graph([node], "g", [value("x", (4, 0), TensorProto.INT64)], [y])
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=7)
    record = types.SimpleNamespace(content=types.SimpleNamespace(small=file.SerializeToString()))
    assert inferred_types(record) == {}


def test_types_of_all_outputs_are_inferred_at_once(monkeypatch):
    """A process infers them, which takes a third of a second to start: one, however many outputs there are."""
    started = []
    run = inferred.subprocess.run
    monkeypatch.setattr(inferred.subprocess, "run", lambda *a, **options: started.append(a) or run(*a, **options))
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("y", "z", "found")]
    nodes = [N("Trilu", ["x", "k"], ["y"]), N("Neg", ["y"], ["z"]), N("Shape", ["z"], ["found"])]
    graph = helper.make_graph(nodes, "g", [value("x", (4, 5)), value("k", (), TensorProto.INT64)], outputs)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    made = load_bytes(file.SerializeToString()).graph
    assert [v.type.rank for v in made.outputs.values()] == [2, 2, 1]
    assert len(started) == 1
