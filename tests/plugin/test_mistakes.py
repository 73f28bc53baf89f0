"""Mistakes that authors of plugins make end in errors that name what made them, and stop no other model."""

import functools
import importlib
import os
import subprocess
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import helper

import dataflow as df
import dataflow_onnx
from dataflow.errors import Cancelled, GradientError, InputError, ModelError, PluginError
from dataflow.plugin import (
    Converter,
    Format,
    Kernel,
    MultiOp,
    Op,
    OperandSpec,
    PythonDevice,
    add_gradients,
    devices_of,
    hookimpl,
)
from dataflow.plugin.registry import load
from dataflow.testing import Operand, Sample, check_plugin
from dataflow.testing.expected import expected_of
from dataflow.testing.freshness import stale_library
from dataflow.testing.new_plugin import new_plugin
from dataflow_onnx.converters import DOMAINS
from dataflow_onnx.operators import STANDARD
from tests.support import onnx_model

ANY = OperandSpec(strided=True)


def plugin(name="mine", **hooks):
    module = ModuleType(name)
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


def with_op(op, code):
    """A registry with an op that has a kernel on the reference."""
    kernel = Kernel(op.name, "its reference", (ANY,) * len(op.inputs), (ANY,) * len(op.outputs), code)
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
        (lambda at, x: x + 1j, "gave a result of complex64; expected float32"),
        (lambda at, x: x.astype(str), "gave a result of <U32; expected float32"),
        (lambda at, x: [[1, 2, 3], [4, 5]], r"gave what is no array \(.*\); expected float32\[2, 3\]"),
        (lambda at, x: [[None] * 3] * 2, "gave a result of object; expected float32"),
    ],
)
def test_a_python_kernel_that_gives_another_shape_or_no_such_numbers(given, text):
    class Half(PythonDevice):
        name = "half"

        def kernels(self):
            return [Kernel("relu", "half a relu", (ANY,), (ANY,), given)]

    registry = load([plugin(dataflow_devices=lambda: [Half()])])
    session = df.Session(model_of(df.ops.relu, ("n", 3)), ["half", "cpu"], registry=registry)
    with pytest.raises(PluginError, match=f"relu.*kernel 'half a relu' {text}"):
        session.run(np.ones((2, 3), np.float32))


def leaving(at, x):
    raise SystemExit(4)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (leaving, r"tripled.*: a kernel of it failed: SystemExit: 4"),
        (lambda at, x: (x * 3, x * 4), r"tripled.*: a kernel of it gave 2 results; expected 1"),
    ],
)
def test_a_python_kernel_that_leaves_the_process_or_gives_too_many_results(code, text):
    op = Op("tripled", ("x",), lambda x: x)
    registry = with_op(op, code)
    with pytest.raises(PluginError, match=text):
        df.Session(model_of(op, (3,)), registry=registry).run(np.ones(3, np.float32))
    sample = Sample(op, (Operand((2, 3)),))
    with pytest.raises(PluginError, match=text):
        expected_of(sample, registry)


def test_ctrl_c_in_a_python_kernel_stays_what_it_is():
    def interrupted(at, x):
        raise KeyboardInterrupt

    op = Op("tripled", ("x",), lambda x: x)
    with pytest.raises(KeyboardInterrupt):
        df.Session(model_of(op, (3,)), registry=with_op(op, interrupted)).run(np.ones(3, np.float32))


def test_a_kernel_that_says_it_was_cancelled_is_not_taken_for_ctrl_c():
    def cancelled(at, x):
        raise Cancelled("enough")

    op = Op("tripled", ("x",), lambda x: x)
    with pytest.raises(PluginError, match=r"tripled.*: enough: a kernel says that the run was cancelled, which nobody"):
        df.Session(model_of(op, (3,)), registry=with_op(op, cancelled)).run(np.ones(3, np.float32))


def test_a_gradient_rule_that_leaves_the_process():
    op = Op("tripled", ("x",), lambda x: x, gradient=leaving)
    g = df.GraphBuilder()
    w = g.parameter("w", np.ones(3, np.float32))
    y = op(w)
    with pytest.raises(PluginError, match=r"tripled.*SystemExit: 4"):
        add_gradients(g, {y: g.constant(np.ones(3, np.float32))}, [w])


