"""Every hook a plugin can implement. Each returns data, is called once, and never while running.

A plugin is a module named by an entry point of the group ``dataflow``. It implements hooks as plain functions
decorated with ``dataflow.plugin.hookspecs.hookimpl``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pluggy

from ..ir.op import Op
from .device import Device, Kernel

hookspec = pluggy.HookspecMarker("dataflow")
hookimpl = pluggy.HookimplMarker("dataflow")


class Load(Protocol):
    """Reads a model file."""

    def __call__(self, path: str, **options: Any) -> Any:
        """The model; raises ModelError."""


class Save(Protocol):
    """Writes a model file."""

    def __call__(self, model: Any, path: str, **options: Any) -> None:
        """Writes the whole file or nothing."""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: how models with a suffix are read and written. Either may be None."""

    suffix: str
    load: Load | None
    save: Save | None


@hookspec
def dataflow_ops() -> Iterable[Op]:  # type: ignore[empty-body]
    """Op declarations. Names are unique; each has a numpy kernel or a decomposition."""


@hookspec
def dataflow_devices() -> Iterable[Device]:  # type: ignore[empty-body]
    """Devices. Cheap: opens nothing and never raises; says why one is unavailable."""


@hookspec
def dataflow_kernels(device: Device) -> Iterable[Kernel]:  # type: ignore[empty-body]
    """More kernels for a device, beside its own: for devices of other plugins; nothing for those it doesn't know."""


@hookspec
def dataflow_formats() -> Iterable[Format]:  # type: ignore[empty-body]
    """Model file formats, by suffix. Suffixes are unique."""


@hookspec
def dataflow_samples() -> Iterable[Any]:  # type: ignore[empty-body]
    """Samples (dataflow.testing.Sample) of the ops that this plugin declares, for the conformance kit."""


HOOKS: Mapping[str, Any] = {
    "dataflow_ops": dataflow_ops,
    "dataflow_devices": dataflow_devices,
    "dataflow_kernels": dataflow_kernels,
    "dataflow_formats": dataflow_formats,
    "dataflow_samples": dataflow_samples,
}
