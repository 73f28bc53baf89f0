"""Nodes that can only be converted once sizes or values are known: they are, when inputs arrive."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import dataflow as df
from dataflow.engine import Engine
from dataflow_onnx.importer import Importer
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

node = helper.make_node
F, I, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
W = np.arange(12, dtype=np.float32).reshape(4, 3) / 7


def graph(name, nodes, outputs, inputs=()):
    return helper.make_graph(nodes, name, list(inputs), [onnx.ValueInfoProto(name=n) for n in outputs])


def model(nodes, inputs, outputs, stored=(), opset=18):
    results = [helper.make_tensor_value_info(n, t, [None] * rank) for n, t, rank in outputs]
    return onnx_model(nodes, inputs, results, list(stored), opset=opset, ir_version=9)


def check(proto, feeds, **options):
    """The same as ONNX's reference, on both devices."""
    expected = ReferenceEvaluator(proto).run(None, feeds)
    loaded = load_bytes(proto.SerializeToString())
    for device in ("cpu", "numpy"):
        found = df.Session(loaded, devices=[device], **options).run(feeds)
        for info, array in zip(proto.graph.output, expected, strict=True):
            assert found[info.name].shape == array.shape
            np.testing.assert_allclose(found[info.name], array, rtol=1e-6)
    return loaded