def test_a_python_kernel_may_give_numbers_of_other_widths_but_no_fractions_of_integers():
    class Halves(PythonDevice):
        name = "halves"

        def kernels(self):
            return [Kernel("relu", "half", (ANY,), (ANY,), lambda at, x: np.asarray(x / 2, np.float64))]

    registry = load([plugin(dataflow_devices=lambda: [Halves()])])
    session = df.Session(model_of(df.ops.relu, ("n", 3)), ["halves", "cpu"], registry=registry)
    np.testing.assert_array_equal(session.run(np.float32([[1, 2, 3]]))["y"], np.float32([[0.5, 1, 1.5]]))
    g = df.GraphBuilder()
    g.output("y", df.ops.relu(g.input("x", df.int32, (3,))))
    with pytest.raises(PluginError, match="kernel 'half' gave a result of float64; expected int32"):
        df.Session(df.Model(g.build()), ["halves", "cpu"], registry=registry).run(np.int32([1, 2, 3]))


def test_a_python_kernel_that_gives_too_few_results():
    both = MultiOp("both_of_mine", ("x",), lambda x: (x, x), outputs=("a", "b"), decompose=lambda x: (x, df.ops.neg(x)))

    class One(PythonDevice):
        name = "one"

        def kernels(self):
            return [Kernel("both_of_mine", "one of both", (ANY,), (ANY, ANY), lambda at, x: [x, -x])]

    registry = load([plugin(dataflow_ops=lambda: [both], dataflow_devices=lambda: [One()])])
    session = df.Session(model_of(lambda x: df.ops.add(*both(x)), (3,)), ["one", "cpu"], registry=registry)
    with pytest.raises(PluginError, match=r"both_of_mine.*gave 1 of 2 results; expected a tuple of all"):
        session.run(np.ones(3, np.float32))


def test_a_kernel_that_its_device_can_not_run_sets_its_plugin_aside():
    def kernels(device):
        return [Kernel("relu", "a relu", (ANY,), (ANY,), lambda at, x: x, priority=1)] if device.name == "cpu" else []

    class Mute(PythonDevice):
        name = "mute"

        def kernels(self):
            return [Kernel("relu", "no relu", (ANY,), (ANY,), "relu")]

    registry = load([plugin("of_python", dataflow_kernels=kernels), plugin("mute", dataflow_devices=lambda: [Mute()])])
    found = {p.name: p.problem for p in registry.plugins if p.problem}
    assert found.keys() == {"of_python", "mute"}
    assert found["of_python"].startswith("its kernel 'a relu' for the device cpu is <function ")
    assert found["of_python"].endswith("those for a device in C are records of C, from kernels_of")
    assert found["mute"] == "its kernel 'no relu' for the device mute is 'relu'; a device in Python runs functions"
    x = np.float32([-1, 2, -3])
    session = df.Session(model_of(df.ops.relu, (3,)), ["cpu"], registry=registry)
    np.testing.assert_array_equal(session.run(x)["y"], [0, 2, 0])


def test_a_kernel_whose_accepts_gives_no_reason():
    class Sure(PythonDevice):
        name = "sure"

        def kernels(self):
            return [Kernel("relu", "sure relu", (ANY,), (ANY,), lambda at, x: x, accepts=lambda node: True)]

    registry = load([plugin(dataflow_devices=lambda: [Sure()])])
    with pytest.raises(PluginError, match=r"relu.*accepts of the kernel 'sure relu' gave True; expected a reason, or"):
        df.Session(model_of(df.ops.relu, (3,)), ["sure", "cpu"], registry=registry).run(np.ones(3, np.float32))


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


def test_what_accepts_and_cost_raise_names_the_node():
    def fails(node):
        raise KeyError("k")

    class Picky(PythonDevice):
        name = "picky"

        def kernels(self):
            return [Kernel("relu", "picky relu", (ANY,), (ANY,), lambda at, x: x, accepts=fails)]

    session = df.Session(
        model_of(df.ops.relu, (3,)), ["picky", "cpu"], registry=load([plugin(dataflow_devices=lambda: [Picky()])])
    )
    with pytest.raises(PluginError, match=r"relu.*accepts of the kernel 'picky relu' failed: KeyError"):
        session.run(np.ones(3, np.float32))
    op = Op("costly", ("x",), lambda x: x, cost=fails)
    with pytest.raises(PluginError, match=r"costly.*its cost failed: KeyError"):
        df.Session(model_of(op, (3,)), registry=with_op(op, lambda at, x: x)).run(np.ones(3, np.float32))


