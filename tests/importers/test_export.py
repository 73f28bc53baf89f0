"""Saving: an imported model keeps every byte that did not change; a model built by hand runs in onnxruntime."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import dataflow as df
from dataflow_onnx.file import saving
from tests.support import RECORDINGS, onnx_model, recording

NAMES = ["mlp", "mlp_script", "cnn", "cnn_script", "resnet", "resnet_script", "resnet_bn"]


def run(path, feeds):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_imported_models_agree_with_onnxruntime(name):
    path = RECORDINGS / f"{name}.onnx"
    model = df.load(str(path))
    (given,) = model.inputs.values()
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, *given.shape[1:])).astype(np.float32)
        expected = run(path, {"x": x})["logits"]
        np.testing.assert_allclose(model(x)["logits"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_an_unchanged_model_keeps_every_byte(name, tmp_path):
    path = RECORDINGS / f"{name}.onnx"
    df.save(df.load(str(path)), str(tmp_path / "copy.onnx"))
    assert (tmp_path / "copy.onnx").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_only_what_changed_is_written(name, tmp_path):
    model = recording(name)
    changed = next(n for n, p in model.parameters.items() if p.trainable)
    array = model.parameters[changed].array + 1
    model.parameters[changed].set(array)
    df.save(model, str(tmp_path / "new.onnx"))
    old, new = onnx.load(RECORDINGS / f"{name}.onnx"), onnx.load(tmp_path / "new.onnx")
    for tensor in old.graph.initializer:
        if tensor.name == changed:
            tensor.CopyFrom(numpy_helper.from_array(array, changed))
    assert old.SerializeToString(deterministic=True) == new.SerializeToString(deterministic=True)
    (given,) = model.inputs.values()
    x = np.ones((2, *given.shape[1:]), np.float32)
    expected = run(tmp_path / "new.onnx", {"x": x})["logits"]
    np.testing.assert_allclose(df.Model(model.graph_with_data())(x)["logits"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["mlp", "cnn_script", "resnet"])
def test_a_new_head_changes_its_weights_and_the_declared_shapes(name, tmp_path):
    model = recording(name)
    (given,) = model.inputs.values()
    x = np.random.default_rng(0).standard_normal((3, *given.shape[1:])).astype(np.float32)
    before = model(x)["logits"]
    new = df.replace_head(model, classes=4, keep=[7, 2])
    assert new.outputs["logits"].shape[-1] == 4
    df.save(new, str(tmp_path / "new.onnx"))
    onnx.checker.check_model(onnx.load(tmp_path / "new.onnx"), full_check=True)
    theirs = run(tmp_path / "new.onnx", {"x": x})["logits"]
    ours = new(x)["logits"]
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours[:, :2], before[:, [7, 2]], rtol=1e-5, atol=1e-5)
    assert model(x)["logits"].shape == before.shape


def convolved(path, end, **attributes):
    """A file whose head is a convolution, with an operator that flattens or reshapes its result."""
    random = np.random.default_rng(0)
    stored = {"w": random.standard_normal((6, 3, 1, 1)).astype(np.float32), "b": np.zeros(6, np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node(end, ["p", *attributes.pop("more", ())], ["y"], **attributes),
    ]
    tensors = [numpy_helper.from_array(a, n) for n, a in stored.items()]
    tensors += [numpy_helper.from_array(np.array(shape, np.int64), f"to {shape}") for shape in ([-1, 6], [-1, 2, 3])]
    names = {name for node in nodes for name in node.input}
    tensors = [tensor for tensor in tensors if tensor.name in names]
    y = ("y", onnx.TensorProto.FLOAT, ["n", 6] if len(names) < 6 or "to [-1, 6]" in names else ["n", 2, 3])
    onnx.save(onnx_model(nodes, [("x", onnx.TensorProto.FLOAT, ["n", 3, 4, 4])], [y], tensors), path)
    return df.load(str(path))


def test_what_flattens_behind_a_head_follows_its_size(tmp_path):
    new = df.replace_head(convolved(tmp_path / "m.onnx", "Flatten"), classes=7)
    assert str(new.outputs["y"]) == "float32[n, 7]"
    df.save(new, str(tmp_path / "new.onnx"))
    x = np.random.default_rng(1).standard_normal((6, 3, 4, 4)).astype(np.float32)
    np.testing.assert_allclose(new(x)["y"], run(tmp_path / "new.onnx", {"x": x})["y"], rtol=1e-5, atol=1e-5)
    assert [d.dim_value for d in onnx.load(tmp_path / "new.onnx").graph.output[0].type.tensor_type.shape.dim] == [0, 7]


def test_a_head_before_numbers_of_its_size_is_refused(tmp_path):
    """By replace_head where the graph can't follow, and by the file where its nodes can't."""
    split = convolved(tmp_path / "m.onnx", "Reshape", more=["to [-1, 2, 3]"])
    with pytest.raises(df.ModelError, match=r"made for 6: .* makes float32\[n, 2, 3\] of float32\[n, 6, 1, 1\]"):
        df.replace_head(split, classes=7)
    new = df.replace_head(convolved(tmp_path / "m.onnx", "Reshape", more=["to [-1, 6]"]), classes=7)
    with pytest.raises(df.ModelError, match=r"new sizes, since numbers in its nodes are made for the old"):
        df.save(new, str(tmp_path / "new.onnx"))
    assert not (tmp_path / "new.onnx").exists()


@pytest.mark.parametrize("how", ["rename", "replace_head", "append", "quantize"])
def test_what_was_trained_before_an_edit_is_written(how, tmp_path):
    """The edited model holds the data itself: only the file says that it is new."""
    model = recording("mlp")
    name = next(n for n, p in model.parameters.items() if p.trainable and p.type.rank == 1)
    model.parameters[name].set(model.parameters[name].array + 1)
    edited = {
        "rename": lambda: model.rename({"x": "image"}),
        "replace_head": lambda: df.replace_head(model, classes=4),
        "append": lambda: model.append("chances", lambda v: df.ops.softmax(v, axis=-1)),
        "quantize": lambda: df.quantize(model, bits=8, block=16),
    }[how]()
    df.save(edited, str(tmp_path / "new.onnx"))
    given = {n: np.ones((2, *t.shape[1:]), np.float32) for n, t in edited.inputs.items()}
    expected = edited(given)
    for output, array in run(tmp_path / "new.onnx", given).items():
        np.testing.assert_allclose(array, expected[output], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(df.load(str(tmp_path / "new.onnx")).arrays()[name], model.arrays()[name])


def test_an_unclear_head_lists_the_candidates():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 4))
    a, b = (g.parameter(n, np.ones((4, 3), np.float32)) for n in ("a", "b"))
    g.output("y", df.ops.matmul(x, a, name="first"))
    g.output("z", df.ops.matmul(x, b, name="second"))
    model = df.Model(g.build())
    with pytest.raises(df.ModelError, match=r"at=.*'first'.*'second'"):
        df.replace_head(model, classes=2)
    assert df.replace_head(model, classes=2, at="first").outputs["y"].shape[1] == 2


def test_a_head_of_quantized_weights_says_what_to_do():
    g = df.GraphBuilder()
    hidden = df.ops.relu(g.input("x", df.float32, ("n", 16)), name="hidden")
    g.output("y", df.ops.matmul(hidden, g.parameter("w", np.ones((16, 3), np.float32))))
    model = df.quantize(df.Model(g.build()), block=16)
    for at in (None, "w"):
        with pytest.raises(df.ModelError, match=r"with_outputs\(\[hidden\]\)\.append"):
            df.replace_head(model, classes=2, at=at)
    made = model.with_outputs(["hidden"])
    made = made.append("y", lambda v: df.nn.linear(v.builder, v, 2, name="new"), of="hidden").with_outputs(["y"])
    assert made({"x": np.ones((5, 16), np.float32)})["y"].shape == (5, 2)


def by_hand():
    g = df.GraphBuilder("by hand")
    random = np.random.default_rng(0)
    x = g.input("x", df.float32, ("batch", 2, 8, 8))
    w = g.parameter("w", random.standard_normal((4, 2, 3, 3)).astype(np.float32))
    window = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}
    h = df.ops.gelu(df.ops.conv(x, w, **window))
    h = df.ops.max_pool(h, kernel=(2, 2), strides=(2, 2), pads=(0,) * 4, dilations=(1, 1))
    h = df.ops.reshape(h, shape=(df.Dim("batch"), 64))
    h = df.ops.slice(h, starts=(0, 63), stops=(df.Dim("batch"), 3), steps=(1, -2))
    v = g.parameter("v", random.standard_normal((5, 30)).astype(np.float32))
    y = df.ops.add(df.ops.matmul(h, df.ops.transpose(v, perm=(1, 0))), 0.5)
    scale = g.parameter("scale", random.standard_normal(5).astype(np.float32))
    y = g.add(df.ops.layer_norm, (y, scale, g.parameter("bias", np.ones(5, np.float32))), {}).outputs[0]
    g.output("y", df.ops.softmax(df.ops.clip(y, -2.0, 2.0)))
    g.output("mean", df.ops.reduce_mean(y, axes=(1,), keepdims=0))
    return df.Model(g.build())


def test_a_model_built_by_hand_runs_in_onnxruntime(tmp_path):
    model = by_hand()
    path = tmp_path / "hand.onnx"
    df.save(model, str(path))
    proto = onnx.load(path)
    assert proto.opset_import[0].version == 20  # Gelu came with it
    assert proto.ir_version == 9
    x = np.random.default_rng(1).standard_normal((3, 2, 8, 8)).astype(np.float32)
    ours, theirs = model(x), run(path, {"x": x})
    back = df.load(str(path))(x)
    for name in ("y", "mean"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(back[name], theirs[name], rtol=1e-4, atol=1e-5)


N, M = df.Dim("n"), df.Dim("m")
# Ops whose ONNX form is not the plain one: shape of the operand, and the op.
OTHERWISE = {
    "transpose of a scalar": ((), lambda x: df.ops.transpose(x, perm=())),
    "reshape of nothing": ((0, 3, 2), lambda x: df.ops.reshape(x, shape=(3, 0, 5))),
    "reshape, two sizes swapped": (("n", "m", 2), lambda x: df.ops.reshape(x, shape=(M, N, 2))),
    "reshape of nothing with a named size": (("n", 0), lambda x: df.ops.reshape(x, shape=(0, N))),
    "reduction over no axes": ((2, 3), lambda x: df.ops.reduce_sum(x, axes=(), keepdims=0)),
    "maximum over no axes": ((2, 3), lambda x: df.ops.reduce_max(x, axes=(), keepdims=1)),
    "repeated to two sizes": (("n", 1, "m"), lambda x: df.ops.broadcast_to(x, shape=(M, N, N, M))),
    "the last row": (("n", 2), lambda x: df.ops.slice(x, starts=(N - 1, 0), stops=(N, 2), steps=(1, 1))),
    "all but the last": (("n", 2), lambda x: df.ops.slice(x, starts=(0, 0), stops=(N - 1, 2), steps=(1, 1))),
    "backwards": (("n", 2), lambda x: df.ops.slice(x, starts=(N - 1, 1), stops=(-1, -1), steps=(-1, -1))),
    "up to another size": (("n", "m"), lambda x: df.ops.slice(x, starts=(0, 0), stops=(M, M), steps=(1, 1))),
    "product with 16 bits": (("n", 3), lambda x: df.ops.matmul(x, np.eye(3, 2, dtype=np.float16))),
    "before the first": ((3, 2), lambda x: df.ops.slice(x, starts=(-1, 0), stops=(-1, 2), steps=(-1, 1))),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_onnx_says_otherwise(name, tmp_path):
    shape, op = OTHERWISE[name]
    g = df.GraphBuilder()
    g.output("y", op(g.input("x", df.float32, shape)))
    model, path = df.Model(g.build()), tmp_path / "m.onnx"
    df.save(model, str(path))
    sizes = [{"n": 4, "m": 3}.get(n, n) for n in shape]
    x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    theirs = run(path, {"x": x})["y"]
    for found in (model(x)["y"], df.load(str(path))(x)["y"]):
        np.testing.assert_array_equal(found, theirs)


def test_what_has_no_onnx_form_is_refused_by_name(tmp_path):
    path = str(tmp_path / "m.onnx")
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 2))
    g.output("y", df.ops.broadcast_to(x.sum(), shape=(5 * df.Dim("q"), 2)))
    with pytest.raises(df.ModelError, match=r"broadcast_to.*the size q is that of no value before it"):
        df.save(df.Model(g.build()), path)
    g = df.GraphBuilder()
    g.output("y", df.ops.bitcast(g.input("x", df.float32, (2,)), to=df.int32))
    with pytest.raises(df.ModelError, match=r"'bitcast'.*no ONNX form"):
        df.save(df.Model(g.build()), path)
    g = df.GraphBuilder()
    g.output("", df.ops.neg(g.input("x", df.float32, (2,))))
    with pytest.raises(df.ModelError, match="no valid ONNX model"):
        df.save(df.Model(g.build()), path)
    assert list(tmp_path.iterdir()) == []


def test_names_that_the_writer_makes_up_are_free(tmp_path):
    g = df.GraphBuilder()
    x = g.input("h.shape", df.float32, (2, 3))
    g.output("y", df.ops.reshape(x, shape=(3, 2), name="h"))
    df.save(df.Model(g.build()), str(tmp_path / "m.onnx"))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert (run(tmp_path / "m.onnx", {"h.shape": x})["y"] == x.reshape(3, 2)).all()


def test_a_second_name_of_a_stored_tensor_is_the_same_parameter(tmp_path):
    """An exporter that finds two tensors equal keeps one and an Identity of it; the file can't hold two."""
    random = np.random.default_rng(0)
    w = random.standard_normal((4, 4)).astype(np.float32)
    nodes = [
        helper.make_node("Identity", ["w"], ["again"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "again"], ["y"]),
    ]
    outputs = [(name, onnx.TensorProto.FLOAT, None) for name in ("y", "h")]
    path, tuned = str(tmp_path / "m.onnx"), str(tmp_path / "tuned.onnx")
    onnx.save(onnx_model(nodes, [("x", onnx.TensorProto.FLOAT, [3, 4])], outputs, [("w", w)]), path)
    model = df.load(path)
    x = random.standard_normal((3, 4)).astype(np.float32)
    with df.Trainer(model, "mse", output="h", devices="cpu", tie=False) as trainer:
        assert list(trainer.trainable) == ["w"]
        trainer.step({"x": x, "labels": x})
    df.save(model, tuned)
    theirs = onnxruntime.InferenceSession(tuned).run(None, {"x": x})
    for ours, array in zip(df.Session(model, "cpu").run(x).values(), theirs, strict=True):
        np.testing.assert_allclose(ours, array, rtol=1e-5, atol=1e-6)


