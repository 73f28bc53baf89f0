"""Checks everything that a plugin offers, hook by hook."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import DataflowError
from ..plugin.offers import NAMED, device_id
from ..plugin.registry import Registry, registry_of
from ..train.losses import Loss
from ..train.metrics import Gathered, Metric
from ..train.names import CORE, Names
from .conformance import Outcome, check_device


def check_plugin(plugin: str, *, registry: Registry | None = None) -> Iterator[Outcome]:
    """An outcome for each check of what a plugin offers.

    Its devices run all samples, and its samples run on all devices. Where it has passes, all samples run through them
    on the device for the host. What it offers by name is made. Formats and converters need files, which only the
    author has.

    Raises:
        InputError: there is no such plugin.
        PluginError: it was set aside; the message has the reason.
    """
    registry = registry_of(registry)
    offered = registry.offered_by(plugin)
    available = [key for key, device in registry.devices.items() if not device.unavailable]
    own = [device_id(device) for device in offered.get("dataflow_devices", ()) if not device.unavailable]
    for device in own:
        yield from check_device(device, registry=registry)
    for device in available:
        if device not in own:
            samples = offered.get("dataflow_samples", ())
            yield from check_device(device, registry=registry, samples=samples, complete=False)
    if "dataflow_passes" in offered:
        host = [*registry.of_role("host"), *registry.of_role("reference")][0]
        yield from check_device(host, registry=registry, complete=False, variants=["plain"])
    tested = {sample.op.name for sample in offered.get("dataflow_samples", ())}
    for op in offered.get("dataflow_ops", ()):
        if op.name not in tested:
            yield Outcome(plugin, op.name, op.name, "plain", "untested", "the plugin declares it, and has no sample")
    for kind, hook in NAMED.items():
        for one in offered.get(hook, ()):
            problem = _problem(kind, one.name, Names(registry.named))
            yield Outcome(plugin, kind, f"{kind} {one.name}", "made", "failed" if problem else "passed", problem or "")


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