@pytest.mark.parametrize("inputs", [ANY, ("f32",)])
def test_a_kernel_record_that_is_none(inputs):
    with pytest.raises(TypeError, match=r"kernel 'k': inputs are .*; expected a tuple of OperandSpec"):
        Kernel("relu", "k", inputs, (ANY,), abs)


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


def test_an_op_may_overwrite_repeated_operands():
    op = MultiOp("many", ("xs*",), lambda *xs: xs, outputs=("ys*",), inplace=((0, 0), (1, 1)))
    Kernel("many", "k", (OperandSpec(repeated=True),), (OperandSpec(repeated=True),), abs, inplace=op.inplace)


@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (0, -1), ("0", "0"), 0])
def test_a_kernel_that_overwrites_what_it_has_not(pair):
    with pytest.raises(PluginError, match=r"kernel 'k': inplace has .*; expected numbers of an output and of an input"):
        Kernel("relu", "k", (ANY,), (ANY,), abs, inplace=(pair,))


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        ('"f32->f32"', '"f33->f32"', "kernel 'abacus relu': kernel operands 'f33->f32': unknown dtype 'f33'"),
        (
            '.inplace = "0<0"',
            '.inplace = "a<b"',
            "kernel 'abacus relu': inplace is 'a<b'; expected pairs such as '0<0,0<1'",
        ),
        (
            '.inplace = "0<0"',
            '.inplace = "0<5"',
            r"kernel 'abacus relu': inplace has \(0, 5\); expected numbers of an output and of an input",
        ),
    ],
)
def test_a_record_in_c_that_can_not_be_read_is_named(tmp_path, was, now, text):
    source = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text().split("```c abacus.c\n")[1].split("```")[0]
    assert was in source
    (tmp_path / "abacus.c").write_text(source.replace(was, now, 1))
    library = tmp_path / "abacus.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-I{df.get_include()}", str(tmp_path / "abacus.c"), "-o", str(library)], check=True
    )
    with pytest.raises(PluginError, match=text):
        devices_of(library)[0].kernels()


def test_a_device_that_cannot_be_opened():
    class Closed(PythonDevice):
        name = "closed"

        def kernels(self):
            return [Kernel("relu", "k", (ANY,), (ANY,), lambda at, x: x)]

        def open(self, options, precision="float32"):
            raise OSError("no such card")

    registry = load([plugin(dataflow_devices=lambda: [Closed()])])
    with pytest.raises(PluginError, match=r"device 'closed': open\(\) failed: OSError: no such card"):
        df.Session(model_of(df.ops.relu, (3,)), ["closed"], registry=registry).run(np.ones(3, np.float32))


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


def test_of_kernels_of_one_priority_the_earliest_plugin_has_the_node():
    """Only the kit blames the later one: users can't change the priorities of two plugins."""
    kernels = {name: [Kernel("relu", name, (ANY,), (ANY,), lambda at, x: x * 0)] for name in ("first", "then")}

    class Own(PythonDevice):
        name = "own"

        def kernels(self):
            return [Kernel("relu", "its own", (ANY,), (ANY,), lambda at, x: np.maximum(x, 0))]

    def offering(name):
        return plugin(name, dataflow_kernels=lambda device: kernels[name] if device.name == "own" else [])

    device = plugin("a_device", dataflow_devices=lambda: [Own()])
    registry = load([device, offering("first"), offering("then")])
    session = df.Session(model_of(df.ops.relu, (3,)), ["own"], registry=registry)
    np.testing.assert_array_equal(session.run(np.float32([-1, 0, 2]))["y"], [0, 0, 2])
    for name in kernels:
        failed = [o.text for o in check_plugin(name, registry=registry, select="relu") if o.status == "failed"]
        assert f"{name} never runs: its own of a_device takes the node with the same priority, 0" in failed[0]


