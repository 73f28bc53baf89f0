"""batch="free": samples in merged axes, first states, sizes and rows that exporters fold for a fixed batch."""

import logging

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df
from tests.support import onnx_model

node = helper.make_node
T, C, H, D = 4, 6, 2, 3  # steps, features, heads and features of each


def random(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def attention(b):
    """Heads split off in (steps, heads of all samples, features), as PyTorch's layers of transformers do."""
    heads = []
    for name in "qkv":
        heads += [
            node("Reshape", ["t", "merged"], [f"{name}1"]),
            node("MatMul", [f"{name}1", f"w{name}"], [f"{name}2"]),
            node("Reshape", [f"{name}2", "steps"], [f"{name}3"]),
            node("Reshape", [f"{name}3", "heads"], [f"{name}4"]),
            node("Transpose", [f"{name}4"], [name], perm=[1, 0, 2]),
        ]
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        *heads,
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["o"]),
        node("Transpose", ["o"], ["o1"], perm=[1, 0, 2]),
        node("Reshape", ["o1", "merged"], ["o2"]),
        node("MatMul", ["o2", "wq"], ["o3"]),
        node("Reshape", ["o3", "steps"], ["o4"]),
        node("Transpose", ["o4"], ["y"], perm=[1, 0, 2]),
    ]
    shapes = {"merged": [T * b, C], "steps": [T, b, C], "heads": [T, b * H, D]}
    weights = [(f"w{name}", random(C + i, C)[:C]) for i, name in enumerate("qkv")]
    return nodes, [*((name, np.array(shape)) for name, shape in shapes.items()), *weights]


