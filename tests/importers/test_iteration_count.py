"""Loops whose condition counts, as TensorFlow's converter writes recurrences: against onnxruntime."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

import dataflow as df
from dataflow_onnx.loading import load_bytes

INT, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def looped(limit, start, bound, step, comparison, first=True):
    """A file: h = tanh(h w) while ``comparison(i, bound)``, each h stacked, w carried; the bound is a number or a name.

    ``first``: before the first iteration the condition is that of ``start``; else it is true.
    """
    stored = {"one": np.int64(1), "step": np.int64(step), "start": np.int64(start), "true": np.array(True)}
    stored |= {"w": np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)}
    stored |= {} if limit is None else {"limit": np.int64(limit)}
    size = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Gather", ["shape", "zero"], ["bound"])]
    stored |= {"zero": np.int64(0)} if isinstance(bound, str) else {"bound": np.int64(bound)}
    node = helper.make_node
    body = helper.make_graph(
        [
            node("Add", ["i", "step"], ["more"]),
            node("Cast", ["more"], ["left"], to=FLOAT),
            node("Cast", ["bound"], ["right"], to=FLOAT),
            node(comparison, ["left", "right"], ["counted"]),
            node("And", ["counted", "counted"], ["on"]),
            node("MatMul", ["h", "u"], ["hu"]),
            node("Tanh", ["hu"], ["next"]),
            node("Identity", ["u"], ["same"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("k", INT, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("i", INT, []),
            helper.make_tensor_value_info("u", FLOAT, [3, 3]),
            helper.make_tensor_value_info("h", FLOAT, [1, 3]),
        ],
        [helper.make_empty_tensor_value_info(name) for name in ("on", "more", "same", "next", "next_row")],
    )
    body.node.append(node("Identity", ["next"], ["next_row"]))
    nodes = [
        *(size if isinstance(bound, str) else []),
        node("Cast", ["start"], ["left0"], to=FLOAT),
        node("Cast", ["bound"], ["right0"], to=FLOAT),
        node(comparison, ["left0", "right0"], ["before"]),
        node("Loop", ["" if limit is None else "limit", "before" if first else "true", "start", "w", "h0"],
             ["i_end", "u_end", "h_end", "rows"], body=body),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "loops",
        [
            helper.make_tensor_value_info("x", FLOAT, [bound if isinstance(bound, str) else 2]),
            helper.make_tensor_value_info("h0", FLOAT, [1, 3]),
        ],
        [helper.make_empty_tensor_value_info(name) for name in ("i_end", "h_end", "rows")],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


def compare(data, *sizes):
    """The file's results at each size of x, by onnxruntime; the model."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    theirs = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    model = load_bytes(data)
    session = df.Session(model, devices=["cpu"])
    for size in sizes:
        feeds = {"x": np.zeros(size, np.float32), "h0": np.full((1, 3), 0.5, np.float32)}
        found = session.run(feeds)
        for name, wanted in zip(("i_end", "h_end", "rows"), theirs.run(None, feeds), strict=True):
            np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-6)
    return model


def ops_of(model):
    return {node.op.name for node in model.graph.nodes}


