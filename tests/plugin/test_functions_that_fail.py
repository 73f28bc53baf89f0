"""Whatever function of a plugin fails or leaves the process is named, and the process stays the user's."""

import re
import sys

import numpy as np
import onnx
import pytest
from onnx import helper

import dataflow as df
from dataflow.errors import DataflowError, PluginError
from dataflow.plugin import (
    Converter,
    Exporter,
    Kernel,
    Named,
    Op,
    Pass,
    Pattern,
    PythonDevice,
    View,
)
from dataflow.plugin.registry import load
from tests.plugin.plugins import ANY, model_of, plugin, with_op

X = np.float32([1, -2, 3])


def leaves(*given, **settings):
    sys.exit(3)


def fails(*given, **settings):
    raise LookupError("nothing")


def alike(x, *others):
    return x


def run(op):
    return df.Session(model_of(op, (3,)), registry=with_op(op, lambda at, x: x * 2)).run(X)


def run_pass(function):
    registry = load([plugin(dataflow_passes=lambda: [Pass("mine", "fuse", function)])])
    df.Session(model_of(df.ops.relu, (3,)), registry=registry).run(X)


def run_pattern(*, infer=alike, build=lambda a, b: df.ops.tanh(df.ops.mul(a, b)), attributes=None):
    composed = df.ops.tanh
    op = Op("mine", ("a", "b"), infer, decompose=lambda a, b: composed(a * b), pattern=(Pattern(build, attributes),))
    kernel = Kernel("mine", "k", (ANY, ANY), (ANY,), lambda at, a, b: np.tanh(a * b))
    offered = {
        "dataflow_ops": lambda: [op],
        "dataflow_kernels": lambda device: [kernel] if device.role == "reference" else [],
    }
    model = model_of(lambda a, b: df.ops.tanh(df.ops.mul(a, b)), (3,), (3,))
    df.Session(model, ["numpy"], registry=load([plugin(**offered)])).run({"x0": X, "x1": X})


def run_accepts(function):
    class Picky(PythonDevice):
        name = "picky"

        def kernels(self):
            return [Kernel("relu", "picky relu", (ANY,), (ANY,), lambda at, x: x, accepts=function)]

    registry = load([plugin(dataflow_devices=lambda: [Picky()])])
    df.Session(model_of(df.ops.relu, (3,)), ["picky", "cpu"], registry=registry).run(X)


def run_converter(function, folder):
    registry = load([plugin(onnx_converters=lambda: [Converter("org.mine", "Mine", 1, function)])])
    shapes = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Mine", ["x"], ["y"], domain="org.mine")], "g", shapes[:1], shapes[1:])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.mine", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "mine.onnx")
    df.load(folder / "mine.onnx", registry=registry)


def run_exporter(function, folder):
    op = Op("mine", ("x",), alike, decompose=lambda x: df.ops.mul(x, 2.0))
    offered = {
        "dataflow_ops": lambda: [op],
        "onnx_exporters": lambda: [Exporter("mine", "org.mine", "Mine", attributes=function)],
    }
    df.save(model_of(op, (3,)), folder / "mine.onnx", registry=load([plugin(**offered)]))


def make_loss(function):
    registry = load([plugin(dataflow_losses=lambda: [Named("mine", type("Mine", (), {"__init__": function}))])])
    g = df.GraphBuilder()
    g.output("y", df.ops.mul(g.input("x", df.float32, ("n", 3)), g.parameter("w", X)))
    df.Trainer(df.Model(g.build()), loss="mine", registry=registry)


CALLS = {
    "infer": (lambda function, folder: run(Op("mine", ("x",), function)), "mine .*infer|mine: its operands"),
    "cost": (lambda function, folder: run(Op("mine", ("x",), alike, cost=function)), "mine .*its cost"),
    "view": (lambda function, folder: run(Op("mine", ("x",), alike, view=function)), "mine .*its view"),
    "pass": (lambda function, folder: run_pass(function), "pass 'mine' of the plugin mine"),
    "infer of a pattern": (lambda function, folder: run_pattern(infer=function), "mine: infer"),
    "pattern": (lambda function, folder: run_pattern(build=function), "mine: its pattern"),
    "attributes of a pattern": (
        lambda function, folder: run_pattern(attributes=lambda: function()),
        "mine: attributes of its pattern",
    ),
    "accepts": (lambda function, folder: run_accepts(function), "accepts of the kernel 'picky relu'"),
    "converter": (
        lambda function, folder: run_converter(lambda c, x: function(), folder),
        "org.mine.Mine .*the converter failed",
    ),
    "exporter": (run_exporter, "mine .*attributes of the exporter of 'mine'"),
    "loss": (lambda function, folder: make_loss(function), "loss 'mine' can't be made"),
}


@pytest.mark.parametrize(("function", "says"), [(leaves, "SystemExit: 3"), (fails, "nothing")])
@pytest.mark.parametrize("what", CALLS)
def test_it_is_named(what, function, says, tmp_path):
    call, named = CALLS[what]
    with pytest.raises(DataflowError) as caught:
        call(function, tmp_path)
    assert re.search(f"(?s)({named}).*{says}", str(caught.value)), str(caught.value)


