"""Sequences and optionals of tensors: lists and None as arguments and results, and inside of models."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import dataflow as df
from dataflow.cli.main import commands
from dataflow_onnx.loading import load_bytes

node = helper.make_node
F, I, B, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
tensor = helper.make_tensor_type_proto
OF_FLOATS = helper.make_sequence_type_proto(tensor(F, None))
SIMPLE = Path(onnx.__file__).parent / "backend/test/data/simple"


def value(name, type_=None):
    return onnx.ValueInfoProto(name=name) if type_ is None else helper.make_value_info(name, type_)


def graph(nodes, outputs, inputs=(), name="body"):
    return helper.make_graph(nodes, name, list(inputs), list(outputs))


def model(nodes, inputs, outputs, stored=(), opset=18):
    made = graph(nodes, [value(*o) for o in outputs], [value(*i) for i in inputs], "sequences")
    made.initializer.extend(numpy_helper.from_array(np.asarray(array), name) for name, array in stored)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def same(found, expected):
    if expected is None or isinstance(expected, list):
        assert type(found) is type(expected)
        assert len(found or ()) == len(expected or ())
        for one, other in zip(found or (), expected or (), strict=True):
            same(one, other)
    else:
        assert found.dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(found, expected)


def check(proto, feeds, judge="onnxruntime"):
    """The same as another engine gives, on both devices, twice in one session."""
    if judge == "onnxruntime":
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        expected = session.run(None, feeds)
    else:
        expected = ReferenceEvaluator(proto).run(None, feeds)
    loaded = load_bytes(proto.SerializeToString())
    for device in ("cpu", "numpy"):
        session = df.Session(loaded, devices=[device])
        for _ in range(2):
            found = session.run(feeds)
            assert list(found) == [v.name for v in proto.graph.output]
            for name, one in zip(found, expected, strict=True):
                same(found[name], one)
    return loaded


def arrays(*shapes, dtype=np.float32):
    random = np.random.default_rng(len(shapes))
    return [random.integers(-9, 9, shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("number", range(1, 9))
def test_the_models_of_onnx(number):
    folder = SIMPLE / f"test_sequence_model{number}"
    proto = onnx.load(folder / "model.onnx")
    files = sorted(folder.glob("test_data_set_0/*.pb"))
    read = {path.stem: numpy_helper.to_array(onnx.load_tensor(path)) for path in files}
    given = [array for name, array in read.items() if name.startswith("input")]
    stored = {t.name for t in proto.graph.initializer}
    inputs = [v.name for v in proto.graph.input if v.name not in stored]
    found = load_bytes(proto.SerializeToString())(dict(zip(inputs, given, strict=False)))
    np.testing.assert_array_equal(found[proto.graph.output[0].name], read["output_0"])


POSITIONS = {
    "SequenceAt": (-3, -1, 0, 2),
    "SequenceInsert": (-3, -1, 0, 2, 3),
    "SequenceErase": (-3, -1, 0, 2),
}


@pytest.mark.parametrize(("operator", "position"), [(op, p) for op, ps in POSITIONS.items() for p in ps])
def test_positions(operator, position):
    inserted = ["t"] if operator == "SequenceInsert" else []
    made = tensor(F, None) if operator == "SequenceAt" else OF_FLOATS
    proto = model(
        [node(operator, ["x", *inserted, "p"], ["y"])],
        [("x", OF_FLOATS), ("t", tensor(F, ["n"])), ("p", tensor(I, []))],
        [("y", made)],
    )
    feeds = {"x": arrays((2, 3), (4,), ()), "t": np.ones(2, np.float32), "p": np.array(position)}
    check(proto, feeds)


@pytest.mark.parametrize(
    ("operator", "position"), [("SequenceAt", 3), ("SequenceInsert", 4), ("SequenceErase", -4), ("SequenceAt", -4)]
)
def test_a_position_that_there_is_not(operator, position):
    inserted = ["t"] if operator == "SequenceInsert" else []
    proto = model(
        [node(operator, ["x", *inserted, "p"], ["y"])],
        [("x", OF_FLOATS), ("t", tensor(F, ["n"])), ("p", tensor(I, []))],
        [("y", tensor(F, None) if operator == "SequenceAt" else OF_FLOATS)],
    )
    session = df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"])
    feeds = {"x": arrays((2, 3), (4,), ()), "t": np.ones(2, np.float32), "p": np.array(position)}
    with pytest.raises(df.InputError, match=rf"{operator} 'y'.*the position is \[{position}\]"):
        session.run(feeds)


def test_lengths_are_known_before_the_sequences_are():
    nodes = [
        node("SequenceConstruct", ["a", "b", "a"], ["s"]),
        node("SequenceErase", ["s"], ["t"]),
        node("SequenceLength", ["t"], ["n"]),
        node("ConcatFromSequence", ["t"], ["y"], axis=-1),
        node("ConcatFromSequence", ["t"], ["z"], axis=-1, new_axis=1),
        node("Expand", ["n", "two"], ["m"]),
    ]
    types = tensor(F, ["n", 3])
    proto = model(nodes, [("a", types), ("b", types)], [("y", types), ("z", tensor(F, None)), ("m", tensor(I, [2]))])
    proto.graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
    a, b = arrays((2, 3), (2, 3))
    loaded = check(proto, {"a": a, "b": b})
    assert not loaded.forms
    assert not any(n.op is df.ops.deferred for n in loaded.graph.nodes)


@pytest.mark.parametrize(
    ("split", "axis", "keepdims"),
    [(None, 0, 1), (None, 1, 0), (None, -1, 1), (2, 0, 1), (4, 1, 1), ([1, 2, 2], 0, 1), ([0, 5], 0, 1), ([5], 0, 1)],
)
def test_split(split, axis, keepdims):
    given = [] if split is None else ["split"]
    proto = model(
        [node("SplitToSequence", ["x", *given], ["y"], axis=axis, keepdims=keepdims)],
        [("x", tensor(F, ["n", "m"]))],
        [("y", OF_FLOATS)],
        [] if split is None else [("split", np.array(split))],
    )
    loaded = check(proto, {"x": arrays((5, 6))[0]})
    assert str(loaded.forms["y"]) == "sequence of float32 tensors"


@pytest.mark.parametrize("split", [1, [1, 1, 1], 2, [2, 1]])
def test_axes_are_kept_where_a_split_says_sizes(split):
    """ONNX says so; but for the number 1, with which PyTorch's exporter writes unbind, onnxruntime leaves them out."""
    proto = model(
        [node("SplitToSequence", ["x", "split"], ["y"], keepdims=0)],
        [("x", tensor(F, ["n", "m"]))],
        [("y", OF_FLOATS)],
        [("split", np.array(split))],
    )
    (x,) = arrays((3, 2))
    ends = {1: [1, 2], 2: [2]}.get(split) if isinstance(split, int) else np.cumsum(split)[:-1]
    expected = [*x] if split == 1 else np.split(x, ends)
    same(load_bytes(proto.SerializeToString())(x)["y"], expected)


