"""What is trained by default is the same after a model was saved and read, whatever reading alone would say."""

import json

import numpy as np
import onnx
import pytest

import dataflow as df
from dataflow.errors import ModelError
from dataflow_onnx.file.trained_note import KEY
from tests.support import onnx_model

RANDOM = np.random.default_rng(0)


def random(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def built():
    """Constants that reading takes for parameters, a weight behind a mask, and one that is frozen."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 4))
    scale = g.input("scale", df.float32, (3,))
    h = df.ops.mul(df.ops.sub(x, random(4)), np.full(4, 2, np.float32))
    masked = df.ops.mul(g.parameter("w", random(4, 3)), (random(4, 3) > 0).astype(np.float32))
    fixed = g.parameter("fixed", random(3, 3), trainable=False)
    g.output("y", df.ops.mul(df.ops.matmul(df.ops.matmul(h, masked), fixed), scale))
    return df.Model(g.build())


def roles(model):
    return {name: p.trainable for name, p in model.parameters.items()}


def again(model, path, **options):
    df.save(model, path, **options)
    onnx.checker.check_model(onnx.load(path))
    return df.load(path)


def test_a_model_that_was_built(tmp_path):
    model = built()
    assert [name for name, trained in roles(model).items() if trained] == ["w"]
    saved = again(model, tmp_path / "a.onnx")
    assert roles(saved) == roles(model)
    assert roles(again(saved, tmp_path / "b.onnx")) == roles(model)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_an_input_that_was_frozen(tmp_path):
    model = built().freeze({"scale": np.ones(3, np.float32)})
    assert roles(again(model, tmp_path / "a.onnx")) == roles(model)


def test_adapters_as_nodes_of_a_file_of_another(tmp_path):
    """The base stays frozen, and so does the factor of the adapters."""
    nodes = [onnx.helper.make_node("MatMul", ["x", "fc.weight"], ["/fc/MatMul_output_0"], name="/fc/MatMul")]
    nodes.append(onnx.helper.make_node("Relu", nodes[0].output, ["y"], name="/Relu"))
    proto = onnx_model(nodes, [("x", 1, ["n", 4])], [("y", 1, ["n", 3])], [("fc.weight", random(4, 3))])
    proto.producer_name = "pytorch"
    onnx.save(proto, tmp_path / "base.onnx")
    adapted = df.lora(df.load(tmp_path / "base.onnx"), rank=2, targets="*")
    df.save(adapted, tmp_path / "a.onnx")
    saved = df.load(tmp_path / "a.onnx")
    assert {name for name, trained in roles(saved).items() if trained} == {
        name for name, trained in roles(adapted).items() if trained
    }


def test_a_file_that_says_what_it_is_read_as_gets_no_note(tmp_path):
    proto = onnx_model(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", 1, ["n", 4])], [("y", 1, ["n", 3])],
        [("w", random(4, 3))],
    )  # fmt: skip
    onnx.save(proto, tmp_path / "a.onnx")
    model = df.load(tmp_path / "a.onnx")
    with df.Trainer(model, "mse", "sgd") as trainer:
        trainer.step({"x": random(2, 4), "labels": random(2, 3)})
    df.save(model, tmp_path / "b.onnx")
    assert not onnx.load(tmp_path / "b.onnx").metadata_props


def test_metadata_of_the_user_stays_beside_the_note(tmp_path):
    model = built()
    model.metadata = {"license": "mine"}
    saved = again(model, tmp_path / "a.onnx")
    assert saved.metadata == {"license": "mine"}
    saved.metadata = {"license": "yours"}
    last = again(saved, tmp_path / "b.onnx")
    assert last.metadata == {"license": "yours"} and roles(last) == roles(model)


@pytest.mark.parametrize("text", ["[", "[]", "3", '{"learned":["w"]}', '{"parameter":3}', '{"parameter":null}'])
def test_a_damaged_note(text, tmp_path):
    df.save(built(), tmp_path / "a.onnx")
    proto = onnx.load(tmp_path / "a.onnx")
    (entry,) = [entry for entry in proto.metadata_props if entry.key == KEY]
    assert json.loads(entry.value)["parameter"] == ["w"]
    entry.value = text
    onnx.save(proto, tmp_path / "b.onnx")
    with pytest.raises(ModelError, match=r"b\.onnx: the metadata 'dataflow.roles' is damaged"):
        df.load(tmp_path / "b.onnx")


def test_names_that_a_file_has_no_more_are_left_aside(tmp_path):
    df.save(built(), tmp_path / "a.onnx")
    proto = onnx.load(tmp_path / "a.onnx")
    (entry,) = [entry for entry in proto.metadata_props if entry.key == KEY]
    entry.value = '{"constant":["w","gone"]}'
    onnx.save(proto, tmp_path / "b.onnx")
    assert not roles(df.load(tmp_path / "b.onnx"))["w"]


def test_gradients_stop_where_they_did(tmp_path):
    """DoRA divides by a norm that it takes for a constant: the saved file trains as the model does."""
    g = df.GraphBuilder()
    g.output("y", df.ops.matmul(g.input("x", df.float32, ("n", 4)), g.parameter("w", random(4, 3))))
    adapted = df.lora(df.Model(g.build()), rank=2, targets="*", dora=True)
    saved = again(adapted, tmp_path / "a.onnx")
    batch = {"x": random(8, 4), "labels": RANDOM.integers(0, 3, 8)}
    losses = []
    for model in (adapted, saved, again(saved, tmp_path / "b.onnx")):
        with df.Trainer(model, optimizer="sgd:lr=0.3,momentum=0") as trainer:
            losses.append([trainer.step(batch) for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert losses[1] == losses[2]


def test_a_file_of_which_some_outputs_were_read_keeps_its_note(tmp_path):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 4))
    h = df.ops.stop_gradient(df.ops.matmul(x, g.parameter("w", random(4, 4), trainable=False)))
    g.output("h", h)
    g.output("y", df.ops.stop_gradient(df.ops.matmul(h, g.parameter("w2", random(4, 4), trainable=False))))
    model = df.Model(g.build())
    df.save(model, tmp_path / "a.onnx")
    first = df.load(tmp_path / "a.onnx", outputs=["h"])
    first.parameters["w"].set(random(4, 4))
    df.save(first, tmp_path / "b.onnx")
    notes = [{e.key: e.value for e in onnx.load(tmp_path / name).metadata_props}[KEY] for name in ("a.onnx", "b.onnx")]
    assert json.loads(notes[0]) == json.loads(notes[1])
    assert not any(roles(df.load(tmp_path / "b.onnx")).values())
