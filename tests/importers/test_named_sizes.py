"""Named sizes at every binding: the result is that of the same model with fixed sizes, or an error names the size."""

import itertools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import dataflow as df
from dataflow.ir.dims import Dim, broadcast_size, least_size
from dataflow.passes.autodiff import vjp_graph
from dataflow_numpy.evaluate import evaluate
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

ops = df.ops


def model(op, inputs, outputs=1, opset=21, stored=(), first=(), **attributes):
    """One node; ``inputs`` are shapes with names, of float32; ``first`` and ``stored`` are arrays around them."""
    names = [f"c{i}" for i in range(len(first) + len(stored))]
    names[len(first) : len(first)] = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    given = [(f"x{i}", TensorProto.FLOAT, s) for i, s in enumerate(inputs)]
    results = [onnx.ValueInfoProto(name=f"y{i}") for i in range(outputs)]
    constants = [(f"c{i}", a) for i, a in enumerate([*first, *stored])]
    return onnx_model([node], given, results, constants, opset=opset, ir_version=10)


def feeds_of(shapes, sizes):
    random = np.random.default_rng(1)
    bound = [[sizes.get(n, n) for n in shape] for shape in shapes]
    return {f"x{i}": random.standard_normal(shape).astype(np.float32) for i, shape in enumerate(bound)}


def outcome(proto, feeds):
    """The results, or None where they are refused."""
    try:
        found = df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"]).run(feeds)
    except df.DataflowError:
        return None
    return [found[v.name] for v in proto.graph.output]


