"""Kernels know ops by name: one that computes another op of the name never runs in its place."""

from types import ModuleType

import numpy as np
import pytest

import dataflow as df
from dataflow.errors import PluginError
from dataflow.plugin import Kernel, Op, OperandSpec, hookimpl
from dataflow.plugin.registry import load

ANY = OperandSpec(strided=True)
X = np.arange(4, dtype=np.float32)


def plugin(name, **hooks):
    module = ModuleType(name)
    for hook, function in hooks.items():
        setattr(module, hook, hookimpl(function))
    return module


def op(name, decompose=df.ops.neg):
    return Op(name, ("x",), lambda x: x, decompose=decompose)


def with_kernels(name, kernel_of, declared=()):
    """A plugin with a kernel for the reference that gives 42."""

    def kernels(device):
        return [Kernel(kernel_of, name, (ANY,), (ANY,), lambda a, x: x * 0 + 42)] if device.name == "numpy" else []

    return plugin(name, dataflow_ops=lambda: declared, dataflow_kernels=kernels)


def run(used, registry, *, constant=False, **options):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (4,))
    operand = g.constant(X) if constant else x
    g.output("y", df.ops.add(used(operand), df.ops.mul(x, 0.0)))
    return df.Session(df.Model(g.build()), ["cpu"], registry=registry, **options).run({"x": X})["y"]


def problems(registry):
    return {p.name: p.problem for p in registry.plugins if p.problem}


@pytest.mark.parametrize("constant", [False, True])
def test_an_op_of_a_plugin_that_was_set_aside_is_not_computed_by_the_kernel_of_the_other(constant):
    mine = op("ours")
    registry = load([with_kernels("first", "ours", [op("ours")]), plugin("second", dataflow_ops=lambda: [mine])])
    with pytest.raises(PluginError, match=r"first has another op 'ours'.*plugin second, which was set aside.*-first"):
        run(mine, registry, constant=constant)


def test_an_op_with_the_name_of_one_of_dataflow_is_refused():
    with pytest.raises(PluginError, match=r"dataflow has another op 'relu', .*; rename it"):
        run(op("relu"), None)


def test_an_op_with_such_a_name_inside_of_a_decomposition_is_refused():
    inner = op("relu")
    outer = op("outer", decompose=lambda x: inner(x))
    with pytest.raises(PluginError, match="dataflow has another op 'relu'"):
        run(outer, None)


def test_an_op_with_such_a_name_is_refused_in_training_and_in_a_body():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("batch", 4))
    g.output("y", op("tanh")(df.ops.matmul(x, g.parameter("w", np.eye(4, dtype=np.float32)))))
    data = {"x": np.ones((8, 4), np.float32), "labels": np.zeros(8, np.int64)}
    with df.Trainer(df.Model(g.build())) as trainer, pytest.raises(PluginError, match="another op 'tanh'"):
        trainer.fit(data, progress=False)


def test_an_op_that_nobody_registered_runs_as_its_decomposition():
    assert (run(op("nobodys"), None) == -X).all()


def test_a_kernel_of_an_op_that_two_plugins_declare_sets_its_plugin_aside():
    third = with_kernels("third", "ours")
    registry = load(
        [third, plugin("a", dataflow_ops=lambda: [op("ours")]), plugin("b", dataflow_ops=lambda: [op("ours")])]
    )
    assert problems(registry) == {
        "b": "op 'ours' is offered twice: by a and by b",
        "third": "it has a kernel of the op 'ours', which a and b declare; leave one of them out, DATAFLOW_PLUGINS=-a",
    }
    used = registry.ops["ours"]
    assert (run(used, registry) == -X).all()


def test_a_kernel_of_an_op_that_one_plugin_declares_runs():
    registry = load([with_kernels("third", "ours"), plugin("a", dataflow_ops=lambda: [op("ours")])])
    assert (run(registry.ops["ours"], registry) == -X).all()  # cpu has kernels of what it decomposes into
    assert (run(registry.ops["ours"], registry, pin={"ours": "numpy"}) == 42).all()
