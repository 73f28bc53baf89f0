"""Gradients between kernels of backward are stored in bfloat16 where all that touch them can."""

import dataclasses

import pytest

import dataflow as df
from dataflow import ops
from dataflow.ir.kernel import Kernel, Targets, parse_operands
from dataflow.lower.placement import Pins, targets_of
from dataflow.passes.rounding.casts import absorb_casts
from dataflow.passes.rounding.gradients import round_gradients
from dataflow.plugin.registry import default_registry


def alike(node):
    """Of a kernel whose operand and result are of one type."""
    same = node.inputs[0].type == node.outputs[0].type
    return None if same else "operand and result must be stored alike"


def targets(accepts=None) -> Targets:
    """The CPU's kernels, and some that take bfloat16."""
    found = targets_of(Pins(("cpu",)), default_registry())
    gelu = Kernel("gelu", "gelu", *parse_operands("f32|bf16->f32|bf16"), code=None, accepts=accepts)
    total = Kernel("reduce_sum", "sum", *parse_operands("~f32|bf16->f32"), code=None)
    own = {**found.kernels["cpu"], "gelu": (gelu,), "reduce_sum": (total,)}
    return dataclasses.replace(found, kernels={"cpu": own})


def training(*, also=False, rounded=False):
    """Three steps of forward and of backward; a view lies between the last and a sum."""
    g = df.GraphBuilder()
    values = {}
    for stage in ("forward", "backward"):
        first = ops.gelu(g.input(stage, df.float32, (16, 8)))
        second = ops.gelu(first)
        values[stage] = {f"{stage}-sum"}
        g.output(f"{stage}-sum", ops.reduce_sum(ops.reshape(second, shape=(128,)), axes=(0,)))
        if stage == "backward" and also:
            values[stage].add("exp")
            g.output("exp", ops.exp(first))
        if stage == "backward" and rounded:
            values[stage].add("also rounded")
            g.output("also rounded", ops.neg(ops.cast(second, to=df.bfloat16)))
    return dataclasses.replace(g.build(), stages={name: frozenset(found) for name, found in values.items()})


def stored(graph, kernels):
    """The ops of the graph, and the dtypes that those of GELU give."""
    made = absorb_casts(round_gradients(graph, kernels), kernels)
    made.check()
    ops_ = [node.op.name for node in made.nodes if node.op is not ops.gelu]
    return ops_, [str(node.outputs[0].type.dtype) for node in made.nodes if node.op is ops.gelu]


def test_all_of_backward_is_rounded_and_nothing_of_forward():
    assert stored(training(), targets()) == (
        ["reshape", "reduce_sum"] * 2,
        ["float32", "float32", "bfloat16", "bfloat16"],
    )


def test_what_another_node_reads_as_float32_stays():
    ops_, dtypes = stored(training(also=True), targets())
    assert "cast" not in ops_
    assert dtypes == ["float32", "float32", "float32", "bfloat16"]


def test_what_is_rounded_already_is_rounded_once():
    ops_, dtypes = stored(training(rounded=True), targets())
    assert "cast" not in ops_
    assert dtypes[2:] == ["bfloat16", "bfloat16"]


@pytest.mark.parametrize("kernels", [targets(alike), targets_of(Pins(("cpu",)), default_registry())])
def test_kernels_that_take_float32_keep_it(kernels):
    graph = training()
    assert round_gradients(graph, kernels) is graph


def test_a_graph_without_stages_stays():
    graph = dataclasses.replace(training(), stages={})
    assert round_gradients(graph, targets()) is graph