V, M = (3,), (2, 3)
CASES = {
    "add": ("Add", [("n", "k"), ("m", "l")], {}),
    "mask behind": ("Mul", [("b", 2, "n"), ("c", 1, "m")], {}),
    "three": ("Where", [("n",), ("m",)], {"first": [np.ones(1, bool)]}),
    "uneven split": ("Split", [("n", 2)], {"outputs": 3, "num_outputs": 3}),
    "even split": ("Split", [("n", 2)], {"outputs": 2, "opset": 13}),
    "given split": ("Split", [("n", 2)], {"outputs": 2, "opset": 13, "stored": [np.array([2, 1])]}),
    "squeeze all": ("Squeeze", [("n", 1, "m")], {"opset": 13}),
    "layer norm of one": ("LayerNormalization", [("n", "m"), ("k",)], {}),
    "layer norm, stored": ("LayerNormalization", [("n", "m")], {"stored": [np.ones(V, np.float32)]}),
    "instance norm": ("InstanceNormalization", [("n", "c", 4)], {"stored": [np.ones(V, np.float32)] * 2}),
    "scale per index": ("QuantizeLinear", [("n", "m")], {"stored": [np.ones(V, np.float32)], "axis": 1}),
    "slopes": ("PRelu", [("n", "m")], {"stored": [np.ones(M, np.float32)]}),
    "expand": ("Expand", [("n", 4)], {"stored": [np.array([3, 1])]}),
    "ceiling": ("MaxPool", [(1, 1, "n")], {"kernel_shape": [1], "strides": [3], "ceil_mode": 1}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_binding_is_right_or_refused(name):
    op, shapes, given = CASES[name]
    proto = model(op, shapes, **given)
    names = sorted({n for shape in shapes for n in shape if isinstance(n, str)})
    answered = 0
    for values in itertools.product((1, 2, 3, 4), repeat=len(names)):
        sizes = dict(zip(names, values, strict=True))
        feeds = feeds_of(shapes, sizes)
        fixed = onnx.ModelProto()
        fixed.CopyFrom(proto)
        for info, array in zip(fixed.graph.input, feeds.values(), strict=True):
            info.CopyFrom(helper.make_tensor_value_info(info.name, TensorProto.FLOAT, array.shape))
        expected, found = outcome(fixed, feeds), outcome(proto, feeds)
        if found is None:
            continue
        answered += 1
        assert expected is not None, f"{sizes}: refused with fixed sizes, but named ones give {found[0].shape}"
        independent = ReferenceEvaluator(fixed).run(None, feeds)
        for a, b, c in zip(found, expected, independent, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=str(sizes))
            np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-5, err_msg=str(sizes))
    assert answered


@pytest.mark.parametrize("shape", [("n", 3), ("n", 1), (1, 3), (1, 1)])
def test_repetitions_by_named_sizes_are_one_graph(shape):
    """As exporters repeat what they have for one sample: for as many as another input has."""
    nodes = [
        helper.make_node("Shape", ["y"], ["counts"]),
        helper.make_node("Tile", ["x", "counts"], ["tiled"]),
        helper.make_node("Relu", ["tiled"], ["z"]),
    ]
    given = [("x", TensorProto.FLOAT, shape), ("y", TensorProto.FLOAT, ("m", "k"))]
    proto = onnx_model(nodes, given, [onnx.ValueInfoProto(name="z")], [], opset=18, ir_version=9)
    loaded = load_bytes(proto.SerializeToString())
    assert "deferred" not in {n.op.name for n in loaded.graph.nodes}
    reference, session = ReferenceEvaluator(proto), df.Session(loaded, devices=["cpu"])
    for n, m, k in ((2, 3, 1), (1, 1, 1), (4, 0, 2), (0, 2, 2), (3, 2, 5)):
        feeds = feeds_of([shape, (m, k)], {"n": n})
        feeds["x"], feeds["y"] = feeds.pop("x0"), feeds.pop("x1")
        (expected,) = reference.run(None, feeds)
        np.testing.assert_array_equal(session.run(feeds)["z"], expected)


@pytest.mark.parametrize("size", ["n", 4])
@pytest.mark.parametrize("split", [(2, 1), (2, 3), (5, -1)])
def test_a_split_that_is_not_all_of_an_axis_is_refused(size, split):
    proto = model("Split", [(size, 2)], 2, 13, stored=[np.array(split)])
    with pytest.raises(df.DataflowError, match=r"adds up to|negative"):
        df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"]).run(np.ones((4, 2), np.float32))


@pytest.mark.parametrize(("op", "shapes"), [("LayerNormalization", [(2, 1), (3,)]), ("PRelu", [(1, 2), (3, 2)])])
def test_a_scale_does_not_broadcast_its_operand(op, shapes):
    proto = model(op, shapes)
    with pytest.raises(df.DataflowError, match="broadcast"):
        df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"]).run(feeds_of(shapes, {}))


@pytest.mark.parametrize(("n", "m"), [(2, 2), (1, 3), (3, 1), (0, 1), (1, 1)])
def test_two_names_broadcast_and_have_a_gradient(n, m):
    def graph(*shape):
        g = df.GraphBuilder("two")
        x, y = g.input("x", df.float32, (shape[0], 2)), g.input("y", df.float32, (shape[1], 2))
        g.output("z", ops.add(ops.mul(ops.sin(x), y), x))
        return g.build()

    random = np.random.default_rng(0)
    feeds = {"x": random.standard_normal((n, 2)), "y": random.standard_normal((m, 2))}
    feeds = {k: a.astype(np.float32) for k, a in feeds.items()}
    named, fixed = graph("n", "m"), graph(n, m)
    found = df.Session(named, devices=["cpu"]).run(feeds)["z"]
    np.testing.assert_allclose(found, np.sin(feeds["x"]) * feeds["y"] + feeds["x"], rtol=1e-6)
    seed = {"grad.z": np.ones(found.shape, np.float32)}
    joint = vjp_graph(named, list(named.inputs))
    gradients = df.Session(joint, devices=["cpu"]).run({**feeds, **seed})
    expected = evaluate(vjp_graph(fixed, list(fixed.inputs)), {**feeds, **seed})
    for name in ("grad.x", "grad.y"):
        np.testing.assert_allclose(gradients[name], expected[name], rtol=1e-5, atol=1e-6)


def test_sizes_that_do_not_fit_are_named_with_their_values():
    with pytest.raises(df.InputError, match=r"axis 0 is 2 and 3.*m = 3, n = 2"):
        g = df.GraphBuilder("two")
        g.output("z", ops.add(g.input("x", df.float32, ("n",)), g.input("y", df.float32, ("m",))))
        df.Session(g.build(), devices=["cpu"]).run({"x": np.ones(2, np.float32), "y": np.ones(3, np.float32)})


@pytest.mark.parametrize("end", [2**31 - 1, 10**9, 10**7])
def test_a_slice_to_a_distant_end_keeps_the_name_of_its_axis(end):
    ends = np.array([end], np.int64)
    node = helper.make_node("Slice", ["x", "begin", "end"], ["y"])
    proto = onnx_model(
        [node],
        [("x", TensorProto.BOOL, ["n"])],
        [("y", TensorProto.BOOL, [None])],
        [("begin", ends * 0), ("end", ends)],
    )
    model = load_bytes(proto.SerializeToString())
    assert str(model.outputs["y"]) == "bool[n]"
    session = df.Session(model, devices=["cpu"])
    for size in (3, 10**7 + 1):
        (y,) = session.run({"x": np.zeros(size, bool)}).values()
        assert y.shape == (min(size, end),)


def test_an_end_behind_the_axis_whatever_its_size_is_the_axis_itself():
    """TensorFlow's converter cuts a transposed convolution to a size that it may not have, and pads it to that size."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"]),
        helper.make_node("Add", ["n", "one"], ["end"]),
        helper.make_node("Slice", ["x", "zero", "end"], ["y"]),
    ]
    stored = [("zero", np.array([0])), ("one", np.array([1]))]
    proto = onnx_model(nodes, [("x", TensorProto.FLOAT, ["n"])], ["y"], stored)
    model = load_bytes(proto.SerializeToString())
    assert str(model.outputs["y"]) == "float32[n]"
    assert df.vjp(model, {"x": np.ones(3, np.float32)}, devices=["cpu"])["x"].tolist() == [1, 1, 1]


def test_what_a_comparison_with_a_named_size_decided_is_checked_when_it_is_known():
    def branch(name, node):
        return helper.make_graph([node], name, [], [onnx.ValueInfoProto(name=name)])

    constants = {"zero": np.array(0), "one": np.array(1), "axes": np.array([0])}
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["rows"]),
        helper.make_node("Equal", ["rows", "one"], ["single"]),
        helper.make_node(
            "If", ["single"], ["y"],
            then_branch=branch("t", helper.make_node("Squeeze", ["x", "axes"], ["t"])),
            else_branch=branch("e", helper.make_node("Neg", ["x"], ["e"])),
        ),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("n", 3))],
        [onnx.ValueInfoProto(name="y")], [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(session.run(x)["y"], -x)
    np.testing.assert_array_equal(session.run(x[:1])["y"], x[0])


@pytest.mark.parametrize(
    ("op", "a", "b", "dtype"),
    [("Add", 127, 1, "int8"), ("Sub", 3, 5, "uint8"), ("Mul", 300, 300, "int16"), ("Mul", 1 << 20, 1 << 20, "int32"),
     ("Div", -7, 2, "int32"), ("Mod", -7, 2, "int32"), ("Div", -128, -1, "int8")],
)  # fmt: skip
def test_integers_that_are_stored_give_what_fed_ones_give(op, a, b, dtype):
    """Sizes are computed at load, other numbers while running: with the same wrap-around and rounding."""
    arrays = [np.array([n], dtype) for n in (a, b)]
    proto = model(op, [], stored=arrays)
    with np.errstate(over="ignore"):
        (expected,) = ReferenceEvaluator(proto).run(None, {})
    for fold in (True, False):
        found = df.Session(load_bytes(proto.SerializeToString()), devices=["numpy"], fold=fold).run({})["y0"]
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == dtype


LOW, HIGH = -(2**63), 2**63 - 1


@pytest.mark.parametrize(
    ("op", "stored"),
    [("Add", [HIGH, 1]), ("Sub", [LOW, 1]), ("Mul", [HIGH, 3]), ("Neg", [LOW]), ("Abs", [LOW])]
    + [(op, [b]) for op in ("Add", "Mul") for b in (HIGH, LOW)],
)
def test_sizes_wrap_around_as_int64_does(op, stored):
    nodes = [helper.make_node("Shape", ["x"], ["s"])]
    arity = 1 if op in ("Neg", "Abs") else 2
    names = [*([] if len(stored) == arity else ["s"]), *(f"c{i}" for i in range(len(stored)))]
    nodes.append(helper.make_node(op, names, ["y"]))
    constants = [(f"c{i}", np.array([n], np.int64)) for i, n in enumerate(stored)]
    outputs = [onnx.ValueInfoProto(name=name) for name in "sy"]
    proto = onnx_model(nodes, [("x", TensorProto.FLOAT, ("n", 3))], outputs, constants, opset=18, ir_version=9)
    x = {"x": np.ones((2, 3), np.float32)}
    found = df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"]).run(x)["y"]
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(found, session.run(["y"], x)[0])


def test_a_quotient_by_zero_that_nobody_reads_stops_nothing():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Equal", ["b", "zero"], ["none"]),
        helper.make_node("Div", ["s", "b"], ["q"]),
        helper.make_node("Where", ["none", "s", "q"], ["e"]),
        helper.make_node("Expand", ["x", "e"], ["y"]),
    ]
    constants = [("b", np.array([0, 1], np.int64)), ("zero", np.zeros(1, np.int64))]
    inputs, outputs = [("x", TensorProto.FLOAT, ("n", 1))], [onnx.ValueInfoProto(name="y")]
    proto = onnx_model(nodes, inputs, outputs, constants, opset=18, ir_version=9)
    found = df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"]).run(np.ones((2, 1), np.float32))
    np.testing.assert_array_equal(found["y"], np.ones((2, 1), np.float32))


def test_joined_sizes_are_equal_in_any_order_and_known_when_bound():
    n, m, k = Dim("n"), Dim("m"), Dim("k")
    assert broadcast_size([n, m]) == broadcast_size([m, n, 1, n])
    assert broadcast_size([broadcast_size([n, m]), k]) == broadcast_size([k, m, n])
    assert broadcast_size([n, 4]) == 4 and broadcast_size([n, 1]) == n
    assert broadcast_size([n, m]).bind({"n": 1, "m": 5}) == 5
    assert least_size([n, m, 7]).bind({"n": 9, "m": 8}) == 7
    assert least_size([n, m]).bind({"n": 3}).bind({"m": 2}) == 2
    assert broadcast_size([n, m]).names == {"n", "m"}
    with pytest.raises(df.InputError, match="3 and 2"):
        broadcast_size([n, m]).bind({"n": 2, "m": 3})


def test_the_last_rows_are_counted_by_a_named_size():
    """A decoder's positions: the last rows of a table that a cache makes longer, by as many as there are new tokens."""
    nodes = [
        helper.make_node("Shape", ["new"], ["count"], start=0, end=1),
        helper.make_node("Neg", ["count"], ["start"]),
        helper.make_node("Slice", ["table", "start", "far", "axis"], ["last"]),
        helper.make_node("Slice", ["table", "axis", "start", "axis"], ["first"]),
        helper.make_node("Slice", ["new", "start", "far", "axis"], ["all"]),
    ]
    stored = [("far", np.array([2**62])), ("axis", np.array([0]))]
    inputs = [("table", TensorProto.FLOAT, ["rows", 2]), ("new", TensorProto.FLOAT, ["tokens", 2])]
    outputs = [(name, TensorProto.FLOAT, None) for name in ("last", "first", "all")]
    proto = onnx_model(nodes, inputs, outputs, stored)
    model = load_bytes(proto.SerializeToString())
    session = df.Session(model, devices=["numpy"])
    for rows, tokens in [(5, 2), (5, 5), (7, 1), (2, 4), (3, 0), (0, 0)]:
        feeds = {n: np.arange(2 * size, dtype="f4").reshape(size, 2) for n, size in [("table", rows), ("new", tokens)]}
        expected = ReferenceEvaluator(proto).run(None, feeds)
        for array, wanted in zip(session.run(feeds).values(), expected, strict=True):
            np.testing.assert_array_equal(array, wanted)
    session = df.Session(model.graph, devices=["numpy"])  # nothing is converted again for these sizes
    for rows, tokens in [(5, 2), (5, 5), (7, 1)]:
        session.run({"table": np.zeros((rows, 2), "f4"), "new": np.zeros((tokens, 2), "f4")})


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_pads_that_keep_a_named_size(auto_pad):
    """One graph for all sizes, also where the pads depend on what a stride leaves of a size."""
    window = {"auto_pad": auto_pad, "kernel_shape": [4]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["y"], strides=[1], **window),
        helper.make_node("AveragePool", ["y"], ["z"], strides=[3], **window),
        helper.make_node("MaxPool", ["z"], ["s"], strides=[2], **window),
        helper.make_node("LpPool", ["s"], ["r"], auto_pad=auto_pad, kernel_shape=[2], strides=[3], p=1),
        helper.make_node("Conv", ["r", "v"], ["t"], auto_pad=auto_pad, kernel_shape=[1], strides=[3]),
    ]
    stored = [("w", np.arange(24, dtype="f4").reshape(3, 2, 4)), ("v", np.arange(6, dtype="f4").reshape(2, 3, 1))]
    inputs, outputs = [("x", TensorProto.FLOAT, [1, 2, "size"])], [("t", TensorProto.FLOAT, None)]
    proto = onnx_model(nodes, inputs, outputs, stored, opset=18)
    model = load_bytes(proto.SerializeToString())
    session = df.Session(model.graph, devices=["numpy"])  # for all sizes
    joint = vjp_graph(model.graph, list(model.graph.inputs))
    reference = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in (1, 2, 5, 9, 40, 55, 64):
        feeds = {"x": np.arange(2 * size, dtype="f4").reshape(1, 2, size)}
        result = session.run(feeds)["t"]
        np.testing.assert_allclose(result, reference.run(None, feeds)[0], rtol=1e-6)
        cotangents = {"grad.t": np.ones_like(result)}
        assert df.Session(joint, devices=["numpy"]).run({**feeds, **cotangents})["grad.x"].any()