def unknown_size(b):
    """The size that a reshape leaves open isn't that of the batch."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("Reshape", ["t", "heads"], ["h"]),
        node("Transpose", ["h"], ["u"], perm=[1, 0, 2]),
        node("Reshape", ["u", "back"], ["y"]),
    ]
    return nodes, [("heads", np.array([-1, b * H, D])), ("back", np.array([b, H, -1, D]))]


def stored_states(b, states):
    shapes = {"W": (1, 12, C), "R": (1, 12, 3)}
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("LSTM", ["t", "W", "R", "", "", "h0", "h0"], ["", "y_h"], hidden_size=3),
        node("Transpose", ["y_h"], ["y"], perm=[1, 0, 2]),
    ]
    return nodes, [*((name, random(*shape)) for name, shape in shapes.items()), ("h0", states)]


def zero_states(b):
    return stored_states(b, np.zeros((1, b, 3), np.float32))


def learned_states(b):
    return stored_states(b, np.repeat(random(1, 1, 3), b, 1))


def expanded_states(b):
    nodes, stored = stored_states(b, random(1, 1, 3))
    nodes[1].input[5:] = ["h1", "h1"]
    return [node("Expand", ["h0", "many"], ["h1"]), *nodes], [*stored, ("many", np.array([1, b, 3]))]


def resized(b):
    nodes = [
        node("Reshape", ["x", "image"], ["i"]),
        node("Resize", ["i", "", "", "sizes"], ["y"], mode="nearest"),
    ]
    return nodes, [("image", np.array([b, 2, 3, 4])), ("sizes", np.array([b, 2, 6, 8]))]


def grid(b):
    nodes = [
        node("Slice", ["x", "starts", "ends", "axes"], ["theta"]),
        node("AffineGrid", ["theta", "sizes"], ["y"]),
    ]
    numbers = {"starts": [0, 0], "ends": [2, 3], "axes": [1, 2], "sizes": [b, 1, 5, 4]}
    return nodes, [(name, np.array(row)) for name, row in numbers.items()]


def computed_rows(b):
    """Positions that were computed for each sample: a token repeated by Tile, sums and products of them, a mask."""
    nodes = [
        node("Tile", ["token", "counts"], ["tiled"]),
        node("Concat", ["tiled", "x"], ["c"], axis=1),
        node("Expand", ["position", "many"], ["e"]),
        node("Sin", ["e"], ["s"]),
        node("Add", ["c", "s"], ["a"]),
        node("Max", ["a", "s"], ["m"]),
        node("Transpose", ["s"], ["st"], perm=[0, 2, 1]),
        node("MatMul", ["m", "st"], ["y"]),
    ]
    stored = [("token", random(1, 1, C)), ("counts", np.array([b, 1, 1])), ("position", random(1, T + 1, C))]
    return nodes, [*stored, ("many", np.array([b, T + 1, C]))]


def rows_of_all(b):
    """Rows of all samples, one behind the other: some are taken by indices that were computed."""
    nodes = [
        node("Reshape", ["x", "flat"], ["f"]),
        node("Mul", ["sample", "steps"], ["first"]),
        node("Add", ["first", "chosen"], ["index"]),
        node("Gather", ["f", "index"], ["y"]),
    ]
    stored = [("flat", np.array([-1, C])), ("sample", np.arange(b)[:, None]), ("steps", np.array(T))]
    return nodes, [*stored, ("chosen", np.array([[2, 0, 3]]))]


def elements(b):
    """Tables and indices of elements, one for each sample."""
    nodes = [
        node("Expand", ["table", "tables"], ["e"]),
        node("ArgMax", ["x"], ["index"], axis=2, keepdims=1),
        node("GatherElements", ["e", "index"], ["g"], axis=2),
        node("Expand", ["column", "columns"], ["at"]),
        node("ScatterElements", ["e", "at", "g"], ["s"], axis=2),
        node("GatherElements", ["x", "at"], ["chosen"], axis=2),
        node("Concat", ["s", "chosen"], ["y"], axis=2),
    ]
    stored = [("table", random(1, T, 7)), ("tables", np.array([b, T, 7])), ("column", np.array([[[2], [0], [5], [1]]]))]
    return nodes, [*stored, ("columns", np.array([b, T, 1]))]


def computed_tables(b):
    """What is looked up was computed, by a function that no expansion shows through."""
    nodes, stored = elements(b)
    nodes[0].output[0] = "e0"
    nodes[3].output[0] = "at0"
    return [
        nodes[0],
        node("Sin", ["e0"], ["e"]),
        nodes[3],
        node("Abs", ["at0"], ["at"]),
        *nodes[1:3],
        *nodes[4:],
    ], stored


def frames(b):
    """Steps of all samples as rows, each behind a token: those of the first step are taken."""
    nodes = [
        node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
        node("Reshape", ["t", "rows"], ["r"]),
        node("Expand", ["token", "many"], ["e"]),
        node("Concat", ["e", "r"], ["c"], axis=1),
        node("Slice", ["c", "zero", "count", "zero"], ["first"]),
        node("Transpose", ["first"], ["y"], perm=[0, 2, 1]),
    ]
    stored = [("rows", np.array([T * b, 1, C])), ("token", random(1, 1, C)), ("many", np.array([T * b, 1, C]))]
    return nodes, [*stored, ("zero", np.array([0])), ("count", np.array([b]))]


def data_dependent(b):
    """A size that must be known when a node is converted depends on data: the graph is made for each run."""
    nodes = [
        node("NonZero", ["x"], ["hits"]),
        node("Shape", ["hits"], ["found"]),
        node("Gather", ["found", "one"], ["n"]),
        node("Min", ["n", "most"], ["depth"]),
        node("ArgMax", ["x"], ["index"], axis=2, keepdims=0),
        node("OneHot", ["index", "depth", "values"], ["hot"]),
        node("Expand", ["token", "many"], ["e"]),
        node("Add", ["hot", "e"], ["a"]),
        node("Reshape", ["a", "flat"], ["y"]),
    ]
    stored = [("one", np.array(1)), ("most", np.array(C)), ("values", np.array([0, 1], np.float32))]
    stored += [("token", random(1, 1, C)), ("many", np.array([b, 1, C])), ("flat", np.array([b, T * C]))]
    return nodes, stored


def written(path, net, batch):
    nodes, stored = net(batch)
    inputs, outputs = [("x", TensorProto.FLOAT, [batch, T, C])], [("y", TensorProto.FLOAT, None)]
    proto = onnx_model(nodes, inputs, outputs, stored, opset=20)
    onnx.save(proto, path)
    return str(path)


def theirs(path, x):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def trained(model):
    return {name for name, parameter in model.parameters.items() if parameter.trainable}


NETS = [
    attention, unknown_size, zero_states, learned_states, expanded_states, resized, grid, computed_rows, rows_of_all,
    elements, computed_tables, frames, data_dependent,
]  # fmt: skip


CASES = [(net, batch) for net in NETS for batch in (1, 2, 3) if (net, batch) != (frames, 1)]


@pytest.mark.parametrize(("net", "batch"), CASES)
def test_freed_as_if_exported_with_any_batch(net, batch, tmp_path):
    model = df.load(written(tmp_path / "m.onnx", net, batch), batch="free")
    for size in (1, 2, 5, batch):
        x = np.random.default_rng(size).standard_normal((size, T, C)).astype(np.float32)
        expected = theirs(written(tmp_path / "n.onnx", net, size), x)
        np.testing.assert_allclose(model(x)["y"], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("net", "batch"), [(net, b) for net, b in CASES if net is not data_dependent and b != 2])
def test_saved_with_a_free_batch(net, batch, tmp_path):
    model = df.load(written(tmp_path / "m.onnx", net, batch), batch="free")
    df.save(model, str(tmp_path / "saved.onnx"))
    x = np.random.default_rng(0).standard_normal((4, T, C)).astype(np.float32)
    expected = theirs(written(tmp_path / "n.onnx", net, 4), x)
    np.testing.assert_allclose(theirs(tmp_path / "saved.onnx", x), expected, rtol=1e-4, atol=1e-5)
    read = df.load(str(tmp_path / "saved.onnx"))
    np.testing.assert_allclose(read(x)["y"], expected, rtol=1e-4, atol=1e-5)
    assert trained(read) == trained(model)


def tokens(path, batch):
    """A token that is stored once for each sample, as exporters fold its expansion."""
    nodes = [
        node("Concat", ["token", "x"], ["c"], axis=1),
        node("MatMul", ["c", "w"], ["inner"]),
        node("ReduceMean", ["inner"], ["y"], keepdims=0, axes=[1]),
    ]
    inputs = [("x", TensorProto.FLOAT, [batch, T, C])]
    outputs = [("y", TensorProto.FLOAT, [batch, 5]), ("inner", TensorProto.FLOAT, [batch, T + 1, 5])]
    stored = [("token", np.repeat(random(1, 1, C), batch, 0)), ("w", random(C, 5))]
    onnx.save(onnx_model(nodes, inputs, outputs, stored, opset=17), path)
    return str(path)


def stepped(model, size):
    """The model after a step that trains the token, and what it gives for other data."""
    x = random(size, T, C)
    before = model.parameters["token"].array.copy()
    with df.Trainer(
        model, loss={"y": "cross_entropy"}, optimizer=df.optim.SGD(lr=1.0), trainable=["*", "token"], devices=["cpu"]
    ) as trainer:
        trainer.step({"x": x, "labels": np.arange(size) % 5})
    assert (model.parameters["token"].array != before).all()
    return model


def test_a_row_that_is_stored_for_each_sample_is_trained_once_and_saved(tmp_path):
    model = stepped(df.load(tokens(tmp_path / "m.onnx", 3), batch="free"), 5)
    assert model.parameters["token"].array.shape == (1, 1, C)
    df.save(model, str(tmp_path / "saved.onnx"))
    x = random(7, T, C)
    np.testing.assert_allclose(theirs(tmp_path / "saved.onnx", x), model(x)["y"], rtol=1e-5, atol=1e-6)


def test_where_the_batch_cannot_be_free_in_the_file_it_says_so_and_writes_every_row(tmp_path, caplog):
    """Only one output was loaded: the rest of the file stands in its place again."""
    model = stepped(df.load(tokens(tmp_path / "m.onnx", 3), batch="free", outputs=["y"]), 5)
    with caplog.at_level(logging.WARNING, "dataflow"):
        df.save(model, str(tmp_path / "saved.onnx"))
    assert "the batch size is 3 as in the file, not free as in the model: only some outputs" in caplog.text
    x = random(3, T, C)
    np.testing.assert_allclose(theirs(tmp_path / "saved.onnx", x), model(x)["y"], rtol=1e-5, atol=1e-6)
    row = model.parameters["token"].array
    stored = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "saved.onnx").graph.initializer}
    np.testing.assert_array_equal(stored["token"], np.repeat(row, 3, 0))


def test_an_ambiguous_axis_is_refused(tmp_path):
    """For a batch of one, (steps, batch, features) and (steps of all samples, 1, features) are written alike."""
    with pytest.raises(df.ModelError, match="batch='free'"):
        df.load(written(tmp_path / "m.onnx", frames, 1), batch="free")


def test_a_sum_over_three_samples_is_refused(tmp_path):
    """A batch of two gives what its samples give: only what a third one adds is wrong."""

    def net(b):
        nodes = [
            node("Slice", ["x", "two", "three", "zero"], ["third"]),
            node("ReduceSum", ["third", "zero"], ["s"], keepdims=1),
            node("Add", ["x", "s"], ["y"]),
        ]
        return nodes, [(name, np.array([n])) for name, n in (("zero", 0), ("two", 2), ("three", 3))]

    with pytest.raises(df.ModelError, match="batch='free'"):
        df.load(written(tmp_path / "m.onnx", net, 1), batch="free")


@pytest.mark.parametrize("change", [lambda m: df.lora(m, targets="*"), df.quantize], ids=["lora", "quantized"])
def test_adapters_and_quantized_weights_are_saved_with_a_free_batch(change, tmp_path):
    """Tensors that are repeated for each sample have a size that isn't known: that is no slice of a weight."""
    model = change(df.load(tokens(tmp_path / "m.onnx", 3), batch="free"))
    df.save(model, str(tmp_path / "saved.onnx"))
    x = random(5, T, C)
    np.testing.assert_allclose(theirs(tmp_path / "saved.onnx", x), model(x)["y"], rtol=1e-4, atol=1e-5)
