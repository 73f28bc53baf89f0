"""Which stored tensors of a file are one: copies with other axes of 1 are, parameters of two modules aren't."""

import logging

import numpy as np
import onnx
import pytest
from onnx import helper

import dataflow as df
from dataflow.ir.rewrite import rewrite
from dataflow.train.tied_weights import Tie, find_ties
from dataflow_onnx.file.noted import FOLDED, SIGNATURE
from dataflow_onnx.loading import load_bytes
from tests.support import ints, onnx_model

RANDOM = np.random.default_rng(0)


def random(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def note(entry, key, value):
    found = entry.metadata_props.add()
    found.key, found.value = key, value


def with_notes(proto, learned, computed=()):
    """The file as PyTorch's exporter notes parameters, and what it computed of some."""
    lines = "".join(f"p_{i}: PARAMETER target='{name}'\n" for i, name in enumerate(learned))
    note(proto.graph, SIGNATURE, f"# inputs\n{lines}")
    for name, source in dict(computed).items():
        value = proto.graph.value_info.add()
        value.name = name
        note(value, FOLDED, f"['{source}']")
    return load_bytes(proto.SerializeToString())


def two_layers(first, second):
    nodes = [helper.make_node("Gemm", ["x", first], ["h"]), helper.make_node("Gemm", ["h", second], ["y"])]
    weight = random(4, 4)
    return onnx_model(nodes, [("x", 1, [2, 4])], [("y", 1, [2, 4])], [(first, weight), (second, weight)])


def equal_after_a_step(model, one, other, **options):
    batch = {"x": random(2, 4), "labels": random(2, 4)}
    with df.Trainer(model, "mse", "sgd:lr=0.1,momentum=0", **options) as trainer:
        trainer.step(batch)
    return np.array_equal(model.parameters[one].array, model.parameters[other].array)


@pytest.mark.parametrize(
    ("learned", "computed", "tied"),
    [
        (("a.weight", "b.weight"), {}, False),
        (("a.weight", "b.weight"), {"val_0": "a.weight", "val_1": "b.weight"}, False),
        (("a.weight",), {"val_0": "a.weight", "val_1": "a.weight"}, True),
        ((), {}, True),
    ],
)
def test_parameters_of_two_modules_that_begin_alike_are_two(learned, computed, tied):
    names = list(computed) or ["a.weight", "b.weight"]
    assert equal_after_a_step(with_notes(two_layers(*names), learned, computed), *names) == tied


@pytest.mark.parametrize("shape", [(5, 3, 1), (1, 1, 5, 3), (1, 5, 3)])
@pytest.mark.parametrize("prefix", ["val_7", "onnx::Sub_7"])
def test_a_copy_with_other_axes_of_1(shape, prefix):
    """A table that is looked up, and another form of it that a sum reads: both stay equal, as PyTorch trains them."""
    table = random(5, 3)
    nodes = [
        helper.make_node("Gather", ["e.weight", "i"], ["g"]),
        helper.make_node("Sub", ["copied", prefix] if "Sub" in prefix else [prefix, "copied"], ["d"]),
        helper.make_node("Reshape", ["d", "flat"], ["r"]),
        helper.make_node("ReduceSum", ["r"], ["s"], keepdims=0),
        helper.make_node("Mul", ["g", "s"], ["y"]),
    ]
    stored = [
        ("e.weight", table),
        (prefix, table.reshape(shape)),
        ("copied", np.zeros((), np.float32)),
        ints("flat", -1),
    ]
    proto = onnx_model(nodes, [("i", 7, ["n"])], [("y", 1, ["n", 3])], stored)
    if prefix == "val_7":
        model = with_notes(proto, ["e.weight"], {prefix: "e.weight"})
    else:
        proto.producer_name = "pytorch"
        proto.graph.node[0].name = "/e/Gather"
        model = load_bytes(proto.SerializeToString())
    batch = {"i": np.array([0, 3]), "labels": random(2, 3)}
    with df.Trainer(model, "mse", "sgd:lr=0.1,momentum=0") as trainer:
        trainer.step(batch)
    found = model.parameters
    assert not np.array_equal(found["e.weight"].array, table)
    np.testing.assert_array_equal(found[prefix].array, found["e.weight"].array.reshape(shape))


def test_rows_that_an_exporter_repeated_for_each_sample_are_not_trained(caplog):
    """A class token, folded with its expansion to a fixed batch: each sample would get one of its own."""
    token = np.repeat(random(1, 1, 4), 3, 0)
    nodes = [
        helper.make_node("Concat", ["expand", "x"], ["c"], axis=1),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    proto = onnx_model(nodes, [("x", 1, [3, 2, 4])], [("y", 1, [3, 3, 2])], [("expand", token), ("w", random(4, 2))])
    model = with_notes(proto, ["token", "w"], {"expand": "token"})
    with caplog.at_level(logging.WARNING, "dataflow"), df.Trainer(model, "mse", "sgd:lr=0.1") as trainer:
        assert trainer.trainable == ("w",)
        trainer.step({"x": random(3, 2, 4), "labels": random(3, 3, 2)})
    np.testing.assert_array_equal(model.parameters["expand"].array, token)
    assert "expand has equal rows" in caplog.text
    with df.Trainer(model, "mse", trainable=["expand", "w"]) as trainer:
        assert set(trainer.trainable) == {"expand", "w"}


def test_a_saved_copy_is_written_in_its_own_shape(tmp_path):
    table = random(5, 3)
    nodes = [
        helper.make_node("Gather", ["e.weight", "i"], ["g"]),
        helper.make_node("Mul", ["g", "row"], ["m"]),
        helper.make_node("Add", ["m", "val_7"], ["a"]),
        helper.make_node("ReduceSum", ["a", "axes"], ["y"], keepdims=0),
    ]
    stored = [("e.weight", table), ("val_7", table[None]), ("row", np.ones(3, np.float32)), ints("axes", 0)]
    proto = onnx_model(nodes, [("i", 7, [5])], [("y", 1, [5, 3])], stored)
    model = with_notes(proto, ["e.weight"], {"val_7": "e.weight"})
    with df.Trainer(model, "mse", "sgd:lr=0.1") as trainer:
        trainer.step({"i": np.arange(5), "labels": random(5, 3)})
    df.save(model, tmp_path / "m.onnx")
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(tmp_path / "m.onnx").graph.initializer}
    assert arrays["val_7"].shape == (1, 5, 3)
    np.testing.assert_array_equal(arrays["val_7"][0], arrays["e.weight"])


def test_a_parameter_whose_rows_begin_alike_trains():
    """It is one of the module, and no batch has as many rows."""
    rows = np.repeat(random(1, 4), 3, 0)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "mu"], ["y"])]
    proto = onnx_model(nodes, [("x", 1, [3, 4])], [("y", 1, [3, 4])], [("w", random(4, 4)), ("mu", rows)])
    with df.Trainer(with_notes(proto, ["w", "mu"]), "mse", "sgd:lr=0.1") as trainer:
        assert set(trainer.trainable) == {"w", "mu"}


def test_equal_tensors_with_equal_rows_are_tied():
    rows = np.repeat(random(1, 4), 3, 0)
    nodes = [helper.make_node("Add", ["x", "a"], ["h"]), helper.make_node("Mul", ["h", "b"], ["y"])]
    proto = onnx_model(nodes, [("x", 1, ["n", 3, 4])], [("y", 1, ["n", 3, 4])], [("a", rows), ("b", rows)])
    assert find_ties(load_bytes(proto.SerializeToString())) == {"b": Tie("a")}


def test_an_edited_model_knows_which_parameters_are_two():
    model = with_notes(two_layers("a.weight", "b.weight"), ("a.weight", "b.weight"))
    graph = rewrite(model.graph, lambda *_: None, initializers=dict(model.graph.initializers))
    assert [data.origin for data in graph.initializers.values()] == ["a.weight", "b.weight"]
