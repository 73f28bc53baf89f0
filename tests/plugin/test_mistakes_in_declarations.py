"""What authors of ops declare wrongly ends in errors that name it, and stops no other model."""

import functools
import importlib
import re

import numpy as np
import pytest

import dataflow as df
from dataflow.errors import GradientError, InputError, PluginError
from dataflow.plugin import (
    MultiOp,
    Op,
    add_gradients,
)
from dataflow.plugin.registry import load
from dataflow.testing.new_plugin import new_plugin
from tests.plugin.plugins import leaving, model_of, plugin, with_op


def test_a_gradient_rule_that_leaves_the_process():
    op = Op("tripled", ("x",), lambda x: x, gradient=leaving)
    g = df.GraphBuilder()
    w = g.parameter("w", np.ones(3, np.float32))
    y = op(w)
    with pytest.raises(PluginError, match=r"tripled.*SystemExit: 4"):
        add_gradients(g, {y: g.constant(np.ones(3, np.float32))}, [w])


def test_a_gradient_rule_with_too_many_results():
    op = Op(
        "product_of_mine",
        ("a", "b"),
        lambda a, b: a,
        gradient=lambda node, dy: (dy * node.inputs[1], dy * node.inputs[0], dy),
    )
    registry = with_op(op, lambda at, a, b: a * b)
    x = np.ones(3, np.float32)
    with pytest.raises(GradientError, match=r"product_of_mine.*gave 3 gradients; expected one, or None, for"):
        df.vjp(model_of(op, (3,), (3,)), {"x0": x, "x1": x}, registry=registry)


@pytest.mark.parametrize(
    ("rule", "error", "text"),
    [
        (lambda node, dy: dy, GradientError, "gave 1 gradients; expected one, or None, for each of 2 inputs"),
        (lambda node, dy: {}["k"], PluginError, "its gradient rule failed: KeyError: 'k'"),
        (lambda node: None, PluginError, "its gradient rule failed: TypeError"),
        (lambda node, dy: (1.0, 1.0), PluginError, r"its gradient rule gave \(1.0, 1.0\); expected a value or None"),
    ],
)
def test_a_wrong_gradient_rule(rule, error, text):
    op = Op("product_of_mine", ("a", "b"), lambda a, b: a, gradient=rule)
    registry = with_op(op, lambda at, a, b: a * b)
    x = np.ones(3, np.float32)
    with pytest.raises(error, match=rf"product_of_mine.*{text}"):
        df.vjp(model_of(op, (3,), (3,)), {"x0": x, "x1": x}, registry=registry)


def test_an_input_that_nothing_is_differentiated_by_may_be_left_out_of_a_rule():
    op = Op("scaled_by", ("a", "b"), lambda a, b: a, gradient=lambda node, dy: dy * node.inputs[1])
    registry = with_op(op, lambda at, a, b: a * b)
    x = np.float32([1, 2, 3])
    graph = df.value_and_grad(model_of(lambda a, b: df.ops.reduce_sum(op(a, b), axes=(0,)), (3,), (3,)).graph, ["x0"])
    found = df.Session(df.Model(graph), registry=registry).run({"x0": x, "x1": x})
    np.testing.assert_array_equal(found["grad.x0"], x)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda x: {}["k"], "its decomposition failed: KeyError: 'k'"),
        (lambda x: None, "its decomposition gave None; expected a value"),
        (lambda x: (), "its decomposition gave 0 values; expected y"),
        (lambda x: (x, x), "its decomposition gave 2 values; expected y"),
        (lambda x: df.ops.reduce_sum(x, axes=(0,)), r"gave float32\[1\] for .*infer says is float32\[3\]"),
        (lambda x: df.ops.cast(x, to=df.float64), r"gave float64\[3\] for .*infer says is float32\[3\]"),
    ],
)
def test_a_wrong_decomposition(made, text):
    op = Op("in_terms", ("x",), lambda x: x, decompose=made)
    registry = load([plugin(dataflow_ops=lambda: [op])])
    with pytest.raises(PluginError, match=rf"in_terms.*{text}"):
        df.Session(model_of(op, (3,)), registry=registry).run(np.ones(3, np.float32))


