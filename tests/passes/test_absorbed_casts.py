"""Casts to and from 16 bits are done by the kernels before and behind them, where these can."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.ir.kernel import Kernel, Targets, parse_operands
from dataflow.lower.placement import Pins, targets_of
from dataflow.passes.rounding.casts import absorb_casts
from dataflow.plugin.registry import default_registry


def targets(results="f32|bf16", operands="~f32") -> Targets:
    """The CPU's kernels, and one of gelu with such results."""
    found = targets_of(Pins(("cpu",)), default_registry())
    gelu = Kernel("gelu", "gelu", *parse_operands(f"{operands}->{results}"), code=None)
    return dataclasses.replace(found, kernels={"cpu": {**found.kernels["cpu"], "gelu": (gelu,)}})


def network(to=df.bfloat16, *, also="", view=False):
    g = df.GraphBuilder()
    hidden = ops.gelu(g.input("x", df.float32, (4, 6)))
    if also == "output":
        g.output("hidden", hidden)
    elif also == "reader":
        g.output("hidden", ops.neg(hidden))
    read = ops.reshape(hidden, shape=(24,)) if view else hidden
    g.output("y", ops.cast(read, to=to))
    return g.build()


def test_the_kernel_rounds():
    made = absorb_casts(network(), targets())
    (node,) = made.nodes
    assert node.op is ops.gelu
    assert node.outputs[0].type.dtype == df.bfloat16
    made.check()


@pytest.mark.parametrize("also", ["output", "reader"])
def test_what_is_read_as_float32_too_is_stored_so(also):
    graph = network(also=also)
    assert absorb_casts(graph, targets()) is graph


def test_a_kernel_that_has_no_such_results_keeps_the_cast():
    for graph, kernels in ((network(), targets("f32")), (network(df.float16), targets()), (network(), targets("any"))):
        assert absorb_casts(graph, kernels) is graph


def test_a_view_between_keeps_the_cast():
    graph = network(view=True)
    assert absorb_casts(graph, targets()) is graph


def test_a_node_that_a_device_refused_keeps_the_cast():
    graph = network()
    assert absorb_casts(graph, targets(), {graph.nodes[0].name}) is graph


def test_the_cpu_gives_the_bits_it_gave():
    model, x = df.Model(network()), np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)
    fused, plain = (df.Session(model, devices=["cpu"], fuse=fuse).run({"x": x})["y"] for fuse in (True, False))
    assert fused.tobytes() == plain.tobytes()


def reading(*, view=False, also=False):
    g = df.GraphBuilder()
    stored = g.input("x", df.bfloat16, (4, 6))
    x = ops.cast(stored, to=df.float32)
    if also:
        g.output("z", ops.neg(x))
    g.output("y", ops.gelu(ops.reshape(ops.transpose(x, perm=(1, 0)), shape=(3, 2, 4)) if view else x))
    return g.build()


@pytest.mark.parametrize("view", [False, True])
def test_the_kernel_reads_what_float32_was_made_of(view):
    made = absorb_casts(reading(view=view), targets(operands="~f32|bf16"))
    assert [node.op.name for node in made.nodes] == [*(["transpose", "reshape"] if view else []), "gelu"]
    assert made.nodes[-1].inputs[0].type.dtype == df.bfloat16
    assert made.outputs["y"].type.dtype == df.float32
    made.check()


def test_others_read_float32():
    made = absorb_casts(reading(also=True), targets(operands="~f32|bf16"))
    assert [node.op.name for node in made.nodes] == ["cast", "neg", "gelu"]
    for kernels in (targets(), targets(operands="any")):
        graph = reading(view=True)
        assert absorb_casts(graph, kernels) is graph


def joined(*, also=False):
    g = df.GraphBuilder()
    slopes = [ops.gelu(g.input(f"x{i}", df.float32, (6, 4))) for i in range(2)]
    columns = [ops.reshape(ops.transpose(v, perm=(1, 0)), shape=(4, 1, 6)) for v in slopes]
    y = ops.concat(*columns, axis=1)
    if also:
        g.output("z", ops.neg(slopes[1]))
    g.output("y", ops.cast(y, to=df.bfloat16))
    return g.build()


def test_all_operands_of_a_concat_are_stored_as_it_is_read():
    graph = joined()
    made = absorb_casts(graph, targets())
    assert [node.op.name for node in made.nodes] == [node.op.name for node in graph.nodes if node.op is not ops.cast]
    assert {value.type.dtype for node in made.nodes for value in node.outputs} == {df.bfloat16}
    made.check()
    for kept, kernels in ((joined(also=True), targets()), (joined(), targets("f32"))):
        assert absorb_casts(kept, kernels) is kept


def test_of_operands_and_results_that_a_kernel_takes_one_at_a_time_the_results_are_rounded():
    def accepts(node):
        both = {node.inputs[0].type.dtype, node.outputs[0].type.dtype} == {df.bfloat16}
        return "both are rounded" if both else None

    found = targets(operands="~f32|bf16")
    gelu = dataclasses.replace(found.kernels["cpu"]["gelu"][0], accepts=accepts)
    found = dataclasses.replace(found, kernels={"cpu": {**found.kernels["cpu"], "gelu": (gelu,)}})
    g = df.GraphBuilder()
    x = ops.cast(g.input("x", df.bfloat16, (4, 6)), to=df.float32)
    g.output("y", ops.cast(ops.gelu(x), to=df.bfloat16))
    made = absorb_casts(g.build(), found)
    assert [node.op.name for node in made.nodes] == ["cast", "gelu"]
