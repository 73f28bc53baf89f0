"""Pins: what they say stays what it was, and holds for the nodes that replace pinned ones."""

import dataclasses

import numpy as np
import pytest

import dataflow as df
from dataflow.execute.execution import Execution, choose_devices
from dataflow.lower.lowering import lower
from dataflow.lower.placement import targets_of
from dataflow.passes.fuse import fuse
from dataflow.plugin.registry import default_registry

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
