"""Finds plugins, asks each hook once and freezes what they offered."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from .. import ops as own
from ..errors import DeviceError, InputError, PluginError
from ..host import checks
from ..ir.kernel import Kernel
from ..ir.op import AnyOp
from ..passes.pipeline import Pass, arranged
from .device import ROLES, Device, Role
from .hooks import GROUP, Hooks
from .hookspecs import HOOKS, Converter, Format, Named

T = TypeVar("T")
# Hooks whose records users choose by name, by what they call one.
NAMED = {
    "loss": "dataflow_losses",
    "optimizer": "dataflow_optimizers",
    "metric": "dataflow_metrics",
    "schedule": "dataflow_schedules",
    "callback": "dataflow_callbacks",
}


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
        hooks: the plugins; who needs samples and converters calls those hooks.
        named: by kind and name what plugins offer to those who train.
        passes: the core's and those of plugins, in the order in which they run.
    """

    plugins: tuple[Plugin, ...]
    ops: Mapping[str, AnyOp]
    devices: Mapping[str, Device]
    kernels: Mapping[str, Mapping[str, tuple[Kernel, ...]]]
    formats: Mapping[str, Format]
    passes: tuple[Pass, ...]
    named: Mapping[str, Mapping[str, Named]]
    hooks: Hooks

    def offered_by(self, plugin: str) -> Mapping[str, Sequence[Any]]:
        """The records of a plugin by hook, in the order of ``HOOKS``.

        Raises:
            InputError: there is no such plugin.
            PluginError: it was set aside; the message has the reason.
        """
        found = next((p for p in self.plugins if p.name == plugin), None)
        if found is None:
            raise InputError(f"there is no plugin {plugin!r}; there are: {', '.join(p.name for p in self.plugins)}")
        _ = self.samples, self.converters  # asked for when they are first needed
        if plugin in self.hooks.problems:
            raise PluginError(f"plugin {plugin} was set aside: {self.hooks.problems[plugin]}")
        given = self.hooks.given.get(plugin, {})
        return {hook: given[hook] for hook in HOOKS if given.get(hook)}

    @property
    def samples(self) -> tuple[Any, ...]:
        """Samples that plugins brought for their own ops; asked for only here."""
        return tuple(sample for _, sample in self.hooks.later("dataflow_samples", object))

    @property
    def converters(self) -> tuple[Converter, ...]:
        """Converters that plugins brought for operators of files; asked for only here.

        Raises:
            PluginError: two plugins offer the same operator since the same version.
        """
        return _converters(self.hooks)

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

    def of_role(self, role: Role) -> list[str]:
        """Ids of the available devices that have it."""
        return [key for key, device in self.devices.items() if device.role == role and not device.unavailable]

    @property
    def reference(self) -> str | None:
        """Id of the device that has every op; None where its plugin was set aside."""
        return next(iter(self.of_role("reference")), None)

    @property
    def reference_kernels(self) -> Mapping[str, tuple[Kernel, ...]]:
        """Kernels of the reference, by op."""
        return {} if self.reference is None else self.kernels[self.reference]


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


