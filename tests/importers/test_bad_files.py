"""Files that are damaged, hostile or unsupported: each gets one clear error, and nothing crashes."""

import os
import warnings

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

import dataflow as df
from tests.support import external_tensor, ints, onnx_model

F = TensorProto.FLOAT


def model(nodes, inputs=("x",), outputs=("y",), stored=(), opset=17, domains=(), shape=("n", 4)):
    return onnx_model(
        nodes, [(n, F, shape) for n in inputs], outputs, stored, opset=opset, domains=domains, ir_version=8
    )


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, name=f"my{op}", **attributes)


def good():
    w = numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    return model([node("MatMul", ["x", "w"], ["y"])], stored=[w])


def refused(path, data, *texts):
    path.write_bytes(data if isinstance(data, bytes) else data.SerializeToString())
    with pytest.raises(df.ModelError) as caught:
        df.load(str(path))
    for text in (path.name, *texts):
        assert text in str(caught.value), caught.value


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def test_files_that_are_no_models(path):
    refused(path, b"", "empty")
    refused(path, b"This is not a model. " * 50, "not an ONNX model")
    refused(path, os.urandom(4096), "not an ONNX model")
    refused(path, b"\x08\x08", "no graph")


def test_a_size_whose_name_is_no_text(path):
    data = model([node("Relu", ["x"], ["y"])], shape=("name", 4)).SerializeToString()
    assert data.count(b"name") == 1
    refused(path, data.replace(b"name", b"n\xffme"), "input 'x'", "axis 0", "no text")


def test_a_shape_of_billions_of_elements_is_refused_before_each_gets_a_name(path):
    shape = helper.make_tensor_value_info("x", TensorProto.INT64, [2**31 - 1])
    result = helper.make_tensor_value_info("y", F, None)
    graph = helper.make_graph([node("ConstantOfShape", ["x"], ["y"])], "bad", [shape], [result])
    refused(
        path, helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "myConstantOfShape", "elements"
    )


def test_a_file_that_does_not_exist(path):
    with pytest.raises(df.ModelError, match=r"model\.onnx: cannot be read: No such file"):
        df.load(str(path))


def test_every_truncation_is_refused_or_reads_the_same(path):
    data = good().SerializeToString()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(df.DataflowError):
            df.load(str(path))


def test_random_damage_never_crashes(path):
    data = bytearray(good().SerializeToString())
    random = np.random.default_rng(0)
    for _ in range(400):
        wrong = bytearray(data)
        for _ in range(int(random.integers(1, 6))):
            wrong[int(random.integers(len(wrong)))] = int(random.integers(256))
        path.write_bytes(bytes(wrong))
        try:
            loaded = df.load(str(path))
            df.Session(loaded, devices=["cpu"]).run(np.ones((2, 4), np.float32))
        except df.DataflowError:
            pass


def test_unknown_operators_are_listed_at_once(path):
    nodes = [node("Frobnicate", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Wobble", ["b"], ["y"])]
    refused(path, model(nodes), "ai.onnx.Frobnicate", "ai.onnx.Wobble", "opset 17", "myFrobnicate")
    search = helper.make_node("BeamSearch", ["x", "x"], ["y"], domain="com.microsoft", name="f")
    texts = "com.microsoft.BeamSearch", "where it made them", "plain model", "a model that was written with them"
    refused(path, model([search], domains=["com.microsoft"]), *texts)
    block = helper.make_node("Blocked", ["x"], ["y"], domain="com.microsoft.nchwc", name="f")
    refused(path, model([block], domains=["com.microsoft.nchwc"]), "Blocked", "made the file for itself", "plain model")
    strange = helper.make_node("Mine", ["x"], ["y"], domain="acme", name="f")
    refused(path, model([strange]), "acme.Mine", "no opset")
    partial = [node("Relu", ["x"], ["good"]), node("Wobble", ["good"], ["y"])]
    refused(path, model(partial), "outputs=", "'good'")


def test_a_subgraph_of_a_model_can_be_imported(path):
    nodes = [node("Relu", ["x"], ["good"]), node("Wobble", ["good"], ["y"])]
    path.write_bytes(model(nodes).SerializeToString())
    found = df.load(str(path), outputs=["good"])(np.full((2, 4), -1, np.float32))
    assert (found["good"] == 0).all()


def test_an_opset_that_does_not_exist_is_refused(path):
    refused(path, model([node("Relu", ["x"], ["y"])], opset=0), "opset 0", "1 or later")


def test_graphs_out_of_order(path):
    cycle = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"]), node("Neg", ["b"], ["y"])]
    refused(path, model(cycle), "'b' before it is computed", "cycle")
    refused(path, model([node("Relu", ["nobody"], ["y"])]), "'nobody', which nothing defines")
    twice = [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])]
    refused(path, model(twice), "'y', which is defined already")
    refused(path, model([node("Relu", ["x"], ["a"])]), "output 'y' is computed by no node")