def test_pads_by_a_named_size():
    """A size is padded to a multiple, by a number that nodes compute from it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], start=1, end=2),
        helper.make_node("Neg", ["size"], ["less"]),
        helper.make_node("Mod", ["less", "four"], ["after"]),
        helper.make_node("Concat", ["none", "after"], ["pads"], axis=0),
        helper.make_node("Pad", ["x", "pads"], ["y"]),
        helper.make_node("Reshape", ["y", "rows"], ["z"]),
    ]
    stored = [("four", np.array([4])), ("none", np.zeros(3, np.int64)), ("rows", np.array([2, -1, 4]))]
    proto = onnx_model(nodes, [("x", TensorProto.FLOAT, [2, "n"])], [("z", TensorProto.FLOAT, None)], stored)
    session = df.Session(load_bytes(proto.SerializeToString()).graph, devices=["numpy"])
    for size in (1, 4, 6, 11):
        feeds = {"x": np.ones((2, size), "f4")}
        np.testing.assert_array_equal(session.run(feeds)["z"], ReferenceEvaluator(proto).run(None, feeds)[0])


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(("size", "ceil_mode", "count"), [(1, 1, 1), (0, 1, 0), (5, 0, 2), (5, 1, 3)])
def test_windows_that_need_more_than_there_is(op, size, ceil_mode, count):
    """As many windows as ONNX's formula gives: one that overhangs."""
    node = helper.make_node(op, ["x"], ["y"], kernel_shape=[2], strides=[2], ceil_mode=ceil_mode)
    proto = onnx_model([node], [("x", TensorProto.FLOAT, [2, 1, "n"])], [("y", TensorProto.FLOAT, None)], opset=19)
    graph = load_bytes(proto.SerializeToString()).graph
    feeds = {"x": np.arange(1, 1 + 2 * size, dtype="f4").reshape(2, 1, size)}
    expected = ReferenceEvaluator(proto).run(None, feeds)[0] if size else np.zeros((2, 1, 0), "f4")
    joint = vjp_graph(graph, list(graph.inputs))
    for device in ("numpy", "cpu"):
        found = df.Session(graph, devices=[device]).run(feeds)["y"]
        assert found.shape == (2, 1, count)
        np.testing.assert_allclose(found, expected)
        cotangents = {"grad.y": np.ones_like(found)}
        gradient = df.Session(joint, devices=[device]).run({**feeds, **cotangents})["grad.x"]
        assert gradient.sum() == found.size and gradient.shape == (2, 1, size)


