"""Functions of plugins that fail, leave the process or give something else are named, and stop no other model."""

import functools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import dataflow as df
import dataflow_onnx
from dataflow.errors import Cancelled, InputError, ModelError, PluginError
from dataflow.plugin import (
    Converter,
    Format,
    Kernel,
    MultiOp,
    Op,
    PythonDevice,
)
from dataflow.plugin.registry import load
from dataflow.testing import Operand, Sample
from dataflow.testing.expected import expected_of
from dataflow_onnx.converters import DOMAINS
from dataflow_onnx.operators import STANDARD
from tests.plugin.plugins import ANY, leaving, model_of, plugin, with_op
from tests.support import onnx_model


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