def test_weights_made_by_nodes_become_stored_when_they_change(tmp_path):
    make = onnx.helper
    shape = numpy_helper.from_array(np.array([4, 3], np.int64), "shape")
    graph = make.make_graph(
        [
            make.make_node("ConstantOfShape", ["shape"], ["w"], value=numpy_helper.from_array(np.float32([0.5]), "v")),
            make.make_node("MatMul", ["x", "w"], ["y"]),
        ],
        "g",
        [
            make.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4]),
            make.make_tensor_value_info("shape", onnx.TensorProto.INT64, [2]),
        ],
        [make.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 3])],
        [shape],
    )
    path = tmp_path / "m.onnx"
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 9)], ir_version=3), path)
    model = df.load(str(path))
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    model.parameters["w"].set(w)
    df.save(model, str(path), overwrite=True)
    x = np.eye(4, dtype=np.float32)
    assert (run(path, {"x": x})["y"] == w).all()
    assert (df.load(str(path))(x)["y"] == w).all()


# ---- data in other files ------------------------------------------------------------------------------


def two_layers(path, location="m.onnx.data"):
    """y = x @ w1 @ w2 with both weights, and a constant of a node, in another file; the weights."""
    make, random = onnx.helper, np.random.default_rng(0)
    w1, w2, extra = (random.standard_normal(s).astype(np.float32) for s in ((16, 16), (16, 16), (16,)))
    nodes = [
        make.make_node("MatMul", ["x", "w1"], ["h"]),
        make.make_node("MatMul", ["h", "value"], ["i"]),
        make.make_node("Constant", [], ["c"], value=numpy_helper.from_array(extra, "value")),
        make.make_node("Add", ["i", "c"], ["y"]),
    ]
    info = [make.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["n", 16]) for n in "xy"]
    stored = [numpy_helper.from_array(w1, "w1"), numpy_helper.from_array(w2, "value")]
    graph = make.make_graph(nodes, "g", info[:1], info[1:], stored)
    proto = make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=8)
    onnx.save(proto, path, save_as_external_data=True, location=location, size_threshold=0, convert_attribute=True)
    return w1, w2, extra


