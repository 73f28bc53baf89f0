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
SIZES = (512, 768, 520)  # rows, inner, columns


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
    "sizes", [(1, 4096, 4096), (64, 64, 64), (512, 768, 521), (512, 771, 520)], ids=["a row", "tiny", "odd", "odd k"]
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
    x = g.input("x", df.float32, (512, 512))
    w, v = g.parameter("w", normal(512, 512)), g.parameter("v", normal(512, 512))
    hidden = ops.relu(ops.matmul(x, w))
    g.output("sum", ops.reduce_sum(hidden, axes=(0,)))
    g.output("y", ops.matmul(hidden, v))
    made = round_products(g.build(), targets(), {"w", "v"})
    assert names(made) == ["cast", "cast", "matmul_rounded", "relu", "cast", "reduce_sum", "cast", "matmul_rounded"]
    assert [node.inputs[0].name for node in made.nodes if node.op is ops.cast][2] == made.nodes[3].outputs[0].name