@pytest.mark.parametrize("through", ["vjp", "grad", "session"])
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_decomposition_that_does_not_end(length, through):
    """Ops that are made of each other in a circle; the message doesn't grow with what they became."""
    ops = []
    for index in range(length):
        made = functools.partial(lambda after, x: ops[after](x), (index + 1) % length)
        ops.append(Op(f"circle{index}", ("x",), lambda x: x, decompose=made))
    model, registry = model_of(ops[0], (3,)), load([plugin(dataflow_ops=lambda: ops)])
    with pytest.raises(PluginError, match=r"^circle\d: the decomposition doesn't end: after 64 steps") as raised:
        if through == "session":
            df.Session(model, registry=registry).run(np.ones(3, np.float32))
        elif through == "grad":
            model_of(lambda x: df.grad(ops[0](x), x), (3,))
        else:
            df.vjp(model, {"x0": np.ones(3, np.float32)}, {"y": np.ones(3, np.float32)}, registry=registry)
    assert len(str(raised.value)) < 250


def test_a_decomposition_of_the_same_op_that_ends():
    """A sum of n is one of n - 1, and so on."""
    op = Op(
        "times", ("x",), lambda x, n: x, attributes={"n": 1}, decompose=lambda x, n: x if n == 1 else op(x, n=n - 1) + x
    )
    found = df.Session(model_of(lambda x: op(x, n=40), (3,)), registry=load([plugin(dataflow_ops=lambda: [op])])).run(
        np.float32([1, 2, 3])
    )
    np.testing.assert_array_equal(found["y"], np.float32([40, 80, 120]))
    slope = model_of(lambda x: df.grad(op(x, n=40), x), (3,))
    np.testing.assert_array_equal(slope(np.ones(3, np.float32))["y"], np.float32([40, 40, 40]))


def test_an_infer_that_does_not_end_is_named():
    def endless(x):
        return endless(x)

    with pytest.raises(PluginError, match=r"^endless 'endless' .*: infer failed: RecursionError"):
        model_of(Op("endless", ("x",), endless), (3,))


def test_calls_around_an_infer_that_are_too_many_are_not_its_fault():
    def deeper(op, x):
        return deeper(op, op(x))

    g = df.GraphBuilder()
    with pytest.raises(RecursionError):
        deeper(df.ops.relu, g.input("x", df.float32, (3,)))


@pytest.mark.parametrize("shape", [[3], np.array([3]), "n"])
def test_a_shape_that_is_no_tuple(shape):
    text = f"^mine: infer gave the shape {re.escape(repr(shape))}; expected a tuple of sizes"
    with pytest.raises(InputError, match=text):
        model_of(Op("mine", ("x",), lambda x: df.TensorType(x.dtype, shape)), (3,))


def test_an_infer_that_forgets_to_return():
    with pytest.raises(InputError, match=r"typed: infer gave None; expected a TensorType per output \[node .*py:\d+"):
        model_of(Op("typed", ("x",), lambda x: None), (3,))


def test_a_line_of_an_init_file_has_its_package(tmp_path, monkeypatch):
    (tmp_path / "some_net").mkdir()
    (tmp_path / "some_net/__init__.py").write_text("from dataflow import ops\ndef built(x): return ops.relu(x)\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert model_of(importlib.import_module("some_net").built, (3,)).graph.nodes[0].origin == "some_net/__init__.py:2"


@pytest.mark.parametrize("given", [("float32", (3,)), (df.float32, (3.0,))])
def test_a_type_that_is_none(given):
    op = Op("typed", ("x",), lambda x: df.TensorType(*given))
    with pytest.raises(InputError, match=r"typed: infer gave the (dtype 'float32'|size 3.0); expected"):
        model_of(op, (3,))


def test_more_types_than_outputs():
    with pytest.raises(InputError, match="twice: infer gave 2 types for 1 outputs"):
        model_of(Op("twice", ("x",), lambda x: (x, x)), (3,))


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ({"name": ""}, "its name is ''; expected a word"),
        ({"name": "two words"}, "its name is 'two words'; expected a word"),
        ({"inputs": "xy"}, "its inputs are 'xy'; expected a tuple of names"),
        ({"inputs": ("xs*", "y")}, r"its inputs xs\*, y have 'xs\*' before others; only the last one repeats"),
        ({"attributes": {"name": "x"}}, "its attribute 'name' can't be given: calls of ops take name= for something"),
        ({"effects": "rare"}, "its effects are 'rare'; there are: none, random, host"),
        ({"infer": None}, "its infer is None; expected a function"),
        ({"inplace": ((0, 1),)}, r"inplace has \(0, 1\); expected numbers of an output and of an input"),
        ({"inplace": (0, 0)}, "inplace has 0; expected numbers of an output and of an input"),
        ({"inplace": None}, "inplace has None; expected numbers of an output and of an input"),
        ({"inplace": (None,)}, "inplace has None; expected numbers of an output and of an input"),
        ({"attributes": None}, "its attributes are None; expected a mapping"),
    ],
)
@pytest.mark.parametrize("kind", [Op, MultiOp])
def test_an_op_that_can_not_be_declared_so(kind, declared, text):
    outputs = ("y",) if kind is Op else ("y", "z")
    with pytest.raises(PluginError, match=f"op '.*': {text}"):
        kind(**{"name": "mine", "inputs": ("x",), "infer": lambda x: x, "outputs": outputs, **declared})


