"""Finds plugins, asks each hook once and freezes what they offered."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType, ModuleType
from typing import Any

import pluggy

from ..errors import DeviceError, InputError, PluginError
from ..host import checks
from ..ir.kernel import Kernel
from ..ir.op import Op
from . import hookspecs
from .device import Device
from .hookspecs import Converter, Format

GROUP = "dataflow"
LAST_RESORT = "numpy"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A plugin and how loading it went.

    Attributes:
        problem: why it was set aside, or None.
    """

    name: str
    distribution: str
    version: str
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Registry:
    """All that plugins offered; given to every stage that needs it.

    Attributes:
        devices: by id, ``"cpu"`` or ``"cuda:1"``; ordinal 0 has no number.
        kernels: per device id and op, highest priority first.
    """

    plugins: tuple[Plugin, ...]
    ops: Mapping[str, Op]
    devices: Mapping[str, Device]
    kernels: Mapping[str, Mapping[str, tuple[Kernel, ...]]]
    formats: Mapping[str, Format]
    load_samples: Callable[[], tuple[Any, ...]] = tuple
    load_converters: Callable[[], tuple[Converter, ...]] = tuple

    @property
    def samples(self) -> tuple[Any, ...]:
        """Samples that plugins brought for their own ops; asked for only here."""
        return self.load_samples()

    @property
    def converters(self) -> tuple[Converter, ...]:
        """Converters that plugins brought for operators of files; asked for only here.

        Raises:
            PluginError: two plugins offer the same operator since the same version.
        """
        return self.load_converters()

    def device(self, name: str) -> Device:
        """The device that a user named.

        Raises:
            InputError: there is none of that name.
            DeviceError: it is unavailable; the message has the reason.
        """
        key = name.removesuffix(":0")
        if key not in self.devices:
            aside = "; ".join(f"plugin {p.name} was set aside: {p.problem}" for p in self.plugins if p.problem)
            raise InputError(f"there is no device {name!r}; there are: {', '.join(self.devices)}. {aside}".rstrip(". "))
        device = self.devices[key]
        if device.unavailable:
            raise DeviceError(f"device {name!r} is unavailable: {device.unavailable}")
        return device

    def default_devices(self) -> list[str]:
        """Available devices, best first: others, then the CPU, then the reference."""
        order = [k for k, d in self.devices.items() if not d.unavailable and k not in ("cpu", LAST_RESORT)]
        return [
            *order,
            *(k for k in ("cpu", LAST_RESORT) if k in self.devices and not self.devices[k].unavailable),
        ]


def device_id(device: Device) -> str:
    """``name`` or ``name:ordinal``."""
    return device.name if device.ordinal == 0 else f"{device.name}:{device.ordinal}"


@functools.cache
def default_registry() -> Registry:
    """The registry of installed plugins, loaded at the first call."""
    return load()


def registry_of(registry: Registry | None) -> Registry:
    """The registry that a caller gives, or that of installed plugins.

    Raises:
        InputError: it is something else.
    """
    return default_registry() if registry is None else checks.instance("registry", registry, Registry)


def load(extra: Iterable[ModuleType | object] = ()) -> Registry:
    """A registry of the installed plugins and of ``extra`` plugin objects.

    A plugin that can't be imported or registered is set aside with its reason and stops nobody else.
    """
    plugins: list[Plugin] = []
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(hookspecs)
    for entry in importlib.metadata.entry_points(group=GROUP):
        found = entry.dist
        name, version = (found.name, found.version) if found is not None else ("?", "?")
        problem = None
        try:
            manager.register(entry.load(), entry.name)
        except Exception as error:  # anybody's code: whatever it raises is its reason
            problem = f"{type(error).__name__}: {error}"
        plugins.append(Plugin(entry.name, name, version, problem))
    for plugin in extra:
        manager.register(plugin)
        plugins.append(Plugin(getattr(plugin, "__name__", repr(plugin)), "", ""))
    return _collect(manager, plugins)


def _collect(manager: pluggy.PluginManager, plugins: list[Plugin]) -> Registry:
    from .. import ops as own

    ops: dict[str, Op] = {op.name: op for op in own.ALL}
    devices: dict[str, Device] = {}
    formats: dict[str, Format] = {}
    owner: dict[str, str] = dict.fromkeys(ops, "dataflow")
    problems: dict[str, str] = {}

    def ask(name: str, hook: str, **arguments: Any) -> list[Any]:
        module = manager.get_plugin(name)
        function = getattr(module, hook, None)
        if function is None or name in problems:
            return []
        try:
            return list(function(**arguments) or ())
        except Exception as error:
            problems[name] = f"{hook}: {type(error).__name__}: {error}"
            return []

    def claim(kind: str, key: str, by: str) -> None:
        known = owner.get(f"{kind} {key}" if kind else key)
        if known is not None:
            raise PluginError(f"{kind or 'op'} {key!r} is offered twice: by {known} and by {by}")
        owner[f"{kind} {key}" if kind else key] = by

    names = [name for name, _ in manager.list_name_plugin()]
    for name in names:
        for op in ask(name, "dataflow_ops"):
            claim("", op.name, name)
            ops[op.name] = op
        for device in ask(name, "dataflow_devices"):
            claim("device", device_id(device), name)
            devices[device_id(device)] = device
        for form in ask(name, "dataflow_formats"):
            claim("suffix", form.suffix, name)
            formats[form.suffix] = form
    kernels: dict[str, Mapping[str, tuple[Kernel, ...]]] = {}
    for key, device in devices.items():
        by_op: dict[str, list[Kernel]] = {}
        if not device.unavailable:
            offered = [*device.kernels()]
            for name in names:
                offered += ask(name, "dataflow_kernels", device=device)
            for kernel in offered:
                by_op.setdefault(kernel.op, []).append(kernel)
        kernels[key] = {op: tuple(sorted(found, key=lambda k: -k.priority)) for op, found in by_op.items()}
    _check_references(ops, kernels)
    plugins = [Plugin(p.name, p.distribution, p.version, problems.get(p.name, p.problem)) for p in plugins]
    for plugin in plugins:
        if plugin.problem:
            import logging

            logging.getLogger("dataflow").warning("plugin %s was set aside: %s", plugin.name, plugin.problem)
    return Registry(
        tuple(plugins),
        MappingProxyType(ops),
        MappingProxyType(devices),
        MappingProxyType(kernels),
        MappingProxyType(formats),
        lambda: tuple(sample for name in names for sample in ask(name, "dataflow_samples")),
        functools.cache(lambda: tuple(_converters(names, ask))),
    )


def _converters(names: Iterable[str], ask: Callable[..., list[Any]]) -> Iterator[Converter]:
    """What plugins offer, each operator once."""
    owner: dict[tuple[str, str, int], str] = {}
    for name in names:
        for converter in ask(name, "onnx_converters"):
            key = converter.domain, converter.operator, converter.since
            if key in owner:
                text = f"operator {key[1]!r} of the domain {key[0]!r} since {key[2]}"
                raise PluginError(f"{text} is offered twice: by {owner[key]} and by {name}")
            owner[key] = name
            yield converter


def _check_references(ops: Mapping[str, Op], kernels: Mapping[str, Mapping[str, Any]]) -> None:
    known = kernels.get(LAST_RESORT)
    if known is None:
        return  # the reference itself was set aside, and that was said
    missing = [o.name for o in ops.values() if o.name not in known and o.decompose is None and not o.bodies]
    if missing:
        raise PluginError(f"ops without a numpy kernel and without a decomposition: {', '.join(missing)}")