@pytest.mark.parametrize("given", [(1, 2), View(0, (1, 1)), 5])
def test_a_view_that_is_none(given):
    with pytest.raises(PluginError, match=r"mine .*its view gave .*; expected None, or a View with a stride for each"):
        run(Op("mine", ("x",), alike, view=lambda node, strides: given))


@pytest.mark.parametrize("rows", [4, "n"])
@pytest.mark.parametrize(
    ("view", "text"),
    [
        (lambda n, s: View(1, s), "elements 1 to 8 of its operand, whose elements lie from 0 to 7"),
        (lambda n, s: View(-1, s), "elements -1 to 6 of"),
        (lambda n, s: View(64, s), "elements 64 to 71 of"),
        (lambda n, s: View(0, (s[0], 2 * s[1])), "elements 0 to 8 of"),
        (lambda n, s: View(0, (-s[0], s[1])), "elements -6 to 1 of"),
    ],
)
def test_a_view_outside_of_its_operand_would_be_of_other_values(view, text, rows):
    op, x = Op("mine", ("x",), alike, view=view), np.arange(8, dtype=np.float32).reshape(4, 2)
    model = model_of(lambda x: df.ops.tanh(op(df.ops.exp(x))), (rows, 2))
    registry = load([plugin(dataflow_ops=lambda: [op])])
    with pytest.raises(PluginError, match=rf"mine .*its view gave View\(.*{text}"):
        df.Session(model, registry=registry).run(x)


@pytest.mark.parametrize("rows", [4, "n"])
def test_a_view_of_elements_of_another_size_has_strides_of_its_own(rows):
    """Halves of float64, and what lies behind pairs of float32."""

    def halves(node, strides):
        return View(0, (*(2 * stride for stride in strides), 1))

    def pairs(node, strides):
        return View(0, (strides[0],))  # of pairs: twice as far

    x = np.arange(8, dtype=np.float64).reshape(4, 2)
    op = Op("mine", ("x",), lambda x: df.TensorType(df.float32, (*x.shape, 2)), view=halves)
    g = df.GraphBuilder()
    g.output("y", df.ops.neg(op(g.input("x", df.float64, (rows, 2)))))
    registry = load([plugin(dataflow_ops=lambda: [op])])
    found = df.Session(df.Model(g.build()), registry=registry).run(x)["y"]
    np.testing.assert_array_equal(found, -x.view(np.float32).reshape(4, 2, 2))
    op = Op("mine", ("x",), lambda x: df.TensorType(df.float64, x.shape[:1]), view=pairs)
    model = model_of(lambda x: df.ops.neg(op(df.ops.exp(x))), (rows, 2))
    with pytest.raises(PluginError, match="elements 0 to 13 of its operand, whose elements lie from 0 to 7"):
        df.Session(model, registry=load([plugin(dataflow_ops=lambda: [op])])).run(x.astype(np.float32))


@pytest.mark.parametrize("rows", [4, "n"])
def test_a_view_backwards_and_of_a_view_is_within(rows):
    def reversed_rows(node, strides):
        return View((node.inputs[0].type.shape[0] - 1) * strides[0], (-strides[0], *strides[1:]))

    op, x = Op("mine", ("x",), alike, view=reversed_rows), np.arange(8, dtype=np.float32).reshape(4, 2)
    model = model_of(lambda x: df.ops.tanh(op(df.ops.transpose(op(x), perm=(1, 0)))), (rows, 2))
    found = df.Session(model, registry=load([plugin(dataflow_ops=lambda: [op])])).run(x)["y"]
    np.testing.assert_allclose(found, np.tanh(x[::-1].T[::-1]), rtol=1e-6)


def test_a_kernel_that_changes_its_attributes():
    """They are the graph's: what it changed would hold for the next run."""
    op = Op("raised", ("x",), lambda x, by: x, attributes={"by": 1})

    def code(at, x):
        at["by"] = at["by"] + 1
        return x * at["by"]

    session = df.Session(model_of(op, (3,)), registry=with_op(op, code))
    with pytest.raises(TypeError, match="does not support item assignment") as caught:
        session.run(X)
    assert any("in a kernel of raised" in note for note in caught.value.__notes__)


def test_a_kernel_whose_result_is_masked():
    op = Op("masked", ("x",), alike)
    session = df.Session(model_of(op, (3,)), registry=with_op(op, lambda at, x: np.ma.masked_less(x, 0)))
    with pytest.raises(PluginError, match="gave a masked array; expected one without a mask"):
        session.run(X)


def test_a_device_whose_open_gives_nothing():
    class Nothing(PythonDevice):
        name = "nothing"

        def kernels(self):
            return [Kernel("relu", "k", (ANY,), (ANY,), lambda at, x: x)]

        def open(self, options, precision="float32"):
            return None

    registry = load([plugin(dataflow_devices=lambda: [Nothing()])])
    with pytest.raises(PluginError, match=r"device 'nothing': open\(\) gave None; expected a Backend"):
        df.Session(model_of(df.ops.relu, (3,)), ["nothing", "cpu"], registry=registry).run(X)
