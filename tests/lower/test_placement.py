"""Pins: what they say stays what it was, and holds for the nodes that replace pinned ones."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow.execute.execution import Execution, choose_devices
from dataflow.lower.lowering import lower
from dataflow.lower.placement import targets_of
from dataflow.passes.fuse import fuse
from dataflow.plugin import Kernel, Op, OperandSpec, PythonDevice
from dataflow.plugin.registry import default_registry, load
from tests.plugin.plugins import model_of, plugin

REGISTRY = default_registry()


def gated():
    """x * sigmoid(x @ w): its last two nodes are one on the CPU."""
    g = df.GraphBuilder()
    x = df.ops.matmul(g.input("x", df.float32, (4, 8)), g.parameter("w", np.ones((8, 8), np.float32)))
    g.output("y", df.ops.mul(x, df.ops.sigmoid(x)))
    return g.build()


def test_a_fused_node_runs_where_the_first_of_its_nodes_is_pinned():
    graph = gated()
    sigmoid, mul = (node.name for node in graph.nodes[1:])
    pins = choose_devices(Execution(["cpu"], pin={sigmoid: "numpy", mul: "numpy"}), REGISTRY, graph).pins
    other = dataclasses.replace(pins, patterns={})
    for found, device in ((pins, "numpy"), (other, "cpu")):
        made = fuse(graph, targets_of(found, REGISTRY), REGISTRY.ops.values())
        assert {found.order(node)[0] for node in made.nodes[1:]} == {device}
    assert [pins.pin_of(node) for node in graph.nodes] == ["", "numpy", "numpy"]


def test_stages_can_not_be_changed():
    graph = gated()
    placement = choose_devices(Execution(["cpu"]), REGISTRY, graph)
    lowered, initial = lower(graph, placement.pins, REGISTRY)
    assert [*initial] == [*lowered.stored] == ["w"]
    for stage in (graph, placement, placement.pins, lowered, lowered.stored["w"]):
        name = dataclasses.fields(stage)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(stage, name, None)
    for mapping in (graph.initializers, placement.pins.patterns, lowered.stored, lowered.outputs, lowered.fallbacks):
        assert not hasattr(mapping, "pop")


def toy(*ops):
    """A registry with a device that has kernels of these elementwise and reducing ops."""
    any_strides = OperandSpec(strided=True)
    code = {
        "exp": lambda at, x: np.exp(x),
        "sub": lambda at, x, y: x - y,
        "div": lambda at, x, y: x / y,
        "relu": lambda at, x: np.maximum(x, 0),
        "reduce_max": lambda at, x: x.max(tuple(at["axes"]), keepdims=at["keepdims"]),
        "reduce_sum": lambda at, x: x.sum(tuple(at["axes"]), keepdims=at["keepdims"]),
    }

    class Toy(PythonDevice):
        name = "toy"

        def kernels(self):
            return [
                Kernel(op, f"toy {op}", (any_strides,) * (code[op].__code__.co_argcount - 1), (any_strides,), code[op])
                for op in ops
            ]

    return load([plugin(dataflow_devices=lambda: [Toy()])])


TERMS = ("reduce_max", "sub", "exp", "reduce_sum", "div")


@pytest.mark.parametrize(
    ("has", "expected"),
    [
        (("exp",), {("softmax", "cpu"), ("exp", "toy")}),
        (TERMS[:4], {("softmax", "cpu"), ("exp", "toy")}),
        (TERMS, {(op, "toy") for op in TERMS}),
    ],
)
def test_an_op_goes_complete_to_the_next_device_unless_the_first_takes_all_of_it(has, expected):
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    model = model_of(lambda x: df.ops.exp(df.ops.softmax(x, axis=1)), (3, 4))
    session = df.Session(model, ["toy", "cpu"], registry=toy(*has))
    assert {(p.op, p.device) for p in session.placement((3, 4))} == expected
    powers = np.exp(x.astype(np.float64))
    np.testing.assert_allclose(session.run(x)["y"], np.exp(powers / powers.sum(1, keepdims=True)), rtol=1e-6)


def test_of_an_op_that_no_device_has_each_takes_its_share():
    """Also of what an op is made of, if that has no kernel either."""
    inner = Op("inner", ("x",), lambda x: x, decompose=lambda x: df.ops.tanh(df.ops.relu(x)))
    outer = Op("outer", ("x",), lambda x: x, decompose=lambda x: df.ops.floor(inner(x)))
    registry = toy("relu")
    registry = dataclasses.replace(registry, ops={**registry.ops, "inner": inner, "outer": outer})
    session = df.Session(model_of(outer, (4,)), ["toy", "cpu"], registry=registry)
    assert ("relu", "toy") in {(p.op, p.device) for p in session.placement((4,))}
    np.testing.assert_array_equal(session.run(np.float32([-1, 0, 1, 2]))["y"], np.float32([0, 0, 0, 0]))


def test_a_convolution_stays_where_it_is_taken_with_what_is_fused_to_it_elsewhere():
    """A device with convolutions alone has them, though the CPU has kernels of them with relu."""

    def network(x, w):
        return df.ops.relu(df.ops.conv(x, w, strides=(1, 1), pads=(0, 0, 0, 0), dilations=(1, 1)))

    model = model_of(network, (1, 2, 5, 5), (3, 2, 3, 3))
    kernel = Kernel(
        "conv", "toy conv", (OperandSpec(strided=True), OperandSpec(strided=True), OperandSpec(optional=True)),
        (OperandSpec(),), lambda at, *x: np.zeros((1, 3, 3, 3), np.float32),
    )  # fmt: skip
    toys = type("Toy", (PythonDevice,), {"name": "toy", "kernels": lambda self: [kernel]})
    registry = load([plugin(dataflow_devices=lambda: [toys()])])
    found = df.Session(model, ["toy", "cpu"], registry=registry).placement({"x0": (1, 2, 5, 5), "x1": (3, 2, 3, 3)})
    assert [p.device for p in found if p.op.startswith("conv")] == ["toy"]
