"""batch="free": a fixed batch size that is baked into a file."""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import dataflow as df

sys.path.insert(0, str(Path(__file__).parents[1] / "light"))
from seeded import seeded

from tests.support import onnx_model

node = helper.make_node


def written(path, nodes, initializers, batch, shape=(4, 6), out=None):
    given, result = [("x", TensorProto.FLOAT, [batch, *shape])], [("y", TensorProto.FLOAT, out)]
    onnx.save(onnx_model(nodes, given, result, initializers), path)
    return str(path)


def baked(path, batch):
    """Heads split and joined by constant shapes, a token put before each sample, and a product."""
    random = np.random.default_rng(0)
    nodes = [
        node("Reshape", ["x", "heads"], ["a"]),
        node("Transpose", ["a"], ["b"], perm=[0, 2, 1, 3]),
        node("Reshape", ["b", "flat"], ["c"]),
        node("Relu", ["c"], ["d"]),
        node("Reshape", ["d", "back"], ["e"]),
        node("Expand", ["token", "many"], ["f"]),
        node("Concat", ["f", "e"], ["g"], axis=1),
        node("Reshape", ["g", "rows"], ["h"]),
        node("MatMul", ["h", "w"], ["y"]),
    ]
    stored = [
        ("heads", np.array([batch, 4, 2, 3])),
        ("flat", np.array([batch * 2, 4, 3])),
        ("back", np.array([batch, 4, 6])),
        ("token", random.standard_normal((1, 1, 6)).astype(np.float32)),
        ("many", np.array([batch, 1, 6])),
        ("rows", np.array([batch, -1])),
        ("w", random.standard_normal((30, 5)).astype(np.float32)),
    ]
    return written(path, nodes, stored, batch, out=[batch, 5])


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_constants_with_the_batch_in_them(batch, tmp_path):
    path = baked(tmp_path / "m.onnx", batch)
    with pytest.raises(df.InputError, match="expected"):
        df.Session(df.load(path)).run(np.zeros((batch + 1, 4, 6), np.float32))
    model = df.load(path, batch="free")
    assert [str(t) for t in (*model.inputs.values(), *model.outputs.values())] == [
        "float32[batch, 4, 6]", "float32[batch, 5]",
    ]  # fmt: skip
    x = np.random.default_rng(1).standard_normal((2 * batch, 4, 6)).astype(np.float32)
    engine = onnxruntime.InferenceSession(path)
    expected = np.concatenate([engine.run(None, {"x": x[i : i + batch]})[0] for i in (0, batch)])
    np.testing.assert_allclose(df.Session(model).run(x)["y"], expected, rtol=1e-5, atol=1e-5)


def test_a_freed_model_trains_with_any_batch_and_is_saved_with_a_free_one(tmp_path):
    model = df.load(baked(tmp_path / "m.onnx", 1), batch="free")
    data = {"x": np.random.default_rng(1).standard_normal((11, 4, 6)).astype(np.float32), "labels": np.arange(11) % 5}
    with df.Trainer(model, devices=["cpu"]) as trainer:
        trainer.fit(data, epochs=1, batch_size=4, progress=False)
    df.save(model, str(tmp_path / "tuned.onnx"))
    (theirs,) = onnxruntime.InferenceSession(str(tmp_path / "tuned.onnx")).run(None, {"x": data["x"]})
    np.testing.assert_allclose(df.Session(model).run(data["x"])["y"], theirs, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(df.load(str(tmp_path / "tuned.onnx"))(data["x"])["y"], model(data["x"])["y"])


def test_samples_that_depend_on_each_other_are_refused(tmp_path):
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("ReduceMean", ["a", "axes"], ["m"], name="middle", keepdims=1),
        node("Sub", ["a", "m"], ["y"]),
    ]
    path = written(tmp_path / "m.onnx", nodes, [("axes", np.array([0]))], 2, out=[2, 4, 6])
    with pytest.raises(df.ModelError, match=r"output 'y' for a batch of two .* from ReduceMean 'middle', opset 18 on"):
        df.load(path, batch="free")


def test_noise_that_all_samples_share_is_the_same_in_the_runs_that_are_compared(tmp_path):
    """A session draws anew in each run."""
    nodes = [node("RandomNormal", [], ["n"], shape=[4, 6]), node("Add", ["x", "n"], ["y"])]
    model = df.load(written(tmp_path / "m.onnx", nodes, [], 2, out=[2, 4, 6]), batch="free")
    x = np.zeros((3, 4, 6), np.float32)
    session = df.Session(model)
    y = session.run(x)["y"]
    assert (y == y[0]).all() and (session.run(x)["y"] != y).any()


