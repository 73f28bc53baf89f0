"""Graph -> Plan: the passes in their order, for one list of devices."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .execute.compiled_segments import compile_segments
from .execute.devices import Devices
from .execute.execution import Placement
from .ir.graph import Graph, Initializer
from .ir.kernel import HOST
from .ir.lowered import NO_STATE, BaseTensor, Lowered, LoweredNode, RunState
from .ir.plan import Plan
from .ir.types import DType, bfloat16
from .lower.declared import check_declared
from .lower.lowering import lower
from .lower.placement import targets_of
from .passes.narrow_storage import narrow_storage
from .passes.node_order import ordered_for_memory
from .passes.pipeline import Context, Phase, run_phases
from .passes.rounding.casts import absorb_casts
from .passes.rounding.gradients import round_gradients
from .planning.memory_goal import MemoryGoal, Searches, planned_within
from .planning.planner import make_plan
from .plugin.device import Precision, Refused
from .plugin.registry import Registry


@dataclass(frozen=True, slots=True)
class Compiled:
    """A plan, and what it was made from.

    Attributes:
        initial: the first data of each stored tensor, by key; of the caller, who may let go of it one by one.
        segments: what devices made of the plan's segments before they have addresses; for who binds them to keep.
    """

    plan: Plan
    lowered: Lowered
    initial: dict[str, Initializer]
    segments: Sequence[Any]


def to_differentiate(graph: Graph, placement: Placement, registry: Registry, mutable: Collection[str]) -> Graph:
    """A bound graph as its gradient is built from it.

    Raises:
        PluginError: a plugin's pass fails, or an op isn't the one whose kernels the registry has.
    """
    check_declared(graph.nodes, registry)
    return run_phases(registry.passes, ["differentiate"], graph, _context(placement, registry, mutable))


def _context(
    placement: Placement, registry: Registry, mutable: Collection[str], precision: Precision = "float32"
) -> Context:
    targets = targets_of(placement.pins, registry)
    rounds, reduced = precision == "bf16", precision in ("tf32", "bf16")
    return Context(mutable, registry.reference_kernels, targets, registry.ops, rounds, reduced)


def lowered_graph(
    graph: Graph,
    placement: Placement,
    registry: Registry,
    *,
    mutable: Collection[str] = (),
    owners: Mapping[str, str] = MappingProxyType({}),
    folding: bool = True,
    ordered: bool = False,
    fusion: bool = True,
    state: RunState = NO_STATE,
    storage: DType | None = None,
    precision: Precision = "float32",
) -> tuple[Lowered, dict[str, Initializer]]:
    """What a bound graph is lowered to, behind the passes, and the first data of what it stores.

    Args:
        graph: every dim is an int.
        placement: devices in order.
        registry: what plugins offer.
        mutable: names of initializers that some program changes; nothing is folded through them.
        owners: owning memory of each mutable initializer.
        folding: compute at compile time what depends on constants alone, and join constant scales per channel.
        ordered: nodes may get another order, which depends on sizes: plans of sizes that grow wouldn't be alike.
        fusion: let one kernel compute several ops where a device has one for them.
        state: inputs and outputs that stay in a memory from run to run.
        storage: of a graph that is several programs in a row: the dtype in which float32 values wait for the next of
            them; None: as they are.
        precision: how products of float32 may be computed.

    Raises:
        ModelError: no device takes a node.
        PluginError: a plugin's pass fails, or an op isn't the one whose kernels the registry has.
    """
    check_declared(graph.nodes, registry)
    phases: list[Phase] = ["simplify", *(["fold"] if folding else ()), *(["fuse"] if fusion else ())]
    graph = run_phases(registry.passes, phases, graph, _context(placement, registry, mutable, precision))
    if storage is not None:
        graph = narrow_storage(graph, storage, mutable)
    if fusion:
        refused, targets = {name for name, *_ in placement.pins.refused}, targets_of(placement.pins, registry)
        if storage == bfloat16 and precision == "bf16":
            graph = round_gradients(graph, targets, refused)
        graph = absorb_casts(graph, targets, refused)
    if ordered:
        graph = ordered_for_memory(graph)
    return lower(graph, placement.pins, registry, owners, state)


def planned(
    lowered: Lowered,
    initial: dict[str, Initializer],
    placement: Placement,
    devices: Devices,
    registry: Registry,
    *,
    mutable: Collection[str] = (),
    goal: MemoryGoal | None = None,
    searches: Searches | None = None,
    prepacks: bool = True,
) -> Compiled:
    """The plan of a graph that was lowered.

    Args:
        lowered: see ``lowered_graph``.
        initial: likewise.
        placement: devices in order.
        devices: the same devices, open.
        registry: what plugins offer.
        mutable: names of initializers that some program changes.
        goal: of a graph that is several programs in a row: how much memory their values may take; None: what they take.
        searches: what was found for other sizes, where a goal is no budget; None: nothing.
        prepacks: kernels get prepacked copies of weights.

    Raises:
        InputError: the goal can't be reached.
        Refused: a device can't run a node after all.
    """

    def measure(node: LoweredNode, names: Sequence[str], constant: Collection[int]) -> Mapping[str, float]:
        from .execute.autotune import time_algorithms

        return time_algorithms(node, names, constant, devices, registry)

    def prepare(device: str, nodes: Sequence[LoweredNode], constants: Collection[BaseTensor]) -> Sequence[Any]:
        backend = devices.backends[device]
        try:
            found = backend.prepare(nodes, devices.threads, constants)
            described = f"{devices.threads} threads, {devices.precision}"
            other = devices.algorithms.resolve(nodes, found, described, measure)
            return backend.prepare(nodes, devices.threads, constants, other) if other else found
        except Refused as error:
            error.device = device
            raise

    alignment = {d: registry.devices[d].alignment for d in placement.devices}
    asynchronous = frozenset(d for d in placement.devices if registry.devices[d].asynchronous)
    offering = [d for d in placement.devices if registry.devices[d].prepacks]
    prepacking = {HOST, *(devices.memories[d] for d in offering)} if prepacks else set[str]()
    make = functools.partial(
        make_plan,
        prepare=prepare,
        alignment=alignment,
        asynchronous=asynchronous,
        mutable=mutable,
        prepacking=prepacking,
    )
    if goal is None or len(lowered.stages) < 2:
        plan = make(lowered)
    else:
        lowered, plan = planned_within(goal, lowered, make, searches or Searches())
    return Compiled(plan, lowered, initial, compile_segments(plan, devices))
