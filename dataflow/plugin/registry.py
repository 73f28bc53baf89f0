"""Finds plugins, asks each hook once and freezes what they offered."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .. import ops as own
from ..errors import DeviceError, InputError, PluginError
from ..host import checks
from ..ir.kernel import Kernel
from ..ir.op import AnyOp
from ..passes.pipeline import Pass
from .device import Device, Role
from .hooks import Hooks
from .hookspecs import HOOKS, Converter, Exporter, Format, Named
from .installed import Candidate, Plugin, installed, named_apart
from .offers import NAMED, Offers


@dataclass(frozen=True, slots=True, repr=False, eq=False, weakref_slot=True)
class Registry:
    """All that plugins offered; given to every stage that needs it.

    Attributes:
        devices: by id, ``"cpu"`` or ``"cuda:1"``; ordinal 0 has no number.
        kernels: per device id and op, highest priority first.
        passes: the core's and those of plugins, in the order in which they run.
        named: by kind and name what plugins offer to those who train.
        converters: those that plugins brought for operators of files.
        exporters: by name of the op what plugins brought for files.
        own: ids of the devices of this project; others are used where a user names them.
        hooks: the plugins; who needs samples calls that hook.
    """

    plugins: tuple[Plugin, ...]
    ops: Mapping[str, AnyOp]
    devices: Mapping[str, Device]
    kernels: Mapping[str, Mapping[str, tuple[Kernel, ...]]]
    formats: Mapping[str, Format]
    passes: tuple[Pass, ...]
    named: Mapping[str, Mapping[str, Named]]
    converters: tuple[Converter, ...]
    exporters: Mapping[str, Exporter]
    own: frozenset[str]
    hooks: Hooks

    def __repr__(self) -> str:
        """Its plugins and devices; all that they offer fills pages."""
        names = ", ".join(plugin.name for plugin in self.plugins)
        return f"Registry(plugins: {names}; devices: {', '.join(self.devices)}; {len(self.ops)} ops)"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """The same for IPython and hypothesis, which print the fields of records otherwise."""
        printer.text(repr(self))

    @staticmethod
    def load(extra: Iterable[object] = (), *, without: Collection[str] = ()) -> Registry:
        """The installed plugins but those named by ``without``, and ``extra`` objects or modules with hooks."""
        return load(extra, without=without)

    def offered_by(self, plugin: str) -> Mapping[str, Sequence[Any]]:
        """The records of a plugin by hook, in the order of ``HOOKS``.

        Raises:
            InputError: there is no such plugin.
            PluginError: it was set aside; the message has the reason.
        """
        found = next((p for p in self.plugins if p.name == plugin), None)
        if found is None:
            raise InputError(f"there is no plugin {plugin!r}; there are: {', '.join(p.name for p in self.plugins)}")
        _ = self.samples  # asked for when they are first needed
        problem = found.problem or self.hooks.problems.get(plugin)
        if problem:
            raise PluginError(f"plugin {plugin} was set aside: {problem}")
        given = self.hooks.given.get(plugin, {})
        return {hook: given[hook] for hook in HOOKS if given.get(hook)}

    @property
    def samples(self) -> tuple[Any, ...]:
        """Samples that plugins brought for their own ops; asked for only here."""
        return tuple(sample for _, sample in self.hooks.later("dataflow_samples", object))

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
        """Ids of the available devices that have it, and that are used without being named: this project's.

        Where its own plugin was left out or set aside, the one reference may be another's.
        """
        found = [key for key, device in self.devices.items() if device.role == role and not device.unavailable]
        return found if role == "reference" else [key for key in found if key in self.own]

    @property
    def reference(self) -> str | None:
        """Id of the device that has every op; None where its plugin was set aside."""
        return next(iter(self.of_role("reference")), None)

    @property
    def reference_kernels(self) -> Mapping[str, tuple[Kernel, ...]]:
        """Kernels of the reference, by op."""
        return {} if self.reference is None else self.kernels[self.reference]


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


def load(extra: Iterable[object] = (), *, without: Collection[str] = ()) -> Registry:
    """A registry of the installed plugins and of ``extra`` plugin objects.

    A plugin that can't be imported or registered, whose hooks fail or give records of another type, that offers a name
    which an earlier one has, or that leaves an op without code, is set aside with its first reason and with all that it
    offered, and stops nobody else. This project's plugins are the earliest.

    Args:
        extra: objects or modules with hooks.
        without: names of installed plugins to leave out.
    """
    hooks, plugins = Hooks(), []
    objects = [Candidate(Plugin(_name(plugin), "", ""), functools.partial(_itself, plugin)) for plugin in extra]
    for candidate in named_apart([*installed(without), *objects]):
        plugins.append(candidate.plugin)
        if candidate.plugin.problem is None:
            hooks.register(candidate.plugin, candidate.load)
    offers = Offers(hooks)
    devices = offers.by_key("dataflow_devices")
    ours = {plugin.name for plugin in plugins if plugin.own}
    return Registry(
        tuple(dataclasses.replace(p, problem=p.problem or hooks.problems.get(p.name)) for p in plugins),
        MappingProxyType({op.name: op for op in own.ALL} | offers.by_key("dataflow_ops")),
        MappingProxyType(devices),
        MappingProxyType({key: offers.kernels(key) for key in devices}),
        MappingProxyType(offers.by_key("dataflow_formats")),
        offers.passes(),
        MappingProxyType({kind: MappingProxyType(offers.by_key(hook)) for kind, hook in NAMED.items()}),
        tuple(offers.by_key("onnx_converters").values()),
        MappingProxyType(offers.by_key("onnx_exporters")),
        frozenset(key for key, plugin in offers.owners("dataflow_devices").items() if plugin in ours),
        hooks,
    )


def _name(plugin: object) -> str:
    return str(getattr(plugin, "__name__", repr(plugin)))


def _itself(plugin: object) -> object:
    return plugin
