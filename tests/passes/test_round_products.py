"""Operands of products are rounded to bfloat16 once, where a device has a kernel for such operands."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.ir.kernel import Kernel, Targets, parse_operands
from dataflow.lower.placement import Pins, targets_of
from dataflow.passes.rounding.products import round_products
from dataflow.plugin.registry import default_registry
from dataflow_numpy.evaluate import evaluate

RANDOM = np.random.default_rng(4)
SIZES = (512, 768, 712)  # rows, inner, columns


def targets(device="cpu", kernel=True) -> Targets:
    """A device's kernels, with one for rounded operands."""
    found = targets_of(Pins((device,)), default_registry())
    made = Kernel("matmul_rounded", "rounded", *parse_operands("~bf16,~bf16,f32?,f32?->f32"), code=None)
    own = {**found.kernels[device], **({"matmul_rounded": (made,)} if kernel else {})}
    return dataclasses.replace(found, kernels={device: own})


def rounded(array):
    return array.astype(df.bfloat16.numpy).astype(np.float64)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def training(rows=SIZES[0], inner=SIZES[1], columns=SIZES[2]):
    """A product as a linear layer has it, and the two of its gradient; the weight is stored transposed."""
    g = df.GraphBuilder()
    x, dy = g.input("x", df.float32, (rows, inner)), g.input("dy", df.float32, (rows, columns))
    w, bias = g.parameter("w", normal(columns, inner)), g.parameter("b", normal(columns))
    x = ops.relu(x)
    g.output("y", ops.matmul_bias(x, ops.transpose(w, perm=(1, 0)), bias))
    g.output("dx", ops.matmul(dy, w))
    g.output("dw", ops.matmul(ops.transpose(dy, perm=(1, 0)), x))
    return g.build()


def names(graph):
    return [node.op.name for node in graph.nodes]


def test_operands_are_rounded_once_and_products_are_exact_beyond():
    graph = training()
    made = round_products(graph, targets(), {"w", "b"})
    made.check()
    assert names(made).count("matmul_rounded") == 3
    assert names(made).count("cast") == 3  # of x, w and dy
    feeds = {"x": normal(*SIZES[:2]), "dy": normal(SIZES[0], SIZES[2])}
    results = evaluate(made, feeds)
    w, b = (data.array for data in graph.initializers.values())
    x, dy, weight = rounded(np.maximum(feeds["x"], 0)), rounded(feeds["dy"]), rounded(w)
    for name, exact in (("y", x @ weight.T + b), ("dx", dy @ weight), ("dw", dy.T @ x)):
        np.testing.assert_allclose(results[name], exact, rtol=1e-5, atol=1e-3)


def test_a_weight_that_nothing_changes_is_stored_rounded():
    made = round_products(training(), targets(), ())
    assert names(made).count("cast") == 2
    stored = {value.name: value.type.dtype for value in made.initializers}
    assert df.bfloat16 in stored.values()


@pytest.mark.parametrize(
    "sizes",
    [(1, 4096, 4096), (512, 768, 520), (512, 768, 713), (512, 771, 712)],
    ids=["a row", "small", "odd", "odd k"],
)
def test_what_gains_nothing_stays(sizes):
    graph = training(*sizes)
    assert round_products(graph, targets(), {"w", "b"}) is graph


def test_a_device_without_such_a_kernel_computes_as_before():
    graph = training()
    assert round_products(graph, targets(kernel=False), ()) is graph
    assert round_products(graph, targets("numpy", kernel=False), ()) is graph
    model = df.Model(graph)
    feeds = {"x": normal(*SIZES[:2]), "dy": normal(SIZES[0], SIZES[2])}
    for device in ("cpu", "numpy"):
        session = df.Session(model, devices=[device], precision="bf16")
        assert not [node for node in session.placement(feeds) if "rounded" in (node.kernel or "")]