def test_a_split_whose_sizes_are_fed_and_don_t_fit():
    proto = model(
        [node("SplitToSequence", ["x", "split"], ["y"])],
        [("x", tensor(F, ["n"])), ("split", tensor(I, ["k"]))],
        [("y", OF_FLOATS)],
    )
    feeds = {"x": arrays((5,))[0], "split": np.array([2, 3])}
    session = df.Session(check(proto, feeds), devices=["cpu"])
    with pytest.raises(df.InputError, match=r"split \[2, 2\] adds up to 4"):
        session.run(feeds | {"split": np.array([2, 2])})


def test_a_sequence_of_another_length_is_another_form_of_the_model():
    proto = model(
        [node("ConcatFromSequence", ["x"], ["j"], axis=0), node("Mul", ["j", "j"], ["y"])],
        [("x", OF_FLOATS)],
        [("y", tensor(F, None)), ("x", OF_FLOATS)],
    )
    del proto.graph.output[1]
    loaded = load_bytes(proto.SerializeToString())
    session = df.Session(loaded, devices=["cpu"])
    for shapes in (((2, 3), (1, 3)), ((4, 3),), ((2, 3), (1, 3)), ((1, 3), (1, 3), (0, 3))):
        x = arrays(*shapes)
        same(session.run({"x": x})["y"], np.concatenate(x) ** 2)
        same(session.run({"x": tuple(x)}, outputs=["y"])["y"], np.concatenate(x) ** 2)
    assert len(session.plans) == 3
    with pytest.raises(df.InputError, match="'x' is empty"):
        session.run({"x": []})


