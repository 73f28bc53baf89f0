"""Texts beside the graph: read, changed, saved; names of classes among them."""

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import dataflow as df
from dataflow import ops
from dataflow.host.class_names import class_names

NAMES = ("cat", "dog", "bird")


@pytest.fixture
def path(tmp_path):
    """A file of y = x w with metadata."""
    w = numpy_helper.from_array(np.eye(3, dtype=np.float32), "w")
    values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["N", 3]) for n in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", values[:1], values[1:], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"author": "me", "names": str(dict(enumerate(NAMES)))})
    onnx.save(model, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def props(path):
    return {entry.key: entry.value for entry in onnx.load(path).metadata_props}


def test_metadata_is_read_and_kept(path, tmp_path):
    model = df.load(str(path))
    assert model.metadata["author"] == "me" and model.classes == NAMES
    df.save(model, str(tmp_path / "same.onnx"))
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()
    model.parameters["w"].set(2 * np.eye(3, dtype=np.float32))
    df.save(model, str(tmp_path / "tuned.onnx"))
    assert props(tmp_path / "tuned.onnx") == model.metadata


def test_metadata_that_changed_is_all_that_changes(path, tmp_path):
    model = df.load(str(path))
    model.metadata["classes"] = json.dumps(["a", "b", "c"])
    del model.metadata["author"]
    for twin in (model, model.copy(), model.with_graph(model.graph)):
        df.save(twin, str(tmp_path / "new.onnx"), overwrite=True)
        assert list(props(tmp_path / "new.onnx")) == ["names", "classes"]
        assert df.load(str(tmp_path / "new.onnx")).classes == ("a", "b", "c")
    before, after = onnx.load(path), onnx.load(tmp_path / "new.onnx")
    del before.metadata_props[:], after.metadata_props[:]
    assert before == after
    assert df.load(str(path)).metadata["author"] == "me"
    model.metadata["steps"] = 3
    with pytest.raises(df.InputError, match="metadata: 'steps' is 3; expected a text"):
        df.save(model, str(tmp_path / "bad.onnx"))
    assert not (tmp_path / "bad.onnx").exists()


def test_metadata_of_a_model_built_by_hand_and_of_a_new_head(path, tmp_path):
    g = df.GraphBuilder("m")
    g.output("y", ops.relu(g.input("x", df.float32, (2,))))
    model = df.Model(g.build(), metadata={"task": "none"})
    df.save(model, str(tmp_path / "hand.onnx"))
    assert df.load(str(tmp_path / "hand.onnx")).metadata == {"task": "none"} and model.classes is None
    headed = df.replace_head(df.load(str(path)), classes=2)
    assert headed.classes is None and headed.metadata == {"author": "me"}


def test_training_on_named_classes_names_them(path):
    rng = np.random.default_rng(0)
    rows = [("a", "b", "c")[i % 3] for i in range(12)]
    samples = rng.normal(size=(12, 3)).astype(np.float32)
    table = path.with_suffix(".csv")
    lines = [",".join([*map(str, x), label]) for x, label in zip(samples, rows, strict=True)]
    table.write_text("\n".join(["p,q,r,labels", *lines]) + "\n")
    model = df.load(str(path))
    options = {"columns": {"x": ["p", "q", "r"]}, "label": "labels"}
    with df.Trainer(model, devices=["numpy"]) as trainer:
        trainer.fit(df.Dataset(table, **options), progress=False)
        wanted = trainer.evaluate(df.Dataset(table, **options))
    assert model.classes == ("a", "b", "c")
    # The model's order of names is that of the labels, also where the data has others first.
    model.metadata["classes"] = json.dumps(["c", "b", "a"])
    model.parameters["w"].set(model.parameters["w"].array[:, ::-1].copy())
    found = df.evaluate(model, df.Dataset(table, **options), devices=["numpy"])
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-6)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('["cat", "dog"]', ("cat", "dog")),
        ("['cat', 'dog']", ("cat", "dog")),
        ("{0: 'cat', 1: 'dog'}", ("cat", "dog")),
        ('{"1": "dog", "0": "cat"}', ("cat", "dog")),
        ("cat, dog", ("cat", "dog")),
        ("cat\ndog, small\n", ("cat", "dog, small")),
        ("{1: 'dog', 2: 'cat'}", None),
        ("[1, 2]", None),
        ("7", None),
        ("[" * 100_000, ("[" * 100_000,)),
        ("", None),
    ],
)
def test_the_forms_of_names(text, names):
    assert class_names({"names": text}) == names