def load(extra: Iterable[object] = ()) -> Registry:
    """A registry of the installed plugins and of ``extra`` plugin objects.

    A plugin that can't be imported or registered, or whose hooks fail or give records of another type, is set aside
    with its first reason, with all that it offered, and stops nobody else.

    Raises:
        PluginError: two plugins offer an op, a device or a suffix of the same name, or a reference; or an op has
            neither a kernel on the reference nor a decomposition; or passes that can't be ordered.
    """
    hooks, plugins = Hooks(), []
    for entry in importlib.metadata.entry_points(group=GROUP):
        hooks.register(entry.name, entry.load)
        distribution = entry.dist
        name, version = (distribution.name, distribution.version) if distribution is not None else ("?", "?")
        plugins.append(Plugin(entry.name, name, version))
    for plugin in extra:
        name = str(getattr(plugin, "__name__", repr(plugin)))
        hooks.register(name, functools.partial(_itself, plugin))
        plugins.append(Plugin(name, "", ""))
    ops = [*hooks.offers("dataflow_ops", AnyOp)]
    formats = [*hooks.offers("dataflow_formats", Format)]
    passes = [*hooks.offers("dataflow_passes", Pass)]
    named = {
        kind: [(name, dataclasses.replace(one, plugin=name)) for name, one in hooks.offers(hook, Named)]
        for kind, hook in NAMED.items()
    }
    offered = [*hooks.offers("dataflow_devices", Device)]
    for name, device in offered:
        if device.role not in ROLES:
            hooks.set_aside(name, f"device {device.name!r} has the role {device.role!r}; there are: {', '.join(ROLES)}")
    kernels = {device_id(device): _kernels(hooks, name, device) for name, device in offered}
    devices = _unique("device", offered, device_id, hooks)
    found = Registry(
        tuple(dataclasses.replace(plugin, problem=hooks.problems.get(plugin.name)) for plugin in plugins),
        _unique("op", ops, lambda op: op.name, hooks, {op.name: op for op in own.ALL}),
        devices,
        MappingProxyType({key: _by_op(kernels[key], hooks) for key in devices}),
        _unique("suffix", formats, lambda form: form.suffix, hooks),
        arranged([dataclasses.replace(one, plugin=name) for name, one in passes if name not in hooks.problems]),
        MappingProxyType({kind: _unique(kind, found, lambda one: one.name, hooks) for kind, found in named.items()}),
        hooks,
    )
    _check_references(found)
    return found


def _itself(plugin: object) -> object:
    return plugin


def _kernels(hooks: Hooks, name: str, device: Device) -> list[tuple[str, Kernel]]:
    """A device's own kernels, offered by the plugin ``name``, and those that other plugins have for it."""
    if device.unavailable:
        return []
    try:
        kernels = [(name, kernel) for kernel in device.kernels()]
    except Exception as error:  # anybody's code
        hooks.set_aside(name, f"kernels of the device {device.name}: {type(error).__name__}: {error}")
        return []
    return [*kernels, *hooks.offers("dataflow_kernels", Kernel, device=device)]


def _by_op(offered: Iterable[tuple[str, Kernel]], hooks: Hooks) -> Mapping[str, tuple[Kernel, ...]]:
    """Kernels by op, highest priority first, without those of plugins that were set aside."""
    found: dict[str, list[Kernel]] = {}
    for name, kernel in offered:
        if name not in hooks.problems:
            found.setdefault(kernel.op, []).append(kernel)
    return {op: tuple(sorted(kernels, key=lambda k: -k.priority)) for op, kernels in found.items()}


def _unique(
    kind: str,
    offered: Iterable[tuple[str, T]],
    key: Callable[[T], Any],
    hooks: Hooks,
    core: Mapping[Any, T] = MappingProxyType({}),
) -> Mapping[Any, T]:
    """Records by key, the core's first, without those of plugins that were set aside.

    Raises:
        PluginError: a key occurs twice.
    """
    found, owner = dict(core), dict.fromkeys(core, "dataflow")
    for name, record in offered:
        if name in hooks.problems:
            continue
        known = owner.setdefault(key(record), name)
        if key(record) in found:
            raise PluginError(f"{kind} {key(record)!r} is offered twice: by {known} and by {name}")
        found[key(record)] = record
    return MappingProxyType(found)


def _converters(hooks: Hooks) -> tuple[Converter, ...]:
    """Each operator once.

    Raises:
        PluginError: two plugins offer it.
    """
    return tuple(_unique("operator", hooks.later("onnx_converters", Converter), _version, hooks).values())


def _version(converter: Converter) -> str:
    """What it converts, e.g. ``"com.example.Relu6, since 2"``."""
    return f"{converter.domain}.{converter.operator}, since {converter.since}".lstrip(".")


def _check_references(registry: Registry) -> None:
    references = registry.of_role("reference")
    if not references:
        return  # its plugin was set aside, and that was said
    if len(references) > 1:
        raise PluginError(f"there is more than one reference: {', '.join(references)}")
    known = registry.reference_kernels
    missing = [o.name for o in registry.ops.values() if o.name not in known and o.decompose is None and not o.bodies]
    if missing:
        text = f"ops without a kernel on {references[0]} and without a decomposition"
        raise PluginError(f"{text}: {', '.join(missing)}")