def squeezed():
    """What tracing makes of ``squeeze(0)``: a branch on a size whose results differ in rank."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"]),
        node("Equal", ["rows", "one"], ["single"]),
        node("MatMul", ["x", "w"], ["h"]),
        node(
            "If", ["single"], ["y"],
            then_branch=graph("then", [node("Squeeze", ["h", "axes"], ["t"])], ["t"]),
            else_branch=graph("else", [node("Neg", ["h"], ["e"])], ["e"]),
        ),
        node("ReduceSum", ["y", "last"], ["z"], keepdims=0),
    ]  # fmt: skip
    stored = [("zero", np.array(0)), ("one", np.array(1)), ("axes", np.array([0])), ("last", np.array([-1])), ("w", W)]
    return model(nodes, [("x", F, ("n", 4))], [("z", F, 1)], stored)


@pytest.mark.parametrize("rows", [1, 3])
def test_gradients_of_a_branch_on_a_size(rows):
    loaded, x = load_bytes(squeezed().SerializeToString()), np.ones((rows, 4), np.float32)
    assert "deferred" in [n.op.name for n in loaded.graph.nodes]
    loaded.parameters["w"].set(W * 2)
    found, sign = df.vjp(loaded, {"x": x}, devices=["cpu"]), 1 if rows == 1 else -1
    np.testing.assert_allclose(found["w"], np.full((4, 3), sign * rows))
    np.testing.assert_allclose(found["x"], sign * np.tile(2 * W.sum(1), (rows, 1)), rtol=1e-6)


def test_a_branch_on_a_size_is_taken_when_the_size_is_known():
    proto = squeezed()
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    loaded = load_bytes(proto.SerializeToString())
    session = df.Session(loaded, devices=["cpu"])
    for rows in (3, 1, 2, 1):
        x = np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)
        expected = (-(x @ W) if rows > 1 else (x @ W)[0]).sum(-1)
        np.testing.assert_allclose(session.run(x)["z"], expected, rtol=1e-5)
    assert len(session.plans) == 3
    assert session.plan((5, 4)).inputs["x"].type.sizes == (5, 4)


def test_inspect_says_why_a_model_is_converted_for_its_inputs(tmp_path):
    from click.testing import CliRunner

    from dataflow.cli.main import commands

    path = tmp_path / "squeezed.onnx"
    path.write_bytes(squeezed().SerializeToString())
    result = CliRunner().invoke(commands, ["inspect", str(path)])
    assert result.exit_code == 0
    assert "since: " in result.output
    assert "If 'y', opset 18: the condition 'single' depends on sizes or data" in result.output


def test_it_trains_by_the_sizes_of_each_batch():
    loaded = load_bytes(squeezed().SerializeToString())
    assert loaded.parameters["w"].trainable
    target = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    with df.Trainer(loaded, loss="mse", optimizer="sgd", devices=["cpu"]) as trainer:
        losses = [trainer.step({"x": target, "labels": target.sum(-1)}) for _ in range(8)]
    assert losses[-1] < losses[0]
    assert not np.array_equal(loaded.parameters["w"].array, W)
    x = np.ones((2, 4), np.float32)
    now = loaded.parameters["w"].array
    np.testing.assert_allclose(df.Session(loaded, devices=["cpu"]).run(x)["z"], -(x @ now).sum(-1), rtol=1e-5)


@pytest.mark.parametrize("axes", [[0], [1], [0, 1], [-1]])
def test_axes_that_are_fed(axes):
    nodes = [node("Mul", ["x", "x"], ["s"]), node("ReduceSum", ["s", "axes"], ["y"], keepdims=1)]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    proto = model(nodes, [("x", F, ("n", "m")), ("axes", I, (len(axes),))], [("y", F, 2)])
    check(proto, {"x": x, "axes": np.array(axes)})


def test_values_that_are_computed_from_data_are_asked_for_one_after_the_other():
    nodes = [
        node("ReduceMax", ["k", "zero"], ["axis"], keepdims=1),
        node("ReduceSum", ["x", "axis"], ["s"], keepdims=0),
        node("ArgMax", ["s"], ["best"], axis=0, keepdims=1),
        node("Unsqueeze", ["s", "best"], ["y"]),
    ]
    feeds = {"x": np.float32([[1, 5, 2], [4, 0, 9]]), "k": np.array([0, 0])}
    proto = model(nodes, [("x", F, (2, 3)), ("k", I, (2,))], [("y", F, 2)], [("zero", np.array([0]))])
    proto.graph.node[2].attribute[0].i = 0
    feeds["x"][:, 2] -= 9  # the best is the second: an axis that there is
    loaded = check(proto, feeds)
    session = df.Session(loaded, devices=["cpu"])
    first, again = session.run(feeds), session.run(feeds)
    np.testing.assert_array_equal(first["y"], again["y"])
    with pytest.raises(df.ModelError, match="depends on data"):
        session.plan({"x": (2, 3), "k": (2,)})


def test_a_loop_whose_value_grows_is_unrolled():
    body = graph(
        "grow",
        [
            node("Concat", ["v", "v"], ["w"], axis=0),
            node("Shape", ["w"], ["size"]),
            node("Gather", ["size", "zero"], ["rows"]),
            node("Less", ["rows", "most"], ["go"]),
        ],
        ["go", "w"],
        [onnx.ValueInfoProto(name=n) for n in ("i", "c", "v")],
    )
    nodes = [node("Loop", ["n", ""], ["y"], body=body)]
    stored = [("zero", np.array(0)), ("most", np.array(10))]
    proto = model(nodes, [("n", I, ()), ("x", F, ("k",))], [("y", F, 1)], stored)
    proto.graph.node[0].input.append("x")
    for rows, iterations, expected in ((2, 9, 16), (3, 1, 6), (12, 5, 24)):
        found = df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"]).run(
            {"n": np.array(iterations), "x": np.ones(rows, np.float32)}
        )
        assert found["y"].shape == (expected,)


def test_what_fails_for_these_sizes_too_says_so():
    nodes = [node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)]
    proto = model(nodes, [("x", F, ("n", "m")), ("axes", I, (1,))], [("y", F, 2)])
    session = df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"])
    with pytest.raises(df.InputError, match=r"ReduceSum 'y', opset 18.*axis 7"):
        session.run({"x": np.ones((2, 3), np.float32), "axes": np.array([7])})


def test_sizes_are_data_and_data_are_sizes():
    """A causal mask, lengths by other arithmetic than sums and products, repetitions: nothing is a region."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Gather", ["shape", "one"], ["n"]),
        node("Range", ["zero", "n", "one"], ["at"]),
        node("Unsqueeze", ["at", "last"], ["rows"]),
        node("GreaterOrEqual", ["rows", "at"], ["mask"]),
        node("Where", ["mask", "x3", "low"], ["masked"]),
        node("Cast", ["n"], ["f"], to=F),
        node("Sqrt", ["f"], ["root"]),
        node("Ceil", ["root"], ["up"]),
        node("Cast", ["up"], ["times"], to=I),
        node("Reshape", ["times", "flat"], ["list"]),
        node("Tile", ["x", "repeats"], ["tiled"]),
        node("Concat", ["list", "list"], ["repeats"], axis=0),
    ]
    order = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12, 11]
    first = [node("Unsqueeze", ["x", "last"], ["x3"])]
    stored = [("zero", np.array(0)), ("one", np.array(1)), ("last", np.array([1])), ("flat", np.array([-1]))]
    stored.append(("low", np.float32(-1e9)))
    inputs = [("x", F, ("b", "n"))]
    outputs = [("tiled", F, 2), ("mask", B, 2)]
    proto = model([*first, *(nodes[i] for i in order)], inputs, outputs, stored)
    for shape in ((1, 1), (2, 5), (3, 4)):
        loaded = check(proto, {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)})
    session = df.Session(loaded, devices=["cpu"])
    plan = session.plan((2, 7))
    assert plan.outputs["tiled"].type.sizes == (6, 21)
    assert not any(word in str(plan) for word in ("sizes", "read_shape", "range"))