X = np.random.default_rng(7).standard_normal((3, 16)).astype(np.float32)


def agrees(path, w1, w2, extra):
    """Both engines read the file, and find these weights."""
    for found in (run(path, {"x": X})["y"], df.load(str(path))(X)["y"]):
        np.testing.assert_allclose(found, X @ w1 @ w2 + extra, rtol=1e-4, atol=1e-4)


def test_an_unchanged_model_takes_its_data_file_along(tmp_path):
    (tmp_path / "b").mkdir()
    weights = two_layers(tmp_path / "m.onnx")
    df.save(df.load(str(tmp_path / "m.onnx")), str(tmp_path / "b" / "n.onnx"))
    assert (tmp_path / "b" / "n.onnx").read_bytes() == (tmp_path / "m.onnx").read_bytes()
    agrees(tmp_path / "b" / "n.onnx", *weights)


def test_a_data_file_of_another_model_is_left_alone(tmp_path):
    (tmp_path / "b").mkdir()
    weights = two_layers(tmp_path / "m.onnx")
    (tmp_path / "b" / "m.onnx.data").write_bytes(b"of somebody else")
    df.save(df.load(str(tmp_path / "m.onnx")), str(tmp_path / "b" / "m.onnx"))
    assert (tmp_path / "b" / "m.onnx.data").read_bytes() == b"of somebody else"
    agrees(tmp_path / "b" / "m.onnx", *weights)


