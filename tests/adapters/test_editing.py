"""Graphs that are edited: what they compute, and what of the file stays."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import dataflow as df
from dataflow import ops

RECORDINGS = Path(__file__).parents[1] / "recordings"
FILES = ("adapters", "adapters_script")
WORDS = {"words": np.random.default_rng(0).integers(0, 9, (6, 5))}


def load(file="adapters"):
    return df.load(str(RECORDINGS / f"{file}.onnx"))


def both(model, tmp_path, inputs=WORDS):
    """The results of a model, which are those of its file in onnxruntime and when it is loaded again."""
    path = tmp_path / "edited.onnx"
    df.save(model, str(path), overwrite=True)
    expected = model(inputs)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    found = dict(zip([o.name for o in session.get_outputs()], session.run(None, inputs), strict=True))
    assert list(found) == list(expected)
    for name, array in df.load(str(path))(inputs).items():
        np.testing.assert_allclose(found[name], expected[name], atol=1e-5)
        np.testing.assert_allclose(array, expected[name], atol=1e-6)
    return expected, onnx.load(str(path))


def relu_of(model):
    (node,) = (n for n in model.graph.nodes if n.op.name == "relu")
    return node.outputs[0].name


@pytest.mark.parametrize("file", FILES)
def test_a_value_is_replaced_by_what_is_computed_from_it(tmp_path, file):
    model = load(file)
    (before,) = model(WORDS).values()
    name = relu_of(model)
    edited = model.replace(name, lambda v: ops.mul(v, 2.0)).replace(name, lambda v: ops.mul(v, 0.5))
    results, proto = both(edited, tmp_path)
    np.testing.assert_allclose(next(iter(results.values())), before, atol=1e-6)
    old = onnx.load(str(RECORDINGS / f"{file}.onnx"))
    tensors = {t.name: t for t in proto.graph.initializer}
    assert all(tensors[t.name] == t for t in old.graph.initializer)
    nodes = [n.SerializeToString() for n in proto.graph.node]
    assert sum(n.SerializeToString() not in nodes for n in old.graph.node) == 1  # whose result has another name


@pytest.mark.parametrize("file", FILES)
def test_a_value_is_frozen(tmp_path, file):
    model = load(file)
    name = relu_of(model)
    array = np.random.default_rng(1).normal(size=model.graph.find(name).type.sizes).astype(np.float32)
    edited = model.replace(name, array)
    results, proto = both(edited, tmp_path, WORDS if edited.inputs else {})
    weight, bias = (model.parameters[f"head.{n}"].array for n in ("weight", "bias"))
    expected = array.mean((2, 3)) @ weight.T + bias
    np.testing.assert_allclose(next(iter(results.values())), expected, atol=1e-5)
    assert "embed.weight" not in {t.name for t in proto.graph.initializer}


def test_an_input_is_frozen(tmp_path):
    model = load()
    (expected,) = model(WORDS).values()
    edited = model.freeze(WORDS)
    assert not edited.inputs
    results, _ = both(edited, tmp_path, {})
    np.testing.assert_allclose(next(iter(results.values())), expected, atol=1e-6)


@pytest.mark.parametrize("file", FILES)
def test_a_model_gives_inner_values_and_is_named_anew(tmp_path, file):
    model = load(file)
    name = relu_of(model)
    edited = model.with_outputs([name]).rename({name: "features", "words": "tokens", "conv.weight": "filters"})
    assert list(edited.inputs) == ["tokens"] and list(edited.outputs) == ["features"]
    assert "head.weight" not in edited.parameters and "filters" in edited.parameters
    edited.parameters["filters"].set(edited.parameters["filters"].array * np.float32(2))
    both(edited, tmp_path, {"tokens": WORDS["words"]})
    with df.Trainer(edited, loss=df.losses.output("features")) as trainer:
        trainer.step({"tokens": WORDS["words"]})


@pytest.mark.parametrize("file", FILES)
def test_an_output_is_added(tmp_path, file):
    model = load(file)
    (old,) = model.outputs
    edited = model.append("classes", lambda v: ops.softmax(v, axis=-1))
    results, _ = both(edited, tmp_path)
    exp = np.exp(results[old])
    np.testing.assert_allclose(results["classes"], exp / exp.sum(1, keepdims=True), atol=1e-6)
    inner = edited.append("features", lambda v: v, of=relu_of(model)).with_outputs(["features", old])
    assert list(both(inner, tmp_path)[0]) == ["features", old]


def test_a_new_head_is_appended_trained_and_named(tmp_path):
    """Its tensors are parameters where a layer makes them; what an edit added is no name of the file."""
    model = load()
    hidden = relu_of(model)
    new = model.with_outputs([hidden]).append("new", lambda v: df.nn.linear(v.builder, v, 4, name="head"), of=hidden)
    with df.Trainer(new.copy(), df.losses.CrossEntropy(), output="new", trainable="*") as trainer:
        assert {"head/weight", "head/bias"} <= {*trainer.trainable}
    named = new.rename({"head/weight": "scores.weight", hidden: "hidden"})
    assert "scores.weight" in named.parameters
    results, proto = both(named, tmp_path)
    assert set(results) == {"hidden", "new"}
    assert "scores.weight" in {tensor.name for tensor in proto.graph.initializer}
    double = load().replace(hidden, lambda v: ops.mul(v, 2.0))  # what follows in the file reads the added value
    both(double.rename({hidden: "inner"}), tmp_path)


def test_a_stored_tensor_and_another_value_take_its_readers(tmp_path):
    model = load("adapters_script")
    model = model.replace("conv.weight", lambda w: ops.mul(w, 3.0))
    both(model, tmp_path)
    values = [n.outputs[0].name for n in model.graph.nodes if n.op.name == "softmax"]
    both(model.replace(values[1], values[0]), tmp_path)
    with pytest.raises(df.InputError, match="computed later"):
        model.replace(values[0], values[1])


def test_adapters_stand_on_an_edited_model(tmp_path):
    model = load().replace(relu_of(load()), lambda v: ops.tanh(v))
    adapted = df.lora(model, rank=2, targets=["conv", "q"])
    with df.Trainer(adapted) as trainer:
        trainer.step({**WORDS, "labels": np.arange(6) % 3})
    both(adapted, tmp_path)
    both(df.merge_lora(adapted), tmp_path)


def test_a_model_built_by_hand_is_edited(tmp_path):
    g = df.GraphBuilder("hand")
    x = g.input("x", df.float32, ("batch", 3))
    g.output("y", ops.relu(x))
    model = df.Model(g.build()).append("z", lambda v: ops.mul(v, 2.0)).rename({"y": "r"})
    results, _ = both(model, tmp_path, {"x": np.ones((2, 3), np.float32)})
    assert list(results) == ["r", "z"]


@pytest.mark.parametrize(
    ("edit", "text"),
    [
        (lambda m: m.replace("nothing", lambda v: v), "no value 'nothing'"),
        (lambda m: m.replace("words", lambda v: v), "is an input"),
        (lambda m: m.replace("conv.bias", np.zeros(3, np.float32)), "got float32"),
        (lambda m: m.replace("conv.bias", lambda v: 3), "expected a value"),
        (lambda m: m.freeze({"words": np.zeros((6, 5), np.float32)}), "got float32"),
        (lambda m: m.with_outputs([]), "each once"),
        (lambda m: m.with_outputs(["nothing"]), "no value 'nothing'"),
        (lambda m: m.append("words", lambda v: v), "already"),
        (lambda m: m.rename({"words": "conv.bias"}), "can't be called"),
        (lambda m: m.rename({"words": "a", "conv.bias": "a"}), "two values one name"),
    ],
)
def test_what_does_not_fit_is_refused(edit, text):
    with pytest.raises(df.InputError, match=text):
        edit(load())