def test_a_tensor_that_is_filled_for_some_sizes_is_no_weight():
    """One program's constants were found under the name of another's, which was made for other sizes."""
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("ConstantOfShape", ["shape"], ["filled"], value=onnx.numpy_helper.from_array(np.float32([0.25]))),
        node("Slice", ["filled", "zero", "many"], ["part"]),
        node("Add", ["part", "filled"], ["sum"]),
        node("ReduceSum", ["x", "axes"], ["y"], keepdims=1),
    ]
    stored = [("zero", np.array([0])), ("many", np.array([99]))]
    inputs = [("x", F, ("n", "m")), ("axes", I, (1,))]
    proto = model(nodes, inputs, [("sum", F, 2), ("y", F, 2)], stored)
    loaded = load_bytes(proto.SerializeToString())
    assert not loaded.parameters
    session = df.Session(loaded, devices=["cpu"])
    for shape in ((2, 2), (4, 4), (3, 5)):
        found = session.run({"x": np.ones(shape, np.float32), "axes": np.array([1])})
        np.testing.assert_array_equal(found["sum"], np.full(shape, 0.5, np.float32))


def test_a_session_keeps_the_weights_of_its_moment_whenever_it_meets_a_size(monkeypatch):
    """Graphs for some inputs were kept across ``reload``, and made with the weights of the day they were asked for."""
    loaded = load_bytes(squeezed().SerializeToString())
    session = df.Session(loaded, devices=["cpu"])
    x = {rows: np.ones((rows, 4), np.float32) for rows in (2, 3)}
    sums = {rows: -(array @ W).sum(-1) for rows, array in x.items()}
    np.testing.assert_allclose(session.run(x[2])["z"], sums[2], rtol=1e-5)
    loaded.parameters["w"].set(2 * W)
    np.testing.assert_allclose(session.run(x[3])["z"], sums[3], rtol=1e-5)
    session.reload()
    for rows in (2, 3):
        np.testing.assert_allclose(session.run(x[rows])["z"], 2 * sums[rows], rtol=1e-5)
    monkeypatch.setattr("dataflow.graph_runs.bind", lambda *_: pytest.fail("it was bound before"))
    session.run(x[2])  # sizes that it has seen cost no attempt