@pytest.mark.parametrize("kernel", [3, 6])  # less than a stride beyond the input, and two
def test_an_input_without_a_window_is_refused(kernel):
    """ONNX's formula gives 0 for the first, its shape inference and onnxruntime 1, PyTorch an error."""
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[kernel], strides=[2])
    proto = onnx_model([node], [("x", TensorProto.FLOAT, [1, 1, "n"])], [("y", TensorProto.FLOAT, None)])
    with pytest.raises(df.InputError, match="larger than the padded input"):
        df.Session(load_bytes(proto.SerializeToString()), devices=["numpy"]).run({"x": np.ones((1, 1, 2), "f4")})


def test_what_a_model_computes_of_the_size_of_an_empty_slice_is_what_onnxruntime_computes():
    nodes = [
        helper.make_node("Slice", ["x", "start", "end", "axis"], ["y"]),
        helper.make_node("Shape", ["y"], ["size"], start=0, end=1),
        helper.make_node("Add", ["size", "three"], ["more"]),
        helper.make_node("ConstantOfShape", ["more"], ["zeros"]),
    ]
    numbers = {"start": [2], "end": [-5], "axis": [0], "three": [3]}
    stored = [numpy_helper.from_array(np.array(values, np.int64), name) for name, values in numbers.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in ("y", "more", "zeros")]
    proto = onnx_model(nodes, [("x", TensorProto.FLOAT, ["N", 3])], outputs, stored)
    theirs = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    session = df.Session(load_bytes(proto.SerializeToString()))
    for n in (9, 6, 3, 7, 1, 0):
        x = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
        found = session.run({"x": x})
        for name, expected in zip(["y", "more", "zeros"], theirs.run(None, {"x": x}), strict=True):
            np.testing.assert_array_equal(found[name], expected)
