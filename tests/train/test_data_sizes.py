"""Training through shapes that depend on data: rows that a router chooses, counts, columns; against dense forms."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from dataflow.lower.template import Template
from dataflow.lower.templates import Templates
from dataflow_onnx.loading import load_bytes
from tests.support import onnx_model

node = helper.make_node
EXPERTS, WIDTH, OUT = 3, 4, 2
RANDOM = np.random.default_rng(3)
ROUTER = RANDOM.standard_normal((WIDTH, EXPERTS)).astype(np.float32)
WEIGHTS = [RANDOM.standard_normal((WIDTH, OUT)).astype(np.float32) for _ in range(EXPERTS)]
FIRST = (RANDOM.standard_normal((WIDTH, WIDTH)) / 2).astype(np.float32)


def proto(nodes, stored, out="y", inputs=(("x", TensorProto.FLOAT, ["rows", WIDTH]),)):
    return onnx_model(nodes, inputs, [(out, TensorProto.FLOAT, None)], stored)


def experts(*, dense=False, dropout=False):
    """Two of three experts for each row, as exporters write them; dense: each for all rows, masked."""
    nodes = [
        node("MatMul", ["x", "first"], ["h0"]),
        node("Tanh", ["h0"], ["h1"]),
        node("Dropout", ["h1", "ratio"], ["h"]) if dropout else node("Identity", ["h1"], ["h"]),
        node("MatMul", ["h", "router"], ["logits"]),
        node("TopK", ["logits", "two"], ["values", "indices"]),
        node("Softmax", ["values"], ["gates"]),
        node("MatMul", ["h", "zeros"], ["sum"]),
    ]
    total = "sum"
    for e in range(EXPERTS):
        nodes.append(node("Equal", ["indices", f"e{e}"], [f"hit{e}"]))
        if dense:
            nodes += [
                node("Where", [f"hit{e}", "gates", "none"], [f"part{e}"]),
                node("ReduceSum", [f"part{e}", "one"], [f"g{e}"]),
                node("MatMul", ["h", f"w{e}"], [f"z{e}"]),
                node("Tanh", [f"z{e}"], [f"t{e}"]),
                node("Mul", [f"t{e}", f"g{e}"], [f"m{e}"]),
                node("Add", [total, f"m{e}"], [f"sum{e}"]),
            ]
        else:
            nodes += [
                node("NonZero", [f"hit{e}"], [f"where{e}"]),
                node("Gather", [f"where{e}", "nought"], [f"row{e}"], axis=0),
                node("Transpose", [f"where{e}"], [f"at{e}"], perm=[1, 0]),
                node("Gather", ["h", f"row{e}"], [f"x{e}"], axis=0),
                node("MatMul", [f"x{e}", f"w{e}"], [f"z{e}"]),
                node("Tanh", [f"z{e}"], [f"t{e}"]),
                node("GatherND", ["gates", f"at{e}"], [f"g{e}"]),
                node("Unsqueeze", [f"g{e}", "one"], [f"c{e}"]),
                node("Mul", [f"t{e}", f"c{e}"], [f"m{e}"]),
                node("Unsqueeze", [f"row{e}", "one"], [f"rows{e}"]),
                node("ScatterND", [total, f"rows{e}", f"m{e}"], [f"sum{e}"], reduction="add"),
            ]
        total = f"sum{e}"
    nodes[-1].output[0] = "y"
    stored = [("first", FIRST), ("router", ROUTER), ("two", np.array([2])), ("one", np.array([1]))]
    stored += [("zeros", np.zeros((WIDTH, OUT), np.float32)), ("none", np.float32(0)), ("nought", np.array(0))]
    stored += [(f"w{e}", w) for e, w in enumerate(WEIGHTS)] + [(f"e{e}", np.array(e)) for e in range(EXPERTS)]
    used = {name for n in nodes for name in n.input}
    if dropout:
        stored.append(("ratio", np.float32(0.25)))
    return proto(nodes, [(name, array) for name, array in stored if name in used | {"ratio"}])


TRAINED = ["first", "router", *(f"w{e}" for e in range(EXPERTS))]


def batches(count=4, rows=(6, 5)):
    random = np.random.default_rng(5)
    found = []
    for index in range(count):
        size = rows[index % len(rows)]
        x, labels = random.standard_normal((size, WIDTH)), random.standard_normal((size, OUT))
        found.append({"x": x.astype(np.float32), "labels": labels.astype(np.float32)})
    return found


def trainer(model, **options):
    given = {"loss": "mse", "optimizer": df.optim.Adam(lr=0.05), "trainable": TRAINED, "devices": ["cpu"], "threads": 1}
    return df.Trainer(load_bytes(model.SerializeToString()), **{**given, **options})


def exact_loss(parameters, batch):
    """The mean square error, in float64."""
    h = np.tanh(batch["x"].astype(np.float64) @ parameters["first"])
    logits = h @ parameters["router"]
    order = np.argsort(-logits, axis=1, kind="stable")[:, :2]
    values = np.take_along_axis(logits, order, 1)
    gates = np.exp(values - values.max(1, keepdims=True))
    gates /= gates.sum(1, keepdims=True)
    y = np.zeros((len(h), OUT))
    for e in range(EXPERTS):
        y += (gates * (order == e)).sum(1, keepdims=True) * np.tanh(h @ parameters[f"w{e}"])
    return np.square(y - batch["labels"]).mean()


def test_gradients_of_routed_experts_against_differences_in_float64():
    (batch,) = batches(1)
    with trainer(experts()) as own:
        weight = own.forward(batch)["weight"]
        own.backward()
        gradients = {name: own.gradients[name] / weight for name in TRAINED}
        parameters = {name: own.model.parameters[name].array.astype(np.float64) for name in TRAINED}
    for name, gradient in gradients.items():
        expected = np.zeros_like(parameters[name])
        for index in np.ndindex(expected.shape):
            found = []
            for step in (1e-6, -1e-6):
                moved = parameters[name].copy()
                moved[index] += step
                found.append(exact_loss({**parameters, name: moved}, batch))
            expected[index] = (found[0] - found[1]) / 2e-6
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"accumulate": 2},
        {"dropout": True, "seed": 4},
        {"clip_norm": 0.1, "devices": ["numpy"]},
        {"update": "as_ready"},
        {"fuse": False, "average": "ema"},
    ],
    ids=["plain", "accumulated", "dropout", "clipped", "as ready", "averaged"],
)
def test_training_agrees_with_experts_that_compute_all_rows(options):
    drops = bool(options.get("dropout"))
    losses, found, evaluated = [], [], []
    for dense in (False, True):
        with trainer(experts(dense=dense, dropout=drops), **options) as own:
            losses.append([own.step(batch) for batch in batches()])
            evaluated.append(own.evaluate(batches(1)[0])["loss"])
            found.append({name: own.model.parameters[name].array for name in TRAINED})
    np.testing.assert_allclose(*losses, rtol=2e-5)
    np.testing.assert_allclose(*evaluated, rtol=2e-5)
    for name in TRAINED:
        np.testing.assert_allclose(found[0][name], found[1][name], rtol=2e-4, atol=2e-5, err_msg=name)


def test_program_by_program_and_resumed_they_train_alike_bit_for_bit(tmp_path):
    with trainer(experts()) as full:
        for batch in batches():
            full.step(batch)
        expected = {name: array.tobytes() for name, array in full.programs.state().items()}
    data = {key: np.concatenate([b[key] for b in batches()]) for key in ("x", "labels")}
    with trainer(experts()) as apart:
        for batch in batches():
            apart.forward(batch)
            apart.backward()
            apart.update()
        assert {name: array.tobytes() for name, array in apart.programs.state().items()} == expected
    with trainer(experts()) as through:
        through.fit(data, epochs=3, batch_size=8, progress=False)
        expected = {name: array.tobytes() for name, array in through.programs.state().items()}
    for epochs in (1, 3):
        with trainer(experts()) as resumed:
            resumed.fit(data, epochs=epochs, batch_size=8, checkpoint=tmp_path / "kept", resume="auto", progress=False)
            found = {name: array.tobytes() for name, array in resumed.programs.state().items()}
    assert found == expected


def test_the_loss_falls_and_onnxruntime_agrees_with_what_is_saved(tmp_path):
    (batch,) = batches(1)
    model = load_bytes(experts().SerializeToString())
    with df.Trainer(model, "mse", df.optim.Adam(lr=0.05), trainable=TRAINED, devices=["cpu"], threads=1) as own:
        losses = [own.step(batch) for _ in range(6)]
        ours = own.predict({"x": batch["x"]})["y"]
    assert losses[-1] < 0.8 * losses[0]
    df.save(model, str(tmp_path / "tuned.onnx"))
    (theirs,) = onnxruntime.InferenceSession(str(tmp_path / "tuned.onnx")).run(None, {"x": batch["x"]})
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_other_counts_of_rows_are_other_numbers_of_what_was_lowered(monkeypatch):
    given, found = batches(6, rows=(9, 8)), []
    for alone in (False, True):
        made: list[object] = []
        with monkeypatch.context() as patch:
            at = Template.at
            patch.setattr(Template, "at", lambda *args, at=at, made=made: made.append(at(*args)) or made[-1])
            if alone:
                patch.setattr(Templates, "lowered", lambda self, sized, how, lower: lower(sized.make(sized.sizes)))
            with trainer(experts()) as own:
                steps = [own.step(batch) for batch in given]
                found.append((steps, {name: array.tobytes() for name, array in own.programs.state().items()}))
        assert alone or sum(one is not None for one in made) > 1
    assert found[0] == found[1]


def test_an_expert_without_rows_has_gradients_of_zero_and_frozen_ones_none():
    (batch,) = batches(1)
    batch["x"][:] = 1  # all rows choose alike
    with trainer(experts()) as own:
        own.freeze("first")
        own.forward(batch)
        own.backward()
        norms = {name: float(np.abs(own.gradients[name]).max()) for name in own.gradients}
    assert "first" not in norms
    assert sorted(bool(norms[f"w{e}"]) for e in range(EXPERTS)) == [False, True, True]


def compressed():
    """Rows whose sum is positive, of these the columns whose is not."""
    nodes = [
        node("MatMul", ["x", "first"], ["h"]),
        node("ReduceSum", ["h", "one"], ["sum"], keepdims=0),
        node("Greater", ["sum", "none"], ["good"]),
        node("Compress", ["h", "good"], ["k"], axis=0),
        node("ReduceSum", ["k", "nought"], ["sums"], keepdims=0),
        node("Less", ["sums", "top"], ["columns"]),
        node("Compress", ["k", "columns"], ["l"], axis=1),
        node("ReduceSumSquare", ["l"], ["y"], keepdims=0),
    ]
    stored = [("first", FIRST), ("one", np.array([1])), ("nought", np.array([0])), ("none", np.float32(0))]
    return proto(nodes, [*stored, ("top", np.float32(2))])


def compressed_gradient(x):
    h = x @ FIRST.astype(np.float64)
    rows = h.sum(1) > 0
    columns = h[rows].sum(0) < 2
    return x.T @ (2 * h * rows[:, None] * columns)


def counted():
    """The largest elements of a column, as many as are positive."""
    nodes = [
        node("MatMul", ["x", "first"], ["h"]),
        node("Gather", ["h", "two"], ["column"], axis=1),
        node("Greater", ["column", "none"], ["good"]),
        node("Cast", ["good"], ["ones"], to=TensorProto.INT64),
        node("ReduceSum", ["ones"], ["count"], keepdims=0),
        node("Reshape", ["count", "one"], ["k"]),
        node("TopK", ["column", "k"], ["best", ""], axis=0),
        node("ReduceSumSquare", ["best"], ["y"], keepdims=0),
    ]
    return proto(nodes, [("first", FIRST), ("two", np.array(2)), ("none", np.float32(0)), ("one", np.array([1]))])


def counted_gradient(x):
    h = x @ FIRST.astype(np.float64)
    return x.T @ (2 * np.maximum(h, 0) * (np.arange(WIDTH) == 2))


def along_an_axis():
    """The sums along an axis that the largest sum chooses: the graph is made for each."""
    nodes = [
        node("MatMul", ["x", "first"], ["h"]),
        node("ReduceSum", ["h", "nought"], ["sums"], keepdims=0),
        node("ArgMax", ["sums"], ["best"], axis=0, keepdims=1),
        node("Mod", ["best", "two"], ["axis"]),
        node("ReduceSum", ["h", "axis"], ["s"], keepdims=0),
        node("ReduceSumSquare", ["s"], ["y"], keepdims=0),
    ]
    stored = [("first", FIRST), ("nought", np.array([0])), ("two", np.array([2]))]
    model = proto(nodes, stored)
    model.graph.output[0].type.tensor_type.shape.SetInParent()
    return model


def along_an_axis_gradient(x):
    h = x @ FIRST.astype(np.float64)
    axis = int(h.sum(0).argmax() % 2)
    return x.T @ np.broadcast_to(2 * h.sum(axis, keepdims=True), h.shape)


def branches():
    """The rows times one matrix, or the first one times another, by the sign of a sum."""
    bodies = {
        "then_branch": ([node("MatMul", ["h", "w0"], ["p"])], "p"),
        "else_branch": ([node("Slice", ["h", "nought", "one"], ["r"]), node("MatMul", ["r", "w1"], ["q"])], "q"),
    }
    graphs = {
        key: helper.make_graph(nodes, key, [], [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)])
        for key, (nodes, out) in bodies.items()
    }
    nodes = [
        node("MatMul", ["x", "first"], ["h"]),
        node("ReduceSum", ["h"], ["sum"], keepdims=0),
        node("Greater", ["sum", "none"], ["good"]),
        node("If", ["good"], ["z"], **graphs),
        node("ReduceSumSquare", ["z"], ["y"], keepdims=0),
    ]
    stored = [("first", FIRST), ("none", np.float32(0)), ("nought", np.array([0])), ("one", np.array([1]))]
    model = proto(nodes, [*stored, ("w0", WEIGHTS[0]), ("w1", WEIGHTS[1])])
    model.graph.output[0].type.tensor_type.shape.SetInParent()
    return model


def test_branches_of_other_shapes_train_what_the_batch_takes():
    options = {"loss": df.losses.output("y"), "trainable": ["first", "w*"], "optimizer": df.optim.SGD(lr=0.001)}
    signs = set()
    with trainer(branches(), **options) as own:
        for batch in batches() * 2:
            stored = {name: p.array.astype(np.float64) for name, p in own.model.parameters.items()}
            h = batch["x"] @ stored["first"]
            taken = int(h.sum() <= 0)
            signs.add(taken)
            rows = h[:1] if taken else h
            z = rows @ stored[f"w{taken}"]
            np.testing.assert_allclose(own.predict({"x": batch["x"]})["y"], np.square(z).sum(), rtol=1e-4)
            weight = own.forward({"x": batch["x"]})["weight"]
            own.backward()
            np.testing.assert_allclose(own.gradients[f"w{taken}"] / weight, rows.T @ (2 * z), rtol=1e-4, atol=1e-5)
            np.testing.assert_array_equal(own.gradients[f"w{1 - taken}"], 0)
            own.update()
        own.step({"x": batches()[0]["x"]})
    assert signs == {0, 1}


@pytest.mark.parametrize(
    ("model", "gradient"),
    [(compressed, compressed_gradient), (counted, counted_gradient), (along_an_axis, along_an_axis_gradient)],
)
def test_gradients_through_other_shapes_that_data_decides(model, gradient):
    with trainer(model(), loss=df.losses.output("y"), trainable=["first"], optimizer=df.optim.SGD(lr=0.0)) as own:
        for batch in batches():
            weight = own.forward({"x": batch["x"]})["weight"]
            own.backward()
            found = own.gradients["first"] / weight
            np.testing.assert_allclose(found, gradient(batch["x"]), rtol=1e-4, atol=1e-5)
            own.update()