def test_what_was_computed_for_all_sizes_is_computed_again_for_those_of_the_inputs():
    """A constant of the graph for all sizes, named alike, stood for that of the graph for some: wrong values."""
    nodes = [
        node("Shape", ["x"], ["begin"]),
        node("Add", ["begin", "one"], ["end"]),
        node("Slice", ["x", "begin", "end", "zero"], ["beyond"]),  # of no elements, but of 1 for sizes that fit
        node("Shape", ["beyond"], ["shape"]),
        node("Less", ["index", "shape"], ["mask"]),
        node("Where", ["mask", "index", "many"], ["y"]),
    ]
    stored = [("zero", np.array([0])), ("one", np.array([1])), ("index", np.arange(3)), ("many", np.array(9))]
    proto = model(nodes, [("x", F, ("n",))], [("y", I, 1)], stored)
    for size in (2, 3):
        check(proto, {"x": np.ones(size, np.float32)})


def test_values_that_are_guessed_take_no_conversion_of_the_nodes_before(monkeypatch):
    """Each guess converts the node that asks again: a detector of thousands of nodes was converted for each value."""
    nodes = [node("MatMul", ["x", "w"], ["h.0"])]
    for step in range(4):  # each asks for a value
        nodes += [
            node("Slice", ["k", "zero", "one"], [f"axis.{step}"]),
            node("Add", [f"axis.{step}", f"axis.{step}"], [f"by.{step}"]),
            node("ReduceSum", [f"h.{step}", f"by.{step}"], [f"h.{step + 1}"], keepdims=1),
        ]
    stored = [("zero", np.array([0])), ("one", np.array([1])), ("w", W)]
    proto = model(nodes, [("x", F, (2, 4)), ("k", I, (2,))], [("h.4", F, 2)], stored)
    converted = []
    convert = Importer.convert
    monkeypatch.setattr(Importer, "convert", lambda self, node: converted.append(node.op) or convert(self, node))
    loaded = load_bytes(proto.SerializeToString())
    assert list(loaded.parameters) == ["w"]
    assert converted.count("MatMul") == 3  # for all sizes, and for two guesses
    feeds = {"x": np.ones((2, 4), np.float32), "k": np.zeros(2, np.int64)}
    found = df.Session(loaded, devices=["cpu"]).run(feeds)["h.4"]
    np.testing.assert_allclose(found, 2 * W.sum(0, keepdims=True), rtol=1e-6)


def test_sizes_that_are_too_small_are_tried_once(monkeypatch):
    """No guess helps a network that halves an image too often."""
    nodes = [node("MaxPool", ["x"], ["h"], kernel_shape=[8, 8], strides=[8, 8]), *[node("Shape", ["h"], ["s"])]]
    nodes += [node("Gather", ["s", "two"], ["rows"]), node("Equal", ["rows", "one"], ["single"])]
    branches = {
        "then_branch": graph("then", [node("Squeeze", ["h", "two_"], ["t"])], ["t"]),
        "else_branch": graph("else", [node("Neg", ["h"], ["e"])], ["e"]),
    }
    nodes.append(node("If", ["single"], ["y"], **branches))
    nodes.append(node("ReduceSum", ["y", "last"], ["z"], keepdims=0))
    stored = [(name, np.array(value)) for name, value in (("two", 2), ("one", 1), ("two_", [2]), ("last", [-1]))]
    proto = model(nodes, [("x", F, (1, 1, "height", "width"))], [("z", F, 3)], stored)
    tried = []
    run = Importer.run
    monkeypatch.setattr(Importer, "run", lambda self, *rest: tried.append(self.types) or run(self, *rest))
    load_bytes(proto.SerializeToString())
    assert [t["x"].sizes[2] if t else None for t in tried] == [None, 2, 32]


