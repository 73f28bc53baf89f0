"""Mistakes that authors of plugins make end in errors that name what made them, and stop no other model."""

import os
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import helper

import dataflow as df
from dataflow.errors import GradientError, InputError, PluginError
from dataflow.plugin import Converter, Kernel, Op, OperandSpec, PythonDevice, hookimpl
from dataflow.plugin.registry import load
from dataflow.testing.freshness import stale_library
from dataflow.testing.new_plugin import new_plugin
from tests.support import onnx_model

ANY = OperandSpec(strided=True)


def plugin(name="mine", **hooks):
    module = ModuleType(name)
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


def with_op(op, code):
    """A registry with an op that has a kernel on the reference."""
    kernel = Kernel(op.name, "its reference", (ANY,) * len(op.inputs), (ANY,), code)
    return load(
        [
            plugin(
                dataflow_ops=lambda: [op],
                dataflow_kernels=lambda device: [kernel] if device.role == "reference" else [],
            )
        ]
    )


def model_of(build, *shapes):
    g = df.GraphBuilder()
    g.output("y", build(*(g.input(f"x{i}", df.float32, shape) for i, shape in enumerate(shapes))))
    return df.Model(g.build())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (lambda at, x: x[:1], r"gave a result of shape \[1, 3\]; expected \[2, 3\]"),
        (lambda at, x: None, r"gave None; expected \[2, 3\]"),
        (lambda at, x: 1.0, r"gave a result of shape \[\]; expected \[2, 3\]"),
    ],
)
def test_a_python_kernel_that_gives_another_shape(given, text):
    class Half(PythonDevice):
        name = "half"

        def kernels(self):
            return [Kernel("relu", "half a relu", (ANY,), (ANY,), given)]

    registry = load([plugin(dataflow_devices=lambda: [Half()])])
    session = df.Session(model_of(df.ops.relu, ("n", 3)), ["half", "cpu"], registry=registry)
    with pytest.raises(PluginError, match=f"relu.*kernel 'half a relu' {text}"):
        session.run(np.ones((2, 3), np.float32))


def test_a_python_kernel_that_writes_what_it_reads():
    class Greedy(PythonDevice):
        name = "greedy"

        def kernels(self):
            return [Kernel("relu", "greedy relu", (ANY,), (ANY,), lambda at, x: np.maximum(x, 0, out=x))]

    registry = load([plugin(dataflow_devices=lambda: [Greedy()])])
    session = df.Session(model_of(df.ops.relu, ("n", 3)), ["greedy", "cpu"], registry=registry)
    x = np.float32([[-1, 2, -3]])
    with pytest.raises(ValueError, match="read-only"):
        session.run(x)
    np.testing.assert_array_equal(x, [[-1, 2, -3]])


def test_a_refusal_with_a_constructor_of_its_own_is_passed_on():
    class Own(InputError):
        def __init__(self, code, reason):
            super().__init__(f"{code}: {reason}")

    def code(at, x):
        raise Own(7, "never")

    op = Op("refusing", ("x",), lambda x: x)
    session = df.Session(model_of(op, (3,)), registry=with_op(op, code))
    with pytest.raises(Own, match="7: never"):
        session.run(np.ones(3, np.float32))


def test_what_a_python_kernel_raises_names_its_node():
    op = Op("looked_up", ("x",), lambda x: x)
    session = df.Session(model_of(op, (3,)), registry=with_op(op, lambda at, x: at["nothing"]))
    with pytest.raises(KeyError) as caught:
        session.run(np.ones(3, np.float32))
    assert any("looked_up" in note for note in caught.value.__notes__)


def test_a_gradient_rule_with_too_many_results():
    op = Op(
        "product_of_mine",
        ("a", "b"),
        lambda a, b: a,
        gradient=lambda node, dy: (dy * node.inputs[1], dy * node.inputs[0], dy),
    )
    registry = with_op(op, lambda at, a, b: a * b)
    x = np.ones(3, np.float32)
    with pytest.raises(GradientError, match=r"product_of_mine.*gave 3 gradients; expected one for each of 2 inputs"):
        df.vjp(model_of(op, (3,), (3,)), {"x0": x, "x1": x}, registry=registry)


@pytest.mark.parametrize("flag", ["elementwise", "reduction"])
def test_an_elementwise_op_of_a_plugin_beside_those_that_are_fused(flag):
    op = Op("cube", ("x",), lambda x: x, **{flag: True})
    registry = with_op(op, lambda at, x: x**3)
    model = model_of(lambda x: df.ops.tanh(op(x * 2.0) + 1.0), (3,))
    x = np.float32([0.1, -0.2, 0.3])
    found = df.Session(model, ["cpu"], registry=registry).run(x)["y"]
    np.testing.assert_allclose(found, np.tanh((2 * x) ** 3 + 1), rtol=1e-5)