def test_one_changed_weight_of_a_data_file(tmp_path):
    w1, w2, extra = two_layers(tmp_path / "m.onnx")
    model = df.load(str(tmp_path / "m.onnx"))
    model.parameters["value"].set(2 * w2)
    df.save(model, str(tmp_path / "other.onnx"))
    agrees(tmp_path / "other.onnx", w1, 2 * w2, extra)
    agrees(tmp_path / "m.onnx", w1, w2, extra)


def test_saving_over_the_loaded_file_again_and_again(tmp_path):
    w1, w2, extra = two_layers(tmp_path / "m.onnx")
    model = df.load(str(tmp_path / "m.onnx"))
    for factor in (2, 3, 4):
        model.parameters["w1"].set(factor * w1)
        df.save(model, str(tmp_path / "m.onnx"), overwrite=True)
        agrees(tmp_path / "m.onnx", factor * w1, w2, extra)
        # the data file that the user's file came with, and the newest of ours
        assert len(list(tmp_path.glob("*.data"))) == 2
    (tmp_path / "m.onnx.data").unlink()
    agrees(tmp_path / "m.onnx", 4 * w1, w2, extra)


def test_a_save_that_fails_leaves_the_old_model_and_its_data(tmp_path, monkeypatch):
    weights = two_layers(tmp_path / "m.onnx")
    model = df.load(str(tmp_path / "m.onnx"))
    model.parameters["w1"].set(0 * weights[0])
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    monkeypatch.setattr(saving, "same_array", lambda a, b: False)  # as if the disk gave back other bytes
    with pytest.raises(df.ModelError, match="reads differently"):
        df.save(model, str(tmp_path / "m.onnx"), overwrite=True)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_a_new_head_of_a_model_with_a_data_file(tmp_path):
    w1, w2, extra = two_layers(tmp_path / "m.onnx")
    new = df.replace_head(df.load(str(tmp_path / "m.onnx")), classes=1, keep=[3])
    df.save(new, str(tmp_path / "new.onnx"))
    agrees(tmp_path / "new.onnx", w1, w2[:, 3:4], extra[3:4])


