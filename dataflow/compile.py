"""Graph -> Plan: the passes in their order, for one list of devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .execute.devices import Devices
from .execute.execution import Placement
from .ir.graph import Graph, Initializer
from .ir.lowered import Lowered, LoweredNode, Root
from .ir.plan import Plan
from .lower.lowering import lower
from .lower.placement import targets_of
from .passes.constant_folding import fold
from .passes.dead_code import without_dead
from .passes.dropout import without_inactive
from .passes.fold_affine import join_scales
from .passes.fuse import fuse
from .passes.fuse_elementwise import fuse_elementwise
from .passes.transposed_matmul import turn_products
from .planning.planner import make_plan
from .plugin.registry import Registry


@dataclass(frozen=True, slots=True)
class Compiled:
    """A plan, and what it was made from.

    Attributes:
        initial: the first data of each stored tensor, by key; of the caller, who may let go of it one by one.
    """

    plan: Plan
    lowered: Lowered
    initial: dict[str, Initializer]


def to_differentiate(graph: Graph, placement: Placement, registry: Registry, changed: Collection[str]) -> Graph:
    """A bound graph with ops in the place of their patterns, where a device has kernels for them and their gradients.

    What such an op keeps for its gradient is less than what its parts would keep.
    """
    graph = fold(without_inactive(graph), registry.reference_kernels, changed)
    return fuse(graph, targets_of(placement.pins, registry), registry.ops.values(), changed, differentiable=True)


def compile_graph(
    graph: Graph,
    placement: Placement,
    devices: Devices,
    registry: Registry,
    *,
    changed: Collection[str] = (),
    homes: Mapping[str, str] = MappingProxyType({}),
    folding: bool = True,
    fusion: bool = True,
) -> Compiled:
    """The plan of a bound graph, and what it was made from.

    Args:
        graph: every dim is an int.
        placement: devices in order.
        devices: the same devices, open.
        registry: what plugins offer.
        changed: names of initializers that some program changes; nothing is folded through them.
        homes: the memory of those that lie in one place only.
        folding: compute at compile time what depends on constants alone, and join constant scales per channel.
        fusion: let one kernel compute several ops where a device has one for them.

    Raises:
        ModelError: no device takes a node.
    """
    graph = turn_products(without_dead(without_inactive(graph)))
    if folding:
        reference = registry.reference_kernels
        graph = without_dead(fold(graph, reference, changed))
        graph = join_scales(graph, reference, changed)
    if fusion:
        targets = targets_of(placement.pins, registry)
        graph = fuse(graph, targets, registry.ops.values(), changed)
        graph = fuse_elementwise(graph, targets)
    lowered, initial = lower(graph, placement.pins, registry, homes)

    def measure(node: LoweredNode, names: Sequence[str], constant: Collection[int]) -> Mapping[str, float]:
        from .execute.autotune import time_algorithms

        return time_algorithms(node, names, constant, devices, registry)

    def prepare(device: str, nodes: Sequence[LoweredNode], constants: Collection[Root]) -> Sequence[Any]:
        backend = devices.backends[device]
        found = backend.prepare(nodes, devices.threads, constants)
        described = f"{devices.threads} threads, {devices.precision}"
        other = devices.algorithms.settle(nodes, found, described, measure)
        return backend.prepare(nodes, devices.threads, constants, other) if other else found

    alignment = {d: registry.devices[d].alignment for d in placement.devices}
    asynchronous = frozenset(d for d in placement.devices if registry.devices[d].asynchronous)
    plan = make_plan(lowered, prepare, alignment, asynchronous, changed)
    return Compiled(plan, lowered, initial)