def test_the_second_derivative_through_what_is_kept_for_backward():
    """A rule that leaves the cotangent of an extra output aside is replaced by the decomposition, or refused."""

    def cube(x):
        return df.ops.mul(x, df.ops.mul(x, x)), df.ops.mul(x, x)

    def rule(node, dy, dsquare=None):
        return df.ops.mul(dy, df.ops.mul(node.outputs[1], 3.0))

    def second(op, with_y):
        """The gradient of the sum of the gradient, and of the result where that counts too, by x."""
        registry = with_op(op, lambda at, x: (x**3, x**2))
        g = df.GraphBuilder()
        g.output("y", df.ops.reduce_sum(op(g.input("x", df.float32, (3,))), axes=(0,), keepdims=False))
        first = df.value_and_grad(g.build(), ["x"])
        b = df.GraphBuilder()
        new = b.adopt(first)
        total = df.ops.reduce_sum(new[first.outputs["grad.x"]], axes=(0,), keepdims=False)
        b.output("total", df.ops.add(total, new[first.outputs["y"]]) if with_y else total)
        model = df.Model(df.value_and_grad(b.build(), ["x"], prefix="second."))
        return df.Session(model, registry=registry).run({"x": np.float32([1, 2, -3])})["second.x"]

    declared = {"inputs": ("x",), "outputs": ("y", "+square"), "infer": lambda x: (x, x), "gradient": rule}
    for with_y in (False, True):
        expected = np.float32([6, 12, -18]) + (np.float32([3, 12, 27]) if with_y else 0)
        np.testing.assert_array_equal(second(Op("cubed", decompose=cube, **declared), with_y), expected)
        with pytest.raises(df.errors.DataflowError, match=r"cubed|mul"):
            second(Op("cubed", **declared), with_y)


@pytest.mark.parametrize("flag", ["elementwise", "reduction"])
def test_an_elementwise_op_of_a_plugin_beside_those_that_are_fused(flag):
    op = Op("cube", ("x",), lambda x: x, **{flag: True})
    registry = with_op(op, lambda at, x: x**3)
    model = model_of(lambda x: df.ops.tanh(op(x * 2.0) + 1.0), (3,))
    x = np.float32([0.1, -0.2, 0.3])
    found = df.Session(model, ["cpu"], registry=registry).run(x)["y"]
    np.testing.assert_allclose(found, np.tanh((2 * x) ** 3 + 1), rtol=1e-5)


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


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("class", "op", "a keyword of Python"),
        ("relu", "op", "an op of dataflow"),
        ("hookimpl", "op", "a name that its own code uses for something else; choose another one, e.g. my_hookimpl"),
        ("ops", "op", "a name that its own code uses"),
        ("np", "op", "a name that its own code uses"),
        ("shape", "op", "a name that its own code uses"),
        ("numpy", "device", "a plugin of dataflow"),
        ("onnx", "converter", "a plugin of dataflow"),
    ],
)
def test_names_of_new_plugins_that_are_taken(tmp_path, name, kind, text):
    with pytest.raises(InputError, match=text):
        new_plugin(tmp_path / "new", name, kind)
    assert not (tmp_path / "new").exists()