def test_two_kernels_of_one_plugin_and_priority_are_an_error():
    class Own(PythonDevice):
        name = "own"

        def kernels(self):
            relu = functools.partial(Kernel, "relu", inputs=(ANY,), outputs=(ANY,), code=lambda at, x: np.maximum(x, 0))
            return [relu("one"), relu("other", accepts=lambda node: None)]

    registry = load([plugin(dataflow_devices=lambda: [Own()])])
    text = "kernels 'one' and 'other' of device 'own' by plugin mine both take it with priority 0; .*PLUGINS=-mine"
    with pytest.raises(PluginError, match=text):
        df.Session(model_of(df.ops.relu, (3,)), ["own"], registry=registry).run(np.ones(3, np.float32))
    failed = [o.text for o in check_plugin("mine", registry=registry, select="relu") if o.status == "failed"]
    assert failed == ["kernels 'one' and 'other' of plugin mine both take the node with priority 0; "
                      "give one of them a higher one"]  # fmt: skip


def test_two_kernels_that_take_the_same_nodes_set_their_plugin_aside():
    class Own(PythonDevice):
        name = "own"

        def kernels(self):
            return [Kernel("relu", name, (ANY,), (ANY,), lambda at, x: x) for name in ("one", "other")]

    registry = load([plugin(dataflow_devices=lambda: [Own()])])
    assert registry.plugins[-1].problem == (
        "op 'relu': its kernels 'one' and 'other' for the device own take the same nodes with priority 0; give one of "
        "them a higher one"
    )


def test_what_the_first_device_has_no_kernel_for_stays_one_node():
    class Few(PythonDevice):
        name = "few"

        def kernels(self):
            return [Kernel("sign", "few sign", (ANY,), (ANY,), lambda at, x: np.sign(x))]

    registry = load([plugin(dataflow_devices=lambda: [Few()])])
    session = df.Session(
        model_of(lambda x: df.ops.softmax(df.ops.sign(x), axis=1), ("n", 4)), ["few", "cpu"], registry=registry
    )
    assigned = {node.op: node.device for node in session.placement({"x0": (2, 4)})}
    assert assigned == {"sign": "few", "softmax": "cpu"}


def test_a_file_of_a_plugins_format_appears_complete_or_not_at_all(tmp_path):
    def write(model, path, **options):
        with Path(path).open("w") as file:
            file.write("half")
            if options:
                raise ValueError("no more")
            file.write(" and half")

    registry = load([plugin(dataflow_formats=lambda: [Format(".half", lambda path, **options: None, write)])])
    model, path = model_of(df.ops.relu, (3,)), tmp_path / "m.half"
    with pytest.raises(PluginError, match=r"m.half: save of the plugin mine failed: ValueError: no more"):
        df.save(model, path, registry=registry, fails=True)
    assert [*tmp_path.iterdir()] == []
    df.save(model, path, registry=registry)
    with pytest.raises(InputError, match="exists already; give overwrite=True"):
        df.save(model, path, registry=registry)
    with pytest.raises(PluginError, match="no more"):
        df.save(model, path, registry=registry, overwrite=True, fails=True)
    assert path.read_text() == "half and half"
    df.save(model, path, registry=registry, overwrite=True)
    with pytest.raises(InputError, match=r"nowhere.*can't be written: No such file"):
        df.save(model, tmp_path / "nowhere" / "m.half", registry=registry)
    assert [*tmp_path.iterdir()] == [path]
    with pytest.raises(
        PluginError, match=r"m.half: load of the plugin mine gave NoneType; expected a Model of .half files"
    ):
        df.load(path, registry=registry)