def test_a_value_is_rounded_where_it_is_made():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (656, 656))
    w, v = g.parameter("w", normal(656, 656)), g.parameter("v", normal(656, 656))
    hidden = ops.relu(ops.matmul(x, w))
    g.output("sum", ops.reduce_sum(hidden, axes=(0,)))
    g.output("y", ops.matmul(hidden, v))
    made = round_products(g.build(), targets(), {"w", "v"})
    assert names(made) == ["cast", "cast", "matmul_rounded", "relu", "cast", "reduce_sum", "cast", "matmul_rounded"]
    assert [node.inputs[0].name for node in made.nodes if node.op is ops.cast][2] == made.nodes[3].outputs[0].name


@pytest.mark.parametrize("also", [False, True])
def test_what_products_alone_read_of_a_concat_is_joined_rounded(also):
    g = df.GraphBuilder()
    w = ops.concat(g.parameter("w", normal(644, 656)), np.zeros((12, 656), np.float32), axis=0)
    g.output("y", ops.matmul(g.input("x", df.float32, (656, 656)), ops.transpose(w, perm=(1, 0))))
    if also:
        g.output("z", ops.neg(w))
    made = round_products(g.build(), targets(), {"w"})
    made.check()
    (joined,) = (node for node in made.nodes if node.op is ops.concat)
    assert joined.outputs[0].type.dtype == (df.float32 if also else df.bfloat16)
    assert names(made).count("cast") == (2 if also else 3)


def with_sum(*, also=False):
    """The gradients of a linear layer behind an op that makes what they read, through a view."""
    g = df.GraphBuilder()
    dy = ops.tanh(g.input("dy", df.float32, (4, 128, SIZES[2])))
    flat = ops.reshape(dy, shape=(SIZES[0], SIZES[2]))
    x, w = g.input("x", df.float32, SIZES[:2]), g.parameter("w", normal(SIZES[2], SIZES[1]))
    g.output("db", ops.reduce_sum(flat, axes=(0,), keepdims=False))
    g.output("dx", ops.matmul(flat, w))
    g.output("dw", ops.matmul(ops.transpose(flat, perm=(1, 0)), x))
    if also:
        g.output("more", ops.neg(dy))
    return g.build()


def summing(operand):
    found = targets()
    kernel = Kernel("reduce_sum", "sum", *parse_operands(f"{operand}->f32"), code=None)
    return dataclasses.replace(found, kernels={"cpu": {**found.kernels["cpu"], "reduce_sum": (kernel,)}})


@pytest.mark.parametrize(("also", "operand"), [(False, "~f32|bf16"), (True, "~f32|bf16"), (False, "~f32")])
def test_a_sum_of_what_only_products_read_is_of_the_rounded_values(also, operand):
    """Then nothing reads float32; where something else does, it stays exact."""
    graph = with_sum(also=also)
    made = round_products(graph, summing(operand), {"w"})
    made.check()
    feeds = {"dy": normal(4, 128, SIZES[2]), "x": normal(*SIZES[:2])}
    dy = np.tanh(feeds["dy"]).reshape(SIZES[0], SIZES[2])
    exact = (dy if also or operand == "~f32" else rounded(dy)).sum(axis=0, dtype=np.float64)
    np.testing.assert_allclose(evaluate(made, feeds)["db"], exact, rtol=1e-5, atol=1e-5)
    (value,) = made.nodes[0].outputs
    read_by = {node.op.name for node in made.readers()[value]}
    assert ("reshape" in read_by) == (also or operand == "~f32")
    assert "cast" in read_by


def test_a_sum_before_the_products_of_another_stage_stays_exact():
    graph = with_sum()
    stages = {"first": frozenset({"db"}), "second": frozenset({"dx", "dw"})}
    nodes = tuple(sorted(graph.nodes, key=lambda node: node.op.name not in ("tanh", "reshape", "reduce_sum")))
    staged = dataclasses.replace(graph, nodes=nodes, stages=stages)
    staged.check()
    made = round_products(staged, summing("~f32|bf16"), {"w"})
    made.check()
    feeds = {"dy": normal(4, 128, SIZES[2]), "x": normal(*SIZES[:2])}
    exact = np.tanh(feeds["dy"]).sum(axis=(0, 1), dtype=np.float64)
    np.testing.assert_allclose(evaluate(made, feeds)["db"], exact, rtol=1e-5, atol=1e-5)