def branching():
    """A branch on how many rows are positive, whose results differ in rank; behind it what both give is one."""
    nodes = [
        node("ReduceSum", ["x", "last"], ["sums"], keepdims=0),
        node("Greater", ["sums", "nought"], ["good"]),
        node("Compress", ["x", "good"], ["kept"], axis=0),
        node("Shape", ["kept"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"]),
        node("Equal", ["rows", "zero"], ["none"]),
        node(
            "If", ["none"], ["b"],
            then_branch=graph("then", [node("Gather", ["x", "zero"], ["t"])], ["t"]),
            else_branch=graph("else", [node("MatMul", ["kept", "w"], ["e"])], ["e"]),
        ),
        node("ReduceSum", ["b"], ["y"], keepdims=0),
    ]  # fmt: skip
    stored = [("zero", np.array(0)), ("last", np.array([-1])), ("nought", np.float32(0)), ("w", W)]
    return model(nodes, [("x", F, ("n", 4))], [("y", F, 0)], stored)


def test_values_that_decide_are_guessed_from_the_runs_before(monkeypatch):
    from dataflow.graph_runs import GraphRuns

    proto = branching()
    session = df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"])
    reference = ReferenceEvaluator(proto)
    runs, computed = [], GraphRuns.run
    monkeypatch.setattr(GraphRuns, "run", lambda self, *given: runs.append(self) or computed(self, *given))
    some = np.array([[1, 2, 3, 4], [-1, -2, -3, -4], [1, 1, 1, 1]], np.float32)
    others, none = some[[2, 0, 0]], -np.abs(some)
    counts = []
    for x in (some, some, some, others, none, none, none, some, some):
        runs.clear()
        (expected,) = reference.run(None, {"x": x})
        np.testing.assert_allclose(session.run(x)["y"], expected, rtol=1e-6)
        counts.append(len(runs))
    # once it came twice one run is enough; the first with another value is in vain, then the new one comes twice
    assert counts[2:4] == [1, 1]
    assert counts[6] == 1
    assert max(counts[4:]) <= 3
    out = np.empty((), np.float32)
    session.run(some, out={"y": out})
    np.testing.assert_allclose(out, reference.run(None, {"x": some})[0], rtol=1e-6)
    assert list(session.run(some, outputs=["kept"])) == ["kept"]


@pytest.mark.parametrize("error", [df.LimitExceeded, df.OutOfMemoryError, df.ModelError, df.InputError])
def test_a_guess_that_fails_is_no_failure(monkeypatch, error):
    from dataflow.graph_runs import GraphRuns

    session = df.Session(load_bytes(branching().SerializeToString()), devices=["cpu"])
    x = np.ones((3, 4), np.float32)
    expected = [session.run(x)["y"] for _ in range(2)][-1]
    failing, computed = [error("of other sizes")], GraphRuns.run

    def run(self, *given):
        if failing:
            raise failing.pop()
        return computed(self, *given)

    monkeypatch.setattr(GraphRuns, "run", run)
    np.testing.assert_array_equal(session.run(x)["y"], expected)
    assert not failing


def test_what_was_asked_of_a_size_that_is_data_is_known_then():
    """How often a loop runs whose inner shapes differ is the least of a number and of how many rows were chosen."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Range", ["zero", "i", "one"], ["before"]),
         node("ReduceSum", ["before"], ["row"], keepdims=0)],
        "body",
        [helper.make_tensor_value_info("i", I, []), helper.make_tensor_value_info("go", B, [])],
        [helper.make_tensor_value_info("on", B, []), helper.make_tensor_value_info("row", I, [])],
    )  # fmt: skip
    nodes = [
        node("ReduceSum", ["x", "last"], ["sums"], keepdims=0),
        node("Greater", ["sums", "nought"], ["good"]),
        node("Compress", ["x", "good"], ["kept"], axis=0),
        node("Slice", ["kept", "first", "three"], ["few"]),
        node("Shape", ["few"], ["shape"]),
        node("Gather", ["shape", "zero"], ["rows"]),
        node("Loop", ["rows", ""], ["y"], body=body),
    ]
    numbers = {"zero": 0, "one": 1, "last": [-1], "first": [0], "three": [3]}
    stored = [("nought", np.float32(0)), *((name, np.array(n)) for name, n in numbers.items())]
    loaded = load_bytes(model(nodes, [("x", F, ("n", 4))], [("y", I, 1)], stored).SerializeToString())
    session = df.Session(loaded, devices=["cpu"])
    for count in (1, 2, 3, 5):
        x = np.where(np.arange(6)[:, None] < count, 1, -np.ones((6, 4), np.float32))
        np.testing.assert_array_equal(session.run(x)["y"], [0, 0, 1][: min(count, 3)])


def test_crops_by_fed_corners_of_a_batch_of_any_size():
    """TensorFlow's converter writes a loop over boxes, each cut by computed corners out of the image that it is of."""
    nodes = [
        node("Shape", ["x"], ["kept"], start=0, end=2),
        node("Concat", ["kept", "wanted"], ["sizes"], axis=0),
        node("Concat", ["zeros", "begin", "ones", "end"], ["roi"], axis=0),
        node(
            "Resize", ["x", "roi", "", "sizes"], ["y"], mode="linear", extrapolation_value=7.0,
            coordinate_transformation_mode="tf_crop_and_resize",
        ),
    ]  # fmt: skip
    stored = [("wanted", np.array([3, 5])), ("zeros", np.zeros(2, np.float32)), ("ones", np.ones(2, np.float32))]
    inputs = [("x", F, ("n", 2, 6, 7)), ("begin", F, (2,)), ("end", F, (2,))]
    proto = model(nodes, inputs, [("y", F, 4)], stored)
    session = df.Session(load_bytes(proto.SerializeToString()), devices=["cpu"])
    peer = onnxruntime.InferenceSession(proto.SerializeToString())
    for n, begin, end in [(1, (0.1, 0.2), (0.7, 0.9)), (3, (0.1, 0.2), (0.7, 0.9)), (3, (0.4, -0.2), (1.3, 0.5))]:
        x = np.arange(n * 84, dtype=np.float32).reshape(n, 2, 6, 7)
        feeds = {"x": x, "begin": np.array(begin, np.float32), "end": np.array(end, np.float32)}
        np.testing.assert_allclose(session.run(feeds)["y"], peer.run(None, feeds)[0], rtol=1e-5)


def test_a_run_that_decides_often_keeps_its_programs(monkeypatch):
    """Each of 24 iterations of a loop that grows decides whether there is another; more than a session keeps plans."""
    tokens = np.roll(np.arange(30), -1)  # each is followed by the next
    stored = {"after": tokens, "last": np.array([-1]), "end": np.array(26), "true": np.array(True)}
    body_nodes = [
        helper.make_node("Gather", ["ids", "last"], ["token"]),
        helper.make_node("Gather", ["after", "token"], ["next"]),
        helper.make_node("Concat", ["ids", "next"], ["grown"], axis=0),
        helper.make_node("Squeeze", ["next"], ["scalar"]),
        helper.make_node("Equal", ["scalar", "end"], ["ended"]),
        helper.make_node("Not", ["ended"], ["go"]),
    ]
    value = helper.make_tensor_value_info
    inputs = [
        value("i", TensorProto.INT64, []),
        value("c", TensorProto.BOOL, []),
        value("ids", TensorProto.INT64, None),
    ]
    outputs = [value("go", TensorProto.BOOL, []), value("grown", TensorProto.INT64, None)]
    loop = helper.make_node(
        "Loop", ["", "true", "start"], ["y"], body=helper.make_graph(body_nodes, "b", inputs, outputs)
    )
    start, y = ("start", TensorProto.INT64, [1]), ("y", TensorProto.INT64, ["T"])
    model = load_bytes(onnx_model([loop], [start], [y], stored.items()).SerializeToString())
    session = df.Session(model, devices=["cpu"])
    expected = {first: np.arange(first, 27) for first in (2, 3)}
    for _ in range(2):
        for first, found in expected.items():
            np.testing.assert_array_equal(session.run({"start": np.array([first])})["y"], found)
    made = []
    original = Engine.compile
    monkeypatch.setattr(Engine, "compile", lambda *given, **more: made.append(1) or original(*given, **more))
    for first, found in expected.items():
        np.testing.assert_array_equal(session.run({"start": np.array([first])})["y"], found)
    assert not made