@pytest.mark.parametrize(
    ("limit", "start", "bound", "step", "comparison"),
    [
        (10, 0, 10, 1, "Less"),  # the condition turns false with the last iteration
        (4, 0, 10, 1, "Less"),
        (10, 0, 4, 1, "Less"),
        (10, 7, 9, 1, "LessOrEqual"),
        (None, 0, 5, 1, "Less"),
        (10, 5, 2, -1, "Greater"),
        (10, 5, 2, -1, "GreaterOrEqual"),
        (3, 0, 2, -1, "Less"),  # it moves away from the bound
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_condition_that_counts_to_a_number(limit, start, bound, step, comparison, first):
    assert "loop" not in ops_of(compare(looped(limit, start, bound, step, comparison, first), 2))


def test_a_condition_that_is_false_after_the_first_iteration():
    assert "loop" not in ops_of(compare(looped(10, 3, 2, 1, "Less", first=False), 2))


@pytest.mark.parametrize("limit", [None, 100, 3])
def test_a_condition_that_counts_to_a_size(limit):
    assert "loop" not in ops_of(compare(looped(limit, 0, "n", 1, "Less"), 5, 1, 3, 2, 7, 0))


def test_steps_that_do_not_fit_a_size_stay_a_loop():
    compare(looped(9, 0, "n", 2, "Less"), 5, 2, 4)


def test_a_weight_that_a_loop_carries_is_trained():
    model = load_bytes(looped(None, 0, "n", 1, "Less"))
    assert [name for name, p in model.parameters.items() if p.trainable] == ["w"]
    batch = {
        "x": np.zeros(3, np.float32),
        "h0": np.full((1, 3), 0.5, np.float32),
        "labels": np.ones((1, 3), np.float32),
    }
    with df.Trainer(model, "mse", df.optim.SGD(0.1), output="h_end", devices=["cpu"], metrics=[]) as trainer:
        losses = [float(trainer.step(batch)) for _ in range(3)]
    assert losses[2] < losses[1] < losses[0]


def of_one_element(step):
    """A file as Paddle's converter writes it: counts and conditions of one element, the weight stored in the body."""
    node = helper.make_node
    stored = {"w": np.eye(3, dtype=np.float32) / 2, "one": np.ones(1, np.float32), "four": np.array([4], np.int32)}
    stored["step"] = np.array([step], np.float32)
    body = helper.make_graph(
        [
            node("MatMul", ["x_in", "w"], ["x_out"]),
            node("Cast", ["i"], ["float"], to=FLOAT),
            node("Mul", ["float", "one"], ["scaled"]),
            node("Add", ["scaled", "step"], ["sum"]),
            node("Cast", ["sum"], ["more"], to=TensorProto.INT32),
            node("Less", ["more", "four"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("k", INT, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, [1]),
            helper.make_tensor_value_info("x_in", FLOAT, ["n", 3]),
            helper.make_tensor_value_info("i", TensorProto.INT32, [1]),
        ],
        [helper.make_empty_tensor_value_info(name) for name in ("on", "x_out", "more")],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    outer = {"true": np.array([True]), "zero": np.zeros(1, np.int32)}
    graph = helper.make_graph(
        [node("Loop", ["", "true", "x", "zero"], ["y", "count"], body=body)],
        "loops",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", FLOAT, ["n", 3])],
        [numpy_helper.from_array(array, name) for name, array in outer.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9).SerializeToString()


@pytest.mark.parametrize(("step", "kind"), [(1, "scan"), (2, "loop")])
def test_counts_and_conditions_of_one_element(step, kind):
    x = np.random.default_rng(0).standard_normal((2, 3)).astype(np.float32)
    theirs = onnxruntime.InferenceSession(of_one_element(step), providers=["CPUExecutionProvider"])
    model = load_bytes(of_one_element(step))
    assert kind in ops_of(model)
    np.testing.assert_allclose(
        df.Session(model, devices=["cpu"]).run({"x": x})["y"], theirs.run(None, {"x": x})[0], rtol=1e-6
    )


def test_a_weight_that_is_stored_in_a_body_is_trained_and_saved(tmp_path):
    model = load_bytes(of_one_element(1))
    batch = {"x": np.ones((2, 3), np.float32), "labels": np.ones((2, 3), np.float32)}
    with df.Trainer(model, "mse", df.optim.SGD(0.1), output="y", devices=["cpu"], metrics=[]) as trainer:
        losses = [float(trainer.step(batch)) for _ in range(3)]
        (wanted,) = trainer.predict({"x": batch["x"]}).values()
    assert losses[2] < losses[0]
    df.save(model, tmp_path / "trained.onnx")
    theirs = onnxruntime.InferenceSession(tmp_path / "trained.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(theirs.run(None, {"x": batch["x"]})[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("returned", ["Identity (c)", "Constant <value: tensor = bool {1}> ()"])
def test_a_loop_that_grows_and_that_nothing_ends_is_refused_at_once(returned):
    """It was written out, for half a minute, until it had too many iterations."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    grown (float[T, 3] x, float[1] start) => (float[U] y) {
      yes = Constant <value: tensor = bool {1}> ()
      y = Loop ("", yes, start) <body = step (int64 i, bool c, float[K] s) => (bool go, float[M] u) {
        go = RETURNED
        row = Gather (x, i)
        u = Concat <axis = 0> (s, row)
      }>
    }
    """
    model = parser.parse_model(text.replace("RETURNED", returned))
    with pytest.raises(df.ModelError, match=r"Loop 'y'.*nothing ends it"):
        load_bytes(model.SerializeToString())


def test_a_body_whose_condition_reads_itself_is_refused():
    """Nobody follows it in a circle to see whether something ends the loop."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    grown (float[T, 3] x, float[1] start) => (float[U] y) {
      yes = Constant <value: tensor = bool {1}> ()
      y = Loop ("", yes, start) <body = step (int64 i, bool c, float[K] s) => (bool go, float[M] u) {
        other = Identity (go)
        go = Identity (other)
        row = Gather (x, i)
        u = Concat <axis = 0> (s, row)
      }>
    }
    """
    with pytest.raises(df.ModelError, match="which nothing before it defines"):
        load_bytes(parser.parse_model(text).SerializeToString())