def test_an_ambiguous_batch_size_is_refused(tmp_path):
    bias = np.random.default_rng(0).standard_normal((2, 4, 6)).astype(np.float32)
    path = written(tmp_path / "m.onnx", [node("Add", ["x", "bias"], ["y"], name="own")], [("bias", bias)], 2)
    with pytest.raises(df.ModelError, match=r"batch='free'.*Add 'own', opset 18"):
        df.load(path, batch="free")


def test_a_free_batch_stays_and_an_unknown_word_is_refused(tmp_path):
    path = written(tmp_path / "m.onnx", [node("Relu", ["x"], ["y"])], [], "N")
    assert [str(t) for t in df.load(path, batch="free").inputs.values()] == ["float32[N, 4, 6]"]
    with pytest.raises(df.InputError, match="'open'; expected 'free'"):
        df.load(path, batch="open")


def test_a_light_model_runs_in_batches(tmp_path):
    proto, _ = seeded("squeezenet")
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    x = np.random.default_rng(0).standard_normal((2, 3, 224, 224)).astype(np.float32)
    ((found,),) = [df.Session(df.load(str(path), batch="free"), devices=["cpu"]).run(x).values()]
    engine = onnxruntime.InferenceSession(str(path))
    expected = [engine.run(None, {engine.get_inputs()[0].name: x[i : i + 1]})[0] for i in range(2)]
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-3, atol=1e-6)


def with_rows(path, kind, batch):
    """What exporters fold of a batch size: numbers of samples, rows that are counted, a token and states for each."""
    random = np.random.default_rng(1)
    w = random.standard_normal((6, 6)).astype(np.float32)
    stored = [("w", w)]
    if kind == "numbers":  # gathers x[b, s] by pairs of indices, one for each element
        pairs = np.stack(np.meshgrid(np.arange(batch), [0, 2, 3], indexing="ij"), -1)
        nodes = [node("GatherND", ["x", "pairs"], ["g"]), node("MatMul", ["g", "w"], ["y"])]
        stored.append(("pairs", pairs))
    elif kind == "rows":  # of all samples one behind the other
        nodes = [
            node("Reshape", ["x", "flat"], ["f"]),
            node("Gather", ["f", "index"], ["g"]),
            node("Reshape", ["g", "back"], ["h"]),
            node("MatMul", ["h", "w"], ["y"]),
        ]
        index = (np.arange(batch)[:, None] * 4 + [3, 1, 0, 0, 2]).reshape(-1)
        stored += [("flat", np.array([-1, 6])), ("index", index), ("back", np.array([batch, -1, 6]))]
    elif kind == "token":
        token = np.repeat(random.standard_normal((1, 1, 6)).astype(np.float32), batch, 0)
        nodes = [node("Concat", ["token", "x"], ["c"], axis=1), node("MatMul", ["c", "w"], ["y"])]
        stored.append(("token", token))
    elif kind == "mask":
        nodes = [node("Where", ["mask", "x", "zero"], ["c"]), node("MatMul", ["c", "w"], ["y"])]
        mask = np.repeat(random.random((1, 4, 1)) < 0.5, batch, 0)
        stored += [("mask", mask), ("zero", np.zeros(1, np.float32))]
    else:
        shapes = {"W": (2, 9, 6), "R": (2, 9, 3), "B": (2, 18)}
        arrays = [(name, random.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items()]
        states = np.zeros((2, batch, 3), np.float32)
        nodes = [
            node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            node("GRU", ["t", "W", "R", "B", "", "h0"], ["", "y_h"], hidden_size=3, direction="bidirectional"),
            node("Transpose", ["y_h"], ["y"], perm=[1, 0, 2]),
        ]
        stored = [*arrays, ("h0", states)]
    return written(path, nodes, stored, batch)


@pytest.mark.parametrize("kind", ["numbers", "rows", "token", "mask", "states"])
@pytest.mark.parametrize("batch", [2, 4])
def test_stored_tensors_with_a_row_for_each_sample(kind, batch, tmp_path):
    model = df.load(with_rows(tmp_path / "m.onnx", kind, batch), batch="free")
    for size in (1, 3, batch):
        x = np.random.default_rng(2).standard_normal((size, 4, 6)).astype(np.float32)
        session = onnxruntime.InferenceSession(
            with_rows(tmp_path / "n.onnx", kind, size), providers=["CPUExecutionProvider"]
        )
        (expected,) = session.run(None, {"x": x})
        np.testing.assert_allclose(model(x)["y"], expected, rtol=1e-4, atol=1e-5)


def test_rows_of_samples_that_differ_stay_as_they_are(tmp_path):
    """No batch has other noise for its second sample."""
    noise = np.random.default_rng(3).standard_normal((2, 4, 6)).astype(np.float32)
    path = written(tmp_path / "m.onnx", [node("Add", ["x", "noise"], ["y"])], [("noise", noise)], 2)
    with pytest.raises(df.ModelError, match="batch='free'"):
        df.load(path, batch="free")