def test_nodes_that_read_the_results_of_later_ones_are_sorted(path):
    nodes = [node("Neg", ["b"], ["y"]), node("Add", ["a", "x"], ["b"]), node("Relu", ["x"], ["a"])]
    path.write_bytes(model(nodes).SerializeToString())
    x = np.array([[-1, 2, 0, 3], [4, -5, 6, -7]], np.float32)
    np.testing.assert_array_equal(df.load(str(path))(x)["y"], -(np.maximum(x, 0) + x))
    df.save(df.load(str(path)), str(path.with_name("copy.onnx")))
    assert path.with_name("copy.onnx").read_bytes() == path.read_bytes()


def test_shapes_that_do_not_fit_name_the_node(path):
    w = numpy_helper.from_array(np.ones((5, 3), np.float32), "w")
    refused(path, model([node("MatMul", ["x", "w"], ["y"])], stored=[w]), "MatMul 'myMatMul', opset 17", "inner sizes")
    refused(path, model([node("Relu", ["x"], ["y"], alpha=2.0)]), "myRelu", "alpha")
    refused(path, model([node("Add", ["x"], ["y"])]), "myAdd", "inputs or attributes")


BIG = 1 << 31
# One node each, its stored integers, and what the message must say besides the node and its opset.
WRONG = [
    (node("Squeeze", ["x", "a"], ["y"]), [ints("a", 5)], "axis 5 of a tensor of rank 2"),
    (node("Unsqueeze", ["x", "a"], ["y"]), [ints("a", 0, 0)], "an axis twice"),
    (node("Slice", ["x", "a", "b", "c"], ["y"]), [ints("a", 0), ints("b", 1), ints("c", 7)], "axis 7"),
    (node("Slice", ["x", "a", "b"], ["y"]), [ints("a", 0, 0, 0), ints("b", 1, 1, 1)], "axis 2"),
    (node("Pad", ["x", "a"], ["y"]), [ints("a", 1, 1)], "expected 4"),
    (node("Tile", ["x", "a"], ["y"]), [ints("a", -1, 1)], "repeats"),
    (node("Split", ["x"], ["y"], num_outputs=BIG, axis=1), [], "num_outputs is 2147483648"),
    (node("Split", ["x", "a"], ["y"], axis=1), [ints("a", 1, 3)], "2 sizes for 1 outputs"),
    (node("Softmax", ["x"], ["y"], axis=9), [], "axis 9"),
    (node("Flatten", ["x"], ["y"], axis=-7), [], "axis -7"),
    (node("DepthToSpace", ["x"], ["y"], blocksize=2), [], "inputs or attributes"),
    (node("Reshape", ["x", "a"], ["y"]), [ints("a", -1, -1)], "more than one size open"),
    (node("Reshape", ["x", "a"], ["y"]), [ints("a", 2, -7)], "negative"),
    (node("Transpose", ["x"], ["y"], perm=[0, 0]), [], "perm"),
    (node("Gather", ["", "a"], ["y"]), [ints("a", 0)], "input 0 is left out"),
    (node("Sum", ["x", ""], ["y"]), [], "is left out"),
    (node("Concat", ["x"], ["y"]), [], "axis"),
    (node("LRN", ["x"], ["y"], size=0), [], "size"),
]


@pytest.mark.parametrize(("wrong", "stored", "text"), WRONG, ids=lambda v: getattr(v, "op_type", None))
def test_a_node_that_can_not_be_names_itself_and_the_reason(path, wrong, stored, text):
    refused(path, model([wrong], stored=stored, opset=18), f"{wrong.op_type} 'my{wrong.op_type}', opset 18", text)


def test_sizes_that_grow_without_end(path):
    squares = [node("Mul", [f"a{i}", f"a{i}"], [f"a{i + 1}"]) for i in range(60)]
    last = node("Expand", ["x", "a60"], ["y"])
    start = [helper.make_node("Shape", ["x"], ["s"]), node("Gather", ["s", "i"], ["n"])]
    start.append(helper.make_node("Add", ["n", "i"], ["a0"]))
    path.write_bytes(model([*start, *squares, last], stored=[ints("i", 0)], shape=("n", 4)).SerializeToString())
    session = df.Session(
        df.load(str(path)), devices=["cpu"]
    )  # its nodes compute the size, and wrap around as int64 does
    assert session.run(np.ones((1, 4), np.float32))["y"].shape == (1, 4)
    with pytest.raises((df.InputError, df.OutOfMemoryError)):
        session.run(np.ones((3, 4), np.float32))


def test_a_repetition_that_no_memory_holds_is_loaded_as_an_attribute(path):
    path.write_bytes(model([node("Tile", ["x", "a"], ["y"])], stored=[ints("a", BIG, BIG)]).SerializeToString())
    loaded = df.load(str(path))
    with pytest.raises((df.OutOfMemoryError, df.InputError)):
        df.Session(loaded, devices=["cpu"]).run(np.ones((1, 4), np.float32))


