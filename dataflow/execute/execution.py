"""How something runs: the options of a Session or Trainer, and what follows from them before a graph is looked at."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, get_args

from ..errors import InputError, PluginError, blamed
from ..host import checks
from ..host.limits import Limits, account_of
from ..host.numbers import integer
from ..ir.graph import Graph
from ..ir.kernel import HOST
from ..ir.types import DType
from ..lower.placement import Pins
from ..planning.algorithms import Algorithms
from ..planning.memory_goal import MemoryGoal
from ..plugin.device import Backend, Precision
from ..plugin.registry import Registry
from .devices import Devices

MOST_THREADS = 1024  # of the native pool

DeviceChoice = str | tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Execution:
    """How something runs; the options that a Session and a Trainer share.

    Attributes:
        devices: ids in order of preference, each alone or with its options; None: those of ``DATAFLOW_DEVICES``, else
            the best available ones of this project.
        threads: the most to use; None: what the machine lends.
        fold: compute at compile time what depends on constants alone.
        fuse: let one kernel compute several ops where a device has one for them.
        precision: how products of float32 may be computed, see ``Precision``.
        algorithms: which one a kernel uses where it has several; by default what it finds best.
        pin: device ids by pattern, see ``dataflow.lower.placement.Pins``.
        registry: of plugins; None: the installed ones.
        limits: the most memory and time.
        memory: of a training step: what the values between forward and backward may take; None: what they take.
        storage: likewise: the dtype of 16 bits in which float32 values wait between the two; None: as they are.
        small: no copies of weights are prepacked, and runs take turns with one scratch memory.
    """

    devices: Sequence[DeviceChoice] | DeviceChoice | None = None
    threads: int | None = None
    fold: bool = True
    fuse: bool = True
    precision: Precision = "float32"
    algorithms: Algorithms = field(default_factory=Algorithms)
    pin: Mapping[str, str] | None = None
    registry: Registry | None = None
    limits: Limits | None = None
    memory: MemoryGoal | None = None
    storage: DType | None = None
    small: bool = False


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


def choose_devices(how: Execution, registry: Registry, graph: Graph) -> Placement:
    """The ordered device list: what the user named, or the best available, then the last resort.

    Args:
        how: has the devices and the pins.
        registry: what plugins offer.
        graph: the user's, to which the patterns of pins refer.

    Raises:
        InputError: there is no such device, or nothing of the graph matches a pattern.
        DeviceError: a named device is unavailable; the message has the reason.
    """
    given = _given(how.devices)
    if given is None:
        chosen = [*registry.of_role("accelerator"), *registry.of_role("host")]
    else:
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
    pins = Pins(tuple(ordered), {} if how.pin is None else how.pin).for_graph(graph)
    return Placement(tuple(ordered), named or frozenset(ordered), pins)


def _given(devices: Sequence[DeviceChoice] | DeviceChoice | None) -> list[tuple[str, Mapping[str, Any]]] | None:
    """What the caller named, else the variable ``DATAFLOW_DEVICES``, e.g. ``"cuda,cpu"``; None: neither names any."""
    if devices is None:
        listed = [name.strip() for name in os.environ.get("DATAFLOW_DEVICES", "").split(",") if name.strip()]
        return _listed(listed) if listed else None
    return _listed(devices)


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


def open_devices(how: Execution, placement: Placement, registry: Registry) -> Devices:
    """The devices of a placement, opened.

    Raises:
        InputError: a precision that there is not, or limits that are none.
    """
    account = account_of(how.limits)
    checks.text("precision", how.precision, get_args(Precision))
    checks.instance("algorithms", how.algorithms, Algorithms)
    options = dict(_given(how.devices) or ())
    none: Mapping[str, Any] = MappingProxyType({})
    backends: dict[str, Backend] = {}
    for name in placement.devices:
        with blamed(f"device {name!r}: open()"):
            backends[name] = registry.devices[name].open(options.get(name, none), how.precision)
        if not hasattr(backends[name], "prepare"):
            raise PluginError(f"device {name!r}: open() gave {checks.shown(backends[name])}; expected a Backend")
    memories = {d: registry.devices[d].memory for d in placement.devices}
    return Devices(backends, memories, thread_count(how.threads), how.algorithms, how.precision, account)


def thread_count(threads: int | None) -> int:
    """The number of threads: as given, else DATAFLOW_NUM_THREADS, OMP_NUM_THREADS, else what the machine lends.

    Raises:
        InputError: no whole number, or one below 1 or above 1024.
    """
    if threads is None:
        for variable in ("DATAFLOW_NUM_THREADS", "OMP_NUM_THREADS"):
            text = os.environ.get(variable, "")
            if text:
                return integer(variable, int(text) if text.isdigit() else text, most=MOST_THREADS)
        return min(len(os.sched_getaffinity(0)), _quota()) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return integer("threads", threads, most=MOST_THREADS)


def _quota() -> int:
    """CPUs that the control group of this process may use, rounded up."""
    from pathlib import Path

    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()[:2]
        return max(1, -(-int(limit) // int(period)))
    except (OSError, ValueError):
        return 1 << 16