def collected(opset=18):
    """A loop that carries a sequence, of which each iteration reads the length."""
    body = graph(
        [
            node("SequenceLength", ["s"], ["n"]),
            node("Unsqueeze", ["n", "axis"], ["ends"]),
            node("Slice", ["x", "axis", "ends"], ["part"]),
            node("SequenceInsert", ["s", "part"], ["t"]),
            node("Identity", ["c"], ["go"]),
        ],
        [value("go", tensor(B, [])), value("t", OF_FLOATS)],
        [value("i", tensor(I, [])), value("c", tensor(B, [])), value("s", OF_FLOATS)],
    )
    nodes = [node("SequenceEmpty", [], ["e"]), node("Loop", ["times", "", "e"], ["y"], body=body)]
    inputs = [("times", tensor(I, [])), ("x", tensor(F, ["n"]))]
    return model(nodes, inputs, [("y", OF_FLOATS)], [("axis", np.array([0]))], opset)


@pytest.mark.parametrize("times", [0, 1, 4])
def test_a_loop_carries_a_sequence(times):
    check(collected(), {"times": np.array(times), "x": arrays((5,))[0]})


def test_a_body_reads_a_sequence_of_the_graph_around_it():
    at = graph(
        [node("SequenceAt", ["x", "i"], ["e"]), node("Add", ["e", "v"], ["w"]), node("Identity", ["c"], ["go"])],
        [value("go", tensor(B, [])), value("w", tensor(F, None)), value("e", tensor(F, None))],
        [value("i", tensor(I, [])), value("c", tensor(B, [])), value("v", tensor(F, None))],
    )
    nodes = [node("SequenceLength", ["x"], ["n"]), node("Loop", ["n", "", "v0"], ["y", "z"], body=at)]
    proto = model(nodes, [("x", OF_FLOATS), ("v0", tensor(F, [2]))], [("y", tensor(F, None)), ("z", tensor(F, None))])
    x = arrays((2,), (2,), (2,))
    loaded = load_bytes(proto.SerializeToString())
    found = loaded({"x": x, "v0": np.zeros(2, np.float32)})
    same(found["y"], np.sum(x, axis=0))
    same(found["z"], np.stack(x))


@pytest.mark.parametrize("direction", [0, 1])
def test_a_scan_reads_a_sequence_of_the_graph_around_it(direction):
    body = graph(
        [node("SequenceAt", ["s", "i"], ["e"]), node("Add", ["e", "v"], ["w"]), node("Neg", ["w"], ["m"])],
        [value("w", tensor(F, [2])), value("m", tensor(F, [2]))],
        [value("v", tensor(F, [2])), value("i", tensor(I, []))],
    )
    scan = node("Scan", ["v0", "at"], ["y", "z"], body=body, num_scan_inputs=1, scan_input_directions=[direction])
    nodes = [node("SplitToSequence", ["x"], ["s"], keepdims=0), scan]
    inputs = [("x", tensor(F, ["n", 2])), ("v0", tensor(F, [2])), ("at", tensor(I, ["k"]))]
    proto = model(nodes, inputs, [("y", tensor(F, None)), ("z", tensor(F, None))])
    x, v0 = arrays((4, 2), (2,))
    check(proto, {"x": x, "v0": v0, "at": np.array([2, 0, 3])})


def chosen():
    """A branch on data, between sequences of different lengths."""
    yes = graph([node("SequenceConstruct", ["x", "x"], ["a"])], [value("a", OF_FLOATS)], name="yes")
    no = graph([node("SequenceConstruct", ["m"], ["b"])], [value("b", OF_FLOATS)], name="no")
    nodes = [
        node("Neg", ["x"], ["m"]),
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "zero"], ["positive"]),
        node("If", ["positive"], ["y"], then_branch=yes, else_branch=no),
    ]
    return model(nodes, [("x", tensor(F, ["n"]))], [("y", OF_FLOATS)], [("zero", np.float32(0))])


@pytest.mark.parametrize("sign", [1, -1])
def test_a_branch_on_data_gives_sequences_of_other_lengths(sign):
    check(chosen(), {"x": np.full(3, sign, np.float32)})


