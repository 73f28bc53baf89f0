"""Graph -> Plan: the passes in their order, for one list of devices."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_args

from .errors import InputError
from .execute.devices import Machine
from .host import checks
from .host.limits import Limits, account_of
from .host.numbers import whole
from .ir.graph import Graph, Initializer
from .ir.kernel import HOST
from .ir.lowered import Lowered, LoweredNode, Root
from .ir.plan import Plan
from .lower.lowering import lower
from .lower.placement import Pins, targets_of
from .passes.constant_folding import fold
from .passes.dead_code import without_dead
from .passes.dropout import without_inactive
from .passes.fold_affine import join_scales
from .passes.fuse import fuse
from .passes.fuse_elementwise import fuse_elementwise
from .passes.transposed_matmul import turn_products
from .planning.algorithms import Algorithms
from .planning.planner import make_plan
from .plugin.device import Precision
from .plugin.registry import Registry

MOST_THREADS = 1024  # of the native pool

DeviceChoice = str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Placement:
    """Which devices may run a program.

    Attributes:
        devices: ids in order of preference, the last resort last.
        named: those that the user named or that were chosen for them; work elsewhere is a fallback.
        pins: what the user wants where.
    """

    devices: tuple[str, ...]
    named: frozenset[str]
    pins: Pins


@dataclass(frozen=True, slots=True)
class Compiled:
    """A plan, and what it was made from.

    Attributes:
        initial: the first data of each stored tensor, by key; of the caller, who may let go of it one by one.
    """

    plan: Plan
    lowered: Lowered
    initial: dict[str, Initializer]


def place(
    devices: Sequence[DeviceChoice] | DeviceChoice | None,
    registry: Registry,
    graph: Graph,
    pin: Mapping[str, str] | None = None,
) -> Placement:
    """The ordered device list: what the user named, or the best available, then the last resort.

    Args:
        devices: ids, each alone or with its options; None: the best available.
        registry: what plugins offer.
        graph: the user's, to which patterns refer.
        pin: device ids by pattern; see ``dataflow.lower.placement.Pins``.

    Raises:
        InputError: there is no such device, or nothing of the graph matches a pattern.
        DeviceError: a named device is unavailable; the message has the reason.
    """
    if devices is None:
        chosen = [*registry.of_role("accelerator"), *registry.of_role("host")]
    else:
        given = _listed(devices)
        if not given:
            known = ", ".join(registry.devices)
            raise InputError(f"devices is empty; leave it out to use the best available, or name some of {known}")
        chosen = [name for name, _ in given]
        for name in chosen:
            registry.device(name)
    ordered = list(dict.fromkeys(chosen))
    named = frozenset(ordered)
    if not any(registry.devices[d].memory == HOST for d in ordered):
        ordered += registry.of_role("host")[:1]
    ordered += [d for d in registry.of_role("reference") if d not in ordered]
    pins = Pins(tuple(ordered), {} if pin is None else pin).for_graph(graph)
    return Placement(tuple(ordered), named or frozenset(ordered), pins)


def _listed(devices: Sequence[DeviceChoice] | DeviceChoice) -> list[tuple[str, Mapping[str, Any]]]:
    """Ids with their options."""
    several = devices if isinstance(devices, (list, tuple)) else (devices,)
    single = isinstance(devices, tuple) and len(devices) == 2 and isinstance(devices[1], Mapping)
    found: list[tuple[str, Mapping[str, Any]]] = []
    for choice in (devices,) if single else several:
        name, options = choice if isinstance(choice, tuple) and len(choice) == 2 else (choice, MappingProxyType({}))
        checks.mapping("devices: the options of a device", options)
        found.append((checks.text("devices: an id", name).removesuffix(":0"), options))
    return found


def open_machine(
    placement: Placement,
    devices: Sequence[DeviceChoice] | DeviceChoice | None,
    registry: Registry,
    threads: int | None,
    precision: Precision = "float32",
    algorithms: Algorithms | None = None,
    limits: Limits | None = None,
) -> Machine:
    """The opened devices of a placement.

    Raises:
        InputError: a precision that there is not, or limits that are none.
    """
    account = account_of(limits)
    checks.text("precision", precision, get_args(Precision))
    checks.optional("algorithms", algorithms, Algorithms)
    options = {} if devices is None else dict(_listed(devices))
    backends = {d: registry.devices[d].open(options.get(d, MappingProxyType({})), precision) for d in placement.devices}
    memories = {d: registry.devices[d].memory for d in placement.devices}
    return Machine(backends, memories, thread_count(threads), algorithms, precision, account)


def thread_count(threads: int | None) -> int:
    """The number of threads: as given, else DATAFLOW_NUM_THREADS, OMP_NUM_THREADS, else what the machine lends.

    Raises:
        InputError: no whole number, or one below 1 or above 1024.
    """
    if threads is None:
        for variable in ("DATAFLOW_NUM_THREADS", "OMP_NUM_THREADS"):
            text = os.environ.get(variable, "")
            if text:
                return whole(variable, int(text) if text.isdigit() else text, most=MOST_THREADS)
        return min(len(os.sched_getaffinity(0)), _quota()) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return whole("threads", threads, most=MOST_THREADS)


def _quota() -> int:
    """CPUs that the control group of this process may use, rounded up."""
    from pathlib import Path

    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return max(1, -(-int(limit) // int(period)))
    except (OSError, ValueError):
        return 1 << 16


def to_differentiate(graph: Graph, placement: Placement, registry: Registry, changed: Collection[str]) -> Graph:
    """A bound graph with ops in the place of their patterns, where a device has kernels for them and their gradients.

    What such an op keeps for its gradient is less than what its parts would keep.
    """
    graph = fold(without_inactive(graph), registry.reference_kernels, changed)
    return fuse(graph, targets_of(placement.pins, registry), registry.ops.values(), changed, differentiable=True)


def compile_graph(
    graph: Graph,
    placement: Placement,
    machine: Machine,
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
        machine: the same devices, open.
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

        return time_algorithms(node, names, constant, machine, registry)

    def prepare(device: str, nodes: Sequence[LoweredNode], constants: Collection[Root]) -> Sequence[Any]:
        backend = machine.backends[device]
        found = backend.prepare(nodes, machine.threads, constants)
        described = f"{machine.threads} threads, {machine.precision}"
        other = machine.algorithms.settle(nodes, found, described, measure)
        return backend.prepare(nodes, machine.threads, constants, other) if other else found

    alignment = {d: registry.devices[d].alignment for d in placement.devices}
    asynchronous = frozenset(d for d in placement.devices if registry.devices[d].asynchronous)
    plan = make_plan(lowered, prepare, alignment, asynchronous, changed)
    return Compiled(plan, lowered, initial)