def test_a_format_that_fails_is_named_with_the_file(tmp_path):
    def read(path, *, scale=1):
        if scale == 2:
            raise KeyError("scale")
        return Path(path).read_text()

    registry = load([plugin(dataflow_formats=lambda: [Format(".odd", read, lambda model, path: None)])])
    path = tmp_path / "m.odd"
    for replaces in (False, True):
        form = Format(".odd", read, lambda model, path, **options: None, replaces=replaces)
        with pytest.raises(PluginError, match=r"m.odd: save of the plugin mine wrote no file; expected one"):
            save = functools.partial(df.save, model_of(df.ops.relu, (3,)), path)
            save(registry=load([plugin(dataflow_formats=lambda form=form: [form])]))
    with pytest.raises(ModelError, match=r"m.odd: can't be read: No such file or directory"):
        df.load(path, registry=registry)
    path.touch()
    with pytest.raises(PluginError, match=r"m.odd: load of the plugin mine failed: KeyError: 'scale'"):
        df.load(path, registry=registry, scale=2)
    with pytest.raises(InputError, match=r"m.odd: load of .odd files has no option 'scall'"):
        df.load(path, registry=registry, scall=2)
    with pytest.raises(InputError, match=r"m.odd: save of .odd files has no option 'scall'"):
        df.save(model_of(df.ops.relu, (3,)), path, registry=registry, overwrite=True, scall=2)


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
    """Its plugin is set aside, and stops nobody from reading files."""
    relu = Converter("", "Relu", 1, lambda importer, x: importer.value(x))
    other = Converter("com.microsoft", "Nothing", 1, lambda importer, x: importer.value(x))
    registry = load([plugin(onnx_converters=lambda: [relu]), plugin("other", onnx_converters=lambda: [other])])
    assert {p.name: p.problem for p in registry.plugins if p.problem} == {
        "mine": f"{relu.function.__module__}.{relu.function.__qualname__} converts 'Relu', which dataflow converts "
        "itself: give an operator of one's own a domain of one's own; DATAFLOW_PLUGINS=-mine leaves the plugin out"
    }
    assert registry.converters == (other,)
    node = helper.make_node("Relu", ["x"], ["y"])
    onnx.save(onnx_model([node], [("x", 1, [3])], [("y", 1, [3])]), tmp_path / "Relu.onnx")
    df.load(str(tmp_path / "Relu.onnx"), registry=registry)
    with pytest.raises(PluginError, match="converts 'Relu', which dataflow converts itself"):
        dataflow_onnx.load(str(tmp_path / "Relu.onnx"), converters=[relu])


def test_domains_of_operators_that_dataflow_converts_are_listed():
    assert {domain for domain, _ in STANDARD.versions} == DOMAINS


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


def test_an_installed_library_may_be_a_moment_older_than_its_source(tmp_path):
    """Installers write the files of a wheel in any order."""
    for name in ("__init__.py", "native.c", "_native.so"):
        (tmp_path / name).write_text("")
    for seconds, stale in ((0.5, False), (60, True)):
        os.utime(tmp_path / "_native.so", (1e9, 1e9))
        os.utime(tmp_path / "native.c", (1e9 + seconds, 1e9 + seconds))
        assert (stale_library(str(tmp_path / "__init__.py")) is not None) == stale


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"target": lambda self, o, labels: {}["k"]}, r"target\(\) of the loss Mine failed at .*KeyError: 'k'"),
        ({"target": lambda self, o, labels: None}, r"target\(\) of the loss Mine gave None; expected a Target"),
        ({"elements": lambda self, t, o, labels: o}, "gave .*; expected the elements and their weight"),
        (
            {"elements": lambda self, t, o, labels: (o, df.ops.reduce_sum(o, axes=(1,), keepdims=False))},
            r"gave elements float32\[3, 2\] and the weight float32\[3\]; expected one shape",
        ),
    ],
)
def test_a_wrong_loss(changed, text):
    class Mine:
        skips, metrics = (), ()

        def target(self, o, labels):
            return df.losses.Target(o, df.TensorType(o.dtype, o.shape))

        def elements(self, t, o, labels):
            return o, o

    g = df.GraphBuilder()
    g.output("y", df.ops.matmul(g.input("x", df.float32, ("n", 2)), g.parameter("w", np.ones((2, 2), np.float32))))
    loss = type("Mine", (Mine,), changed)()
    with pytest.raises(InputError, match=text), df.Trainer(df.Model(g.build()), loss, "sgd") as trainer:
        trainer.step({"x": np.ones((3, 2), np.float32), "labels": np.zeros((3, 2), np.float32)})


@pytest.mark.parametrize("given", [None, "0.5"])
def test_a_schedule_that_gives_no_number(given):
    g = df.GraphBuilder()
    g.output("y", df.ops.matmul(g.input("x", df.float32, ("n", 2)), g.parameter("w", np.ones((2, 2), np.float32))))
    optimizer = df.optim.SGD(lr=0.1, schedule=lambda step: given)
    with (
        pytest.raises(InputError, match=f"the schedule gave {given!r} after 0 optimizer steps; expected a number"),
        df.Trainer(df.Model(g.build()), "mse", optimizer) as trainer,
    ):
        trainer.step({"x": np.ones((3, 2), np.float32), "labels": np.zeros((3, 2), np.float32)})