def test_damaged_node_tests_never_crash(path):
    """ONNX's node tests with a wrong attribute, operand or size: refused or imported, nothing else."""
    random = np.random.default_rng(0)
    numbers = [-(1 << 63), -100, -2, -1, 0, 1, 2, 3, 7, BIG, (1 << 63) - 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    refusals = 0
    for case in cases:
        proto = onnx.ModelProto()
        proto.CopyFrom(case.model)
        (target,) = random.choice(proto.graph.node, 1) if len(proto.graph.node) else (None,)
        if target is None:
            continue
        number = numbers[int(random.integers(len(numbers)))]
        for attribute in target.attribute:
            if attribute.type == onnx.AttributeProto.INT:
                attribute.i = number
            elif attribute.type == onnx.AttributeProto.INTS:
                attribute.ints.append(number)
        if len(target.input) and random.random() < 0.3:
            target.input[int(random.integers(len(target.input)))] = ""
        for value, given in zip(proto.graph.input, case.data_sets[0][0] if case.data_sets else (), strict=False):
            if isinstance(given, np.ndarray) and given.dtype == np.int64 and 0 < given.size < 20:
                wrong = given.copy()
                wrong.reshape(-1)[int(random.integers(given.size))] = number
                proto.graph.initializer.append(numpy_helper.from_array(wrong, value.name))
        path.write_bytes(proto.SerializeToString())
        try:
            df.load(str(path))
        except df.DataflowError:
            refusals += 1
    assert 500 < refusals < len(cases)


def test_stored_tensors_of_wrong_size(path):
    proto = good()
    proto.graph.initializer[0].raw_data = proto.graph.initializer[0].raw_data[:-4]
    refused(path, proto, "initializer 'w'", "48 bytes", "44")
    proto = good()
    proto.graph.initializer[0].dims[:] = [1 << 40, 1 << 40]
    refused(path, proto, "initializer 'w'", "overflows")
    proto = good()
    proto.graph.initializer[0].dims[:] = [-4, 3]
    refused(path, proto, "initializer 'w'", "negative")
    proto = good()
    proto.graph.initializer[0].data_type = 99
    refused(path, proto, "initializer 'w'", "element type 99")
    huge = numpy_helper.from_array(np.array([1 << 40, 1 << 30], np.int64), "s")
    refused(path, model([node("ConstantOfShape", ["s"], ["y"])], stored=[huge]), "ConstantOfShape")
    typed = good()
    typed.graph.initializer[0].ClearField("raw_data")
    typed.graph.initializer[0].float_data.extend([1.0] * 5)
    refused(path, typed, "initializer 'w'")


def external(*entries, **named):
    tensor = external_tensor("w", (4, 3), *entries, **named)
    return model([node("MatMul", ["x", "w"], ["y"])], stored=[tensor])


def test_external_data_stays_in_the_folder(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"\0" * 48)
    (inside / "data.bin").write_bytes(np.ones(12, np.float32).tobytes())
    (inside / "link.bin").symlink_to(tmp_path / "secret.bin")
    path = inside / "model.onnx"
    refused(path, external("../secret.bin"), "only files in the model's own folder")
    refused(path, external(str(tmp_path / "secret.bin")), "only files in the model's own folder")
    refused(path, external("link.bin"), "leads out of the model's folder")
    refused(path, external("nothing.bin"), "can't be read")
    refused(path, external("a\0b"), "no name of a file")
    os.mkfifo(inside / "pipe.bin")
    refused(path, external("pipe.bin"), "no file")
    refused(path, external("data.bin", offset="16"), "bytes 16 to 64", "has 48")
    refused(path, external("data.bin", offset="-8"), "at -8")
    refused(path, external("data.bin", length="1000000"), "needs 48 bytes")
    refused(path, external("data.bin", offset="zero"), "no number")
    path.write_bytes(external("data.bin").SerializeToString())
    assert (df.load(str(path))(np.ones((1, 4), np.float32))["y"] == 4).all()


def test_a_size_that_can_not_be_allocated_is_an_error(path):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n",))
    big = df.ops.broadcast_to(df.ops.reshape(x, shape=(df.Dim("n"), 1, 1)), shape=(df.Dim("n"), 1 << 20, 1 << 20))
    g.output("y", df.ops.relu(big))
    with pytest.raises((df.OutOfMemoryError, df.InputError, MemoryError)):
        df.Session(df.Model(g.build()), devices=["cpu"]).run(np.ones(100, np.float32))


def test_an_endless_loop_ends_with_an_error():
    body = df.GraphBuilder("body")
    body.input("i", df.int64, ())
    go = body.input("go", df.bool_, ())
    v = body.input("v", df.float32, (2,))
    body.output("go", df.ops.copy(go))
    body.output("v", df.ops.neg(v))
    g = df.GraphBuilder()
    start = [g.constant(np.int64(1 << 60)), g.constant(np.bool_(True)), g.input("x", df.float32, (2,))]
    made = df.ops.loop(*start, n_carries=1, max_iterations=1000, bodies=(body.build(),), name="forever")
    g.output("y", made[1])
    session = df.Session(df.Model(g.build()), devices=["cpu"], fold=False)
    with pytest.raises(df.InputError, match=r"'forever'.*more than 1000 iterations"):
        session.run(np.ones(2, np.float32))