@pytest.mark.parametrize(("size", "given"), [(1, 0), (4, 1), (1, 2), (1 << 20, 1)])
def test_an_optimizer_with_another_number_of_hyperparameters(size, given):
    class Own:
        lr, schedule, slots, hyper_size = 0.1, None, (), size

        def hyper(self, step, lr):
            return np.full(given, lr, np.float32)

        def build(self, g, param, grad, slots, hyper, scale):
            first = df.ops.reshape(df.ops.slice(hyper, starts=(0,), stops=(1,), steps=(1,)), shape=())
            return (param - grad * scale * first,)

    g = df.GraphBuilder()
    g.output("y", g.input("x", df.float32, ("n", 2)) @ g.parameter("w", np.ones((2, 2), np.float32)))
    batch = {"x": np.ones((3, 2), np.float32), "labels": np.zeros((3, 2), np.float32)}
    with (
        df.Trainer(df.Model(g.build()), "mse", Own()) as trainer,
        pytest.raises(PluginError, match=rf"Own: hyper\(\) gave \[{given}\] numbers; expected \[{size}\]"),
    ):
        trainer.step(batch)


def test_attributes_of_another_kind_than_their_default():
    op = Op("scaled_by", ("x",), lambda x, **_: x, attributes={"by": 1.0, "sizes": (), "mode": "a"})
    registry = with_op(op, lambda at, x: x * at["by"])

    def run(**attributes):
        return df.Session(model_of(lambda x: op(x, **attributes), (3,)), registry=registry).run(np.ones(3, np.float32))

    for number in (2, 2.0, np.int64(2), np.float32(2)):
        np.testing.assert_array_equal(run(by=number)["y"], [2, 2, 2])
    for wrong, text in (
        ({"by": "2"}, "'by' is '2'; expected a number"),
        ({"by": None}, "'by' is None; expected a number"),
        ({"sizes": 3.0}, "'sizes' is 3.0; expected a list"),
        ({"mode": 1.5}, "'mode' is 1.5; expected text"),
    ):
        with pytest.raises(InputError, match=text):
            run(**wrong)


def test_a_converter_of_an_operator_that_is_converted_already(tmp_path):
    registry = load([plugin(onnx_converters=lambda: [Converter("", "Relu", 1, lambda importer, x: importer.value(x))])])
    for operator in ("Tanh", "Relu"):
        node = helper.make_node(operator, ["x"], ["y"])
        onnx.save(onnx_model([node], [("x", 1, [3])], [("y", 1, [3])]), tmp_path / f"{operator}.onnx")
    df.load(str(tmp_path / "Tanh.onnx"), registry=registry)
    with pytest.raises(PluginError, match="converts 'Relu', which dataflow converts itself"):
        df.load(str(tmp_path / "Relu.onnx"), registry=registry)


def test_a_kernel_that_replaces_what_the_reference_defines():
    kernel = Kernel("relu", "sevens", (ANY,), (ANY,), lambda at, x: x * 0 + 7, priority=9)
    registry = load([plugin(dataflow_kernels=lambda device: [kernel] if device.role == "reference" else [])])
    assert "defines what the op computes" in registry.plugins[-1].problem
    model = model_of(lambda x: x + df.ops.relu(x.builder.constant(np.float32([-1, 2]))), (2,))
    np.testing.assert_array_equal(df.Session(model, registry=registry).run(np.zeros(2, np.float32))["y"], [0, 2])


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("class", "op", "a keyword of Python"),
        ("relu", "op", "an op of dataflow"),
        ("numpy", "device", "a plugin of dataflow"),
        ("onnx", "converter", "a plugin of dataflow"),
    ],
)
def test_names_of_new_plugins_that_are_taken(tmp_path, name, kind, text):
    with pytest.raises(InputError, match=text):
        new_plugin(tmp_path / "new", name, kind)
    assert not (tmp_path / "new").exists()


def test_an_installed_library_may_be_a_moment_older_than_its_source(tmp_path):
    """Installers write the files of a wheel in any order."""
    for name in ("__init__.py", "native.c", "_native.so"):
        (tmp_path / name).write_text("")
    for seconds, stale in ((0.5, False), (60, True)):
        os.utime(tmp_path / "_native.so", (1e9, 1e9))
        os.utime(tmp_path / "native.c", (1e9 + seconds, 1e9 + seconds))
        assert (stale_library(str(tmp_path / "__init__.py")) is not None) == stale