def test_a_model_too_large_for_one_file_gets_a_data_file(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "LARGEST", 800)
    monkeypatch.setattr(saving, "WORTH_MOVING", 500)
    model = by_hand()
    df.save(model, str(tmp_path / "hand.onnx"))
    assert (tmp_path / "hand.onnx.data").stat().st_size == model.arrays()["v"].nbytes
    x = np.random.default_rng(1).standard_normal((3, 2, 8, 8)).astype(np.float32)
    theirs = run(tmp_path / "hand.onnx", {"x": x})
    for found in (model(x), df.load(str(tmp_path / "hand.onnx"))(x)):
        np.testing.assert_allclose(found["y"], theirs["y"], rtol=1e-4, atol=1e-5)


def test_a_subgraph_is_trained_and_the_rest_of_the_file_is_kept(tmp_path):
    """Only what an inner value needs is imported; the layers behind it are saved as they were."""
    path = RECORDINGS / "mlp.onnx"
    proto = onnx.load(path)
    inner = proto.graph.node[1].output[0]  # the activation behind the first layer
    model = df.load(str(path), outputs=[inner])
    assert list(model.outputs) == [inner]
    assert len(model.graph.nodes) < len(df.load(str(path)).graph.nodes)
    width = model.outputs[inner].shape[-1]
    x = np.random.default_rng(0).standard_normal((8, 20)).astype(np.float32)
    with df.Trainer(model, loss="mse", optimizer=df.optim.SGD(lr=0.5), devices=["cpu"]) as trainer:
        trainer.step({"x": x, "labels": np.ones((8, width), np.float32)})
        trained = trainer.trainable
    df.save(model, str(tmp_path / "new.onnx"))
    new = onnx.load(tmp_path / "new.onnx")
    assert [n.SerializeToString() for n in new.graph.node] == [n.SerializeToString() for n in proto.graph.node]
    stored = {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
    for tensor in new.graph.initializer:
        assert np.array_equal(numpy_helper.to_array(tensor), stored[tensor.name]) == (tensor.name not in trained)
    full = df.load(str(tmp_path / "new.onnx"))
    np.testing.assert_allclose(full(x)["logits"], run(tmp_path / "new.onnx", {"x": x})["logits"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(df.Session(full).run(x, outputs=[inner])[inner], model(x)[inner], rtol=1e-5, atol=1e-6)


def test_an_output_may_have_the_name_of_another_value(tmp_path):
    g = df.GraphBuilder()
    a = df.ops.add(g.input("x", df.float32, ("n", 4)), 1.0, name="a")
    g.output("a", df.ops.mul(a, 2.0, name="b"))
    model = df.Model(g.build())
    df.save(model, str(tmp_path / "m.onnx"))
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(run(tmp_path / "m.onnx", {"x": x})["a"], model(x)["a"])


def test_operands_that_are_left_out_at_the_end_are_not_written(tmp_path):
    """A fusion of ONNX Runtime ends its process where a layer norm has an empty name for its bias."""
    g = df.GraphBuilder()
    x, scale = g.input("x", df.float32, ("n", 4)), g.parameter("scale", np.ones(4, np.float32))
    first = df.ops.layer_norm(x, scale)[0]
    g.output("y", df.ops.layer_norm(df.ops.add(first, x), scale)[0])
    model = df.Model(g.build())
    df.save(model, str(tmp_path / "m.onnx"))
    assert all("" not in node.input for node in onnx.load(tmp_path / "m.onnx").graph.node)
    given = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_allclose(run(tmp_path / "m.onnx", {"x": given})["y"], model(given)["y"], atol=1e-5)
