"""A result that only a cast to 16 bits reads is stored in 16 bits, where the kernel that computes it can."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.ir.kernel import Kernel, Targets, parse_operands
from dataflow.lower.placement import Pins, targets_of
from dataflow.passes.rounding.results import round_results
from dataflow.plugin.registry import default_registry


def targets(results="f32|bf16") -> Targets:
    """The CPU's kernels, and one of gelu with such results."""
    found = targets_of(Pins(("cpu",)), default_registry())
    gelu = Kernel("gelu", "gelu", *parse_operands(f"~f32->{results}"), code=None)
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
    made = round_results(network(), targets())
    (node,) = made.nodes
    assert node.op is ops.gelu
    assert node.outputs[0].type.dtype == df.bfloat16
    made.check()


@pytest.mark.parametrize("also", ["output", "reader"])
def test_what_is_read_as_float32_too_is_stored_so(also):
    graph = network(also=also)
    assert round_results(graph, targets()) is graph


def test_a_kernel_that_has_no_such_results_keeps_the_cast():
    for graph, kernels in ((network(), targets("f32")), (network(df.float16), targets()), (network(), targets("any"))):
        assert round_results(graph, kernels) is graph


def test_a_view_between_keeps_the_cast():
    graph = network(view=True)
    assert round_results(graph, targets()) is graph


def test_a_node_that_a_device_refused_keeps_the_cast():
    graph = network()
    assert round_results(graph, targets(), {graph.nodes[0].name}) is graph


def test_the_cpu_gives_the_bits_it_gave():
    model, x = df.Model(network()), np.random.default_rng(2).standard_normal((4, 6)).astype(np.float32)
    fused, plain = (df.Session(model, devices=["cpu"], fuse=fuse).run({"x": x})["y"] for fuse in (True, False))
    assert fused.tobytes() == plain.tobytes()
