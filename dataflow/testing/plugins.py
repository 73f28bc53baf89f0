"""Checks everything that a plugin offers, hook by hook."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import DataflowError, InputError
from ..ir.kernel import Kernel, has_work
from ..plugin.offers import NAMED, device_id
from ..plugin.registry import Registry, registry_of
from ..train.losses import Loss
from ..train.metrics import Gathered, Metric
from ..train.names import CORE, Names
from .conformance import run_tasks, tasks_of
from .files import file_tasks
from .freshness import freshness_task
from .operations import op_tasks
from .outcome import Outcome, Report, Task, selected
from .sample import Sample
from .samples import SAMPLES


def check_plugin(
    plugin: str, *, registry: Registry | None = None, select: str | None = None, limit: float | None = None
) -> Iterator[Outcome]:
    """An outcome for each check of what a plugin offers.

    Its devices run all samples, its kernels those of their ops, and its samples run on all devices. Of its ops the
    gradients are compared with central differences, and decompositions with kernels of the reference. Where it has
    passes, all samples run through them on the device for the host. What it offers by name is made. Its libraries are
    newer than their sources. Its formats write and read a small model, its exporters their ops' samples.
    Converters of what no exporter writes need files, which only the author has.

    Args:
        plugin: its name.
        registry: of plugins; None: of those that are installed.
        select: see ``check_device``.
        limit: see ``check_device``.

    Raises:
        InputError: there is no such plugin, or nothing of the name that is selected.
        PluginError: it was set aside; the message has the reason.
    """
    return run_tasks(plugin, lambda: selected(plugin_tasks(plugin, registry), select), limit)


def check_named(name: str, *, select: str | None = None, limit: float | None = None) -> Iterator[Outcome]:
    """What is checked of the installed device, plugin or op of this name, see ``check_device`` and ``check_plugin``.

    An op runs on every available device.

    Raises:
        InputError: there is nothing of the name.
        DeviceError: the device is unavailable.
        PluginError: the plugin was set aside.
    """
    return run_tasks(name, lambda: selected(named_tasks(name), select), limit)


def named_tasks(name: str) -> list[Task]:
    """What ``check_named`` does, task by task; see there."""
    registry = registry_of(None)
    device = name.removesuffix(":0")
    if device in registry.devices:
        return tasks_of(device)
    if any(plugin.name == name for plugin in registry.plugins):
        return plugin_tasks(name)
    if name not in registry.ops:
        plugins = ", ".join(plugin.name for plugin in registry.plugins)
        raise InputError(
            f"{name!r} is no device ({', '.join(registry.devices)}), no plugin ({plugins}) and no op (dataflow ops)"
        )
    samples = [sample for sample in (*SAMPLES, *registry.samples) if sample.op.name == name]
    found = [*op_tasks(name, samples, registry)]
    for key in _available(registry):
        found += tasks_of(key, samples=samples, complete=False)
    return found


def _available(registry: Registry) -> list[str]:
    return [key for key, device in registry.devices.items() if not device.unavailable]


def plugin_tasks(plugin: str, registry: Registry | None = None) -> list[Task]:
    """What ``check_plugin`` does, task by task; see there."""
    registry = registry_of(registry)
    offered = registry.offered_by(plugin)
    samples: Sequence[Sample] = offered.get("dataflow_samples", ())
    found: list[Task] = [freshness_task(plugin, registry)]
    own = [device_id(device) for device in offered.get("dataflow_devices", ()) if not device.unavailable]
    for device in own:
        found += tasks_of(device, registry=registry)
    for device in _available(registry):
        if device not in own:
            found += _kernel_tasks(device, plugin, registry)
            found += tasks_of(device, registry=registry, samples=samples, complete=False)
    if "dataflow_passes" in offered:
        host = [*registry.of_role("host"), *registry.of_role("reference")][0]
        found += tasks_of(host, registry=registry, complete=False, variants=["plain"])
    found += op_tasks(plugin, samples, registry)
    return [*found, *_offered_tasks(plugin, offered, registry), *file_tasks(plugin, offered, registry)]


def _kernel_tasks(device: str, plugin: str, registry: Registry) -> list[Task]:
    """What is checked of the kernels that a plugin offers for a device of another: as if it had no others."""
    own = [k for kernels in registry.kernels[device].values() for k in kernels if k.plugin == plugin]
    if not own:
        return []
    ops = {kernel.op for kernel in own}
    samples = [sample for sample in SAMPLES if sample.op.name in ops]
    hidden = [_hidden_task(device, kernel, [*samples, *registry.samples], registry) for kernel in own]
    return [*filter(None, hidden), *tasks_of(device, registry=registry, samples=samples, only=own)]


def _hidden_task(device: str, kernel: Kernel, samples: Sequence[Sample], registry: Registry) -> Task | None:
    """A failure where another plugin's kernel of the same priority comes first; None: there is none."""
    listed = registry.kernels[device][kernel.op]
    first = [k for k in listed[: listed.index(kernel)] if (k.priority, k.plugin) != (kernel.priority, kernel.plugin)]
    first = [k for k in first if k.priority == kernel.priority]
    for sample in samples:
        if sample.op.name != kernel.op or not has_work(sample.node) or kernel.refuses(sample.node) is not None:
            continue
        for other in first:
            if other.refuses(sample.node) is None:
                text = (
                    f"{kernel.name} never runs: {other.name} of {other.plugin} takes the node with the same priority, "
                    f"{kernel.priority}, and comes first; give it a higher one"
                )
                return _said(Outcome(device, kernel.op, sample.name, "plain", "failed", text))
    return None


def _said(outcome: Outcome) -> Task:
    """A task that has an outcome without running anything."""
    return Task(outcome.op, outcome.sample, lambda report: iter([outcome]))


def _offered_tasks(plugin: str, offered: Mapping[str, Sequence[Any]], registry: Registry) -> list[Task]:
    """Ops without samples, and what is offered by name."""
    tested = {sample.op.name for sample in offered.get("dataflow_samples", ())}
    outcomes = [
        Outcome(plugin, op.name, op.name, "plain", "untested", "the plugin declares it, and has no sample")
        for op in offered.get("dataflow_ops", ())
        if op.name not in tested
    ]

    def made(kind: str, name: str) -> Task:
        def run(report: Report) -> Iterator[Outcome]:
            problem = _problem(kind, name, Names(registry.named))
            yield Outcome(plugin, kind, f"{kind} {name}", "made", "failed" if problem else "passed", problem or "")

        return Task(kind, f"{kind} {name}", run)

    return [
        *map(_said, outcomes),
        *(made(kind, one.name) for kind, hook in NAMED.items() for one in offered.get(hook, ())),
    ]


def _problem(kind: str, name: str, names: Names) -> str | None:
    """Why what a name stands for can't be used, or None."""
    if name in CORE[kind]:
        return f"dataflow has the {kind} {name!r}, which is used instead"
    make = {"loss": names.loss, "metric": names.metric, "schedule": names.schedule, "callback": names.callback}
    try:
        made: Any = names.optimizer(name) if kind == "optimizer" else make[kind](name)
    except DataflowError as error:
        return str(error)
    fits = {"loss": isinstance(made, Loss), "metric": isinstance(made, (Metric, Gathered)), "optimizer": True}
    return None if fits.get(kind) or callable(made) else f"it is {type(made).__name__}, which is no {kind}"