def test_a_map_over_sequences_and_a_tensor():
    body = graph(
        [node("Add", ["a", "b"], ["s"]), node("Mul", ["s", "t"], ["p"]), node("Shape", ["a"], ["n"])],
        [value("p", tensor(F, ["n"])), value("n", tensor(I, [1]))],
        [value("a", tensor(F, ["n"])), value("b", tensor(F, ["n"])), value("t", tensor(F, [1]))],
    )
    proto = model(
        [node("SequenceMap", ["x", "y", "t"], ["p", "n"], body=body)],
        [("x", OF_FLOATS), ("y", OF_FLOATS), ("t", tensor(F, [1]))],
        [("p", OF_FLOATS), ("n", helper.make_sequence_type_proto(tensor(I, [1])))],
    )
    feeds = {"x": arrays((2,), (5,)), "y": arrays((2,), (5,)), "t": np.float32([3])}
    loaded = check(proto, feeds)
    assert loaded(feeds | {"x": [], "y": []}) == {"p": [], "n": []}
    with pytest.raises(df.InputError, match="2 and 1 elements"):
        loaded(feeds | {"y": arrays((2,))})


OPTIONAL = helper.make_optional_type_proto(tensor(F, [None]))
OPTIONAL_SEQUENCE = helper.make_optional_type_proto(OF_FLOATS)


def test_optionals_that_are_there_or_not():
    has = graph([node("OptionalGetElement", ["o"], ["g"])], [value("g", tensor(F, [None]))], name="has")
    none = graph([node("Neg", ["x"], ["m"])], [value("m", tensor(F, [None]))], name="none")
    nodes = [
        node("OptionalHasElement", ["o"], ["h"]),
        node("If", ["h"], ["y"], then_branch=has, else_branch=none),
    ]
    proto = model(nodes, [("o", OPTIONAL), ("x", tensor(F, ["n"]))], [("y", tensor(F, [None])), ("h", tensor(B, []))])
    x, o = arrays((3,), (4,))
    loaded = check(proto, {"o": o, "x": x})
    for given, expected in ((None, -x), (o, o)):
        found = loaded({"o": given, "x": x})
        same(found["y"], expected)
        assert found["h"] == (given is not None)


@pytest.mark.parametrize("given", [None, [], [np.float32([1, 2])]])
def test_an_optional_sequence_is_passed_on(given):
    proto = model([node("Identity", ["x"], ["y"])], [("x", OPTIONAL_SEQUENCE)], [("y", OPTIONAL_SEQUENCE)])
    loaded = load_bytes(proto.SerializeToString())
    same(loaded({"x": given})["y"], given)
    assert str(loaded.forms["x"]) == "optional sequence of float32 tensors"


def test_an_optional_without_an_element_has_none_to_give():
    proto = model([node("OptionalGetElement", ["x"], ["y"])], [("x", OPTIONAL)], [("y", tensor(F, None))])
    with pytest.raises(df.InputError, match="'x' has no element"):
        load_bytes(proto.SerializeToString())({"x": None})


def test_sequences_of_strings():
    proto = model(
        [node("SequenceAt", ["x", "p"], ["y"])],
        [("x", helper.make_sequence_type_proto(tensor(S, [None]))), ("p", tensor(I, []))],
        [("y", tensor(S, [None]))],
    )
    x = [np.array(["a", "bc"]), np.array(["d"])]
    found = load_bytes(proto.SerializeToString())({"x": x, "p": np.array(-1)})
    assert found["y"].tolist() == ["d"]


def simple():
    return model(
        [node("SequenceInsert", ["x", "t"], ["y"])],
        [("x", OF_FLOATS), ("t", tensor(F, ["n", 3]))],
        [("y", OF_FLOATS)],
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"x": np.ones((2, 3), np.float32)}, "'x' is a sequence of float32 tensors; expected a list of arrays"),
        ({"x": None}, "expected a list of arrays, got None"),
        ({"x": [np.ones(2)]}, r"'x\[0\]'.*float64"),
        ({"x": [None]}, r"'x\[0\]'"),
        ({}, "missing inputs: x"),
        ({"x": [], "t": np.ones((2, 4), np.float32)}, "axis 1 must be 3"),
        ({"x": [], "t": np.ones(3, np.float32)}, "rank 2"),
    ],
)
def test_arguments_that_don_t_fit(given, message):
    with pytest.raises(df.InputError, match=message):
        load_bytes(simple().SerializeToString())({"t": np.ones((2, 3), np.float32)} | given)


def test_what_such_a_model_has_not():
    loaded = load_bytes(simple().SerializeToString())
    session = df.Session(loaded, devices=["cpu"])
    t = np.ones((2, 3), np.float32)
    with pytest.raises(df.InputError, match="gives new arrays"):
        session.run({"x": [], "t": t}, out={"y": t})
    with pytest.raises(df.ModelError, match=r"'x' is a sequence of float32 tensors.*no plan"):
        session.plan({"t": (2, 3)})
    with pytest.raises(df.ModelError, match=r"'x' is a sequence.*not be trained"):
        df.Trainer(loaded, loss="mse", optimizer="sgd", devices=["cpu"])


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Relu", ["s"], ["y"])], "Relu 'y'.*'s' is a sequence of 2 tensors; expected a tensor"),
        ([node("SequenceLength", ["a"], ["y"])], "SequenceLength 'y'.*'a' is a tensor"),
        ([node("SequenceConstruct", ["s", "s"], ["y"])], "'s' is a sequence of 2 tensors; expected a tensor"),
        ([node("SequenceConstruct", ["a", "i"], ["y"])], "float32 and int64"),
        ([node("Optional", [], ["o"], type=tensor(F, [1])), node("Neg", ["o"], ["y"])], "'o' is an optional without"),
        ([node("Identity", ["s"], ["y"])], "'y' is declared as float32"),
    ],
)
def test_nodes_that_don_t_fit(nodes, message):
    first = node("SequenceConstruct", ["a", "a"], ["s"])
    inputs = [("a", tensor(F, [1])), ("i", tensor(I, [1]))]
    proto = model([first, *nodes], inputs, [("y", tensor(F, [1]))])
    with pytest.raises(df.ModelError, match=message):
        load_bytes(proto.SerializeToString())


@pytest.mark.parametrize(
    "type_",
    [
        helper.make_sequence_type_proto(OF_FLOATS),
        helper.make_sequence_type_proto(helper.make_map_type_proto(I, tensor(F, [1]))),
        helper.make_sequence_type_proto(onnx.TypeProto()),
        onnx.TypeProto(),
    ],
)
def test_inputs_of_other_kinds_are_refused(type_):
    proto = model([node("Identity", ["x"], ["y"])], [("x", type_)], [("y", OF_FLOATS)])
    with pytest.raises(df.ModelError, match=r"input 'x' of the main graph is a .*expected a tensor, a sequence"):
        load_bytes(proto.SerializeToString())


def test_weights_in_a_sequence_are_parameters():
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    nodes = [
        node("SequenceConstruct", ["w", "v"], ["s"]),
        node("SequenceAt", ["s", "p"], ["u"]),
        node("MatMul", ["x", "u"], ["y"]),
    ]
    stored = [("w", w), ("v", w + 1), ("p", np.array(1))]
    proto = model(nodes, [("x", tensor(F, ["n", 2]))], [("y", tensor(F, ["n", 3]))], stored)
    loaded = check(proto, {"x": np.float32([[1, 2]])})
    with df.Trainer(loaded, loss="mse", optimizer="sgd", devices=["cpu"]) as trainer:
        trainer.step({"x": np.ones((1, 2), np.float32), "labels": np.zeros((1, 3), np.float32)})
    assert not np.array_equal(loaded.parameters["v"].array, w + 1)
    np.testing.assert_array_equal(loaded.parameters["w"].array, w)


def test_the_command_line_says_what_sequences_are_and_writes_their_elements(tmp_path):
    path, x, y = tmp_path / "model.onnx", tmp_path / "x.npy", tmp_path / "y.npz"
    onnx.save(chosen(), path)
    np.save(x, np.ones(2, np.float32))
    done = CliRunner().invoke(commands, ["inspect", str(path)])
    assert "y: sequence of float32 tensors" in done.output
    done = CliRunner().invoke(commands, ["run", str(path), "--input", str(x), "--output", str(y)])
    assert done.exit_code == 0, done.output
    assert np.load(y).files == ["y[0]", "y[1]"]
