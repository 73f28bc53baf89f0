"""Every hook a plugin can implement. Each returns data, is called once, and never while running.

A plugin is a module named by an entry point of the group ``dataflow``. It implements hooks as plain functions
decorated with ``dataflow.plugin.hookspecs.hookimpl``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pluggy

from ..ir.graph import Node
from ..ir.kernel import Kernel
from ..ir.op import AnyOp
from ..passes.pipeline import Pass
from .device import Device

hookspec = pluggy.HookspecMarker("dataflow")
hookimpl = pluggy.HookimplMarker("dataflow")


@dataclass(frozen=True, slots=True)
class Converter:
    """How a file format's importer turns an operator into nodes of a graph.

    Attributes:
        domain: of the operator; ``""`` is the format's own.
        operator: its name in files.
        since: the version of the domain from which on it holds, until the next higher ``since``.
        function: ``function(importer, *operands, **attributes)`` gives a result per output; what an importer offers
            and takes is said by the format.

    Raises:
        ValueError: the domain is no text, the operator has no name, the version isn't one, or the function is none.
    """

    domain: str
    operator: str
    since: int
    function: Callable[..., Any]

    def __post_init__(self) -> None:
        if not isinstance(self.domain, str):
            raise ValueError(f"converter of {self.operator!r}: expected a domain, '' or text, got {self.domain!r}")
        if not isinstance(self.operator, str) or not self.operator:
            raise ValueError(f"converter: expected the name of an operator, got {self.operator!r}")
        if not isinstance(self.since, int) or self.since < 1:
            raise ValueError(f"converter of {self.operator!r}: expected since of 1 or more, got {self.since!r}")
        if not callable(self.function):
            raise ValueError(f"converter of {self.operator!r}: expected a function, got {self.function!r}")


@dataclass(frozen=True, slots=True)
class Exporter:
    """How a node of a plugin's op is written to files: as one operator with the same operands and results.

    Attributes:
        op: name of the op.
        domain: of the operator; ``""`` is the format's own.
        operator: its name in files.
        version: of the domain that the operator is written for.
        attributes: gives the operator's attributes of a node; None: they are the op's own but for those that are None.

    Raises:
        ValueError: the operator has no name, or the version isn't one.
    """

    op: str
    domain: str
    operator: str
    version: int = 1
    attributes: Callable[[Node], Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.op, str) or not isinstance(self.domain, str):
            raise ValueError(f"exporter: expected the name of an op and a domain, got {self.op!r} and {self.domain!r}")
        if self.attributes is not None and not callable(self.attributes):
            raise ValueError(f"op {self.op!r}: expected a function as attributes, got {self.attributes!r}")
        if not isinstance(self.operator, str) or not self.operator:
            raise ValueError(f"op {self.op!r}: expected the name of an operator, got {self.operator!r}")
        if not isinstance(self.version, int) or self.version < 1:
            raise ValueError(f"op {self.op!r}: expected a version of 1 or more, got {self.version!r}")


class Load(Protocol):
    """Reads a model file."""

    def __call__(self, path: str, **options: Any) -> Any:
        """The model; raises ModelError."""


class Save(Protocol):
    """Writes a model file."""

    def __call__(self, model: Any, path: str, **options: Any) -> None:
        """Writes the file; a format that replaces files itself gets ``overwrite``, see ``Format``."""


@dataclass(frozen=True, slots=True)
class Format:
    """A file format: how models with a suffix are read and written.

    Attributes:
        suffix: of its files in lower case, e.g. ``".onnx"``; files may have it in capitals.
        load: None where models are only written.
        save: None where models are only read.
        converts: ``load`` also gets ``converters=``, the sequence of Converters that plugins offer.
        exports: ``save`` also gets ``exporters=``, the Exporters that plugins offer by name of the op.
        replaces: ``save`` gets ``overwrite=``, and its files appear complete or not at all, e.g. where several are.
            Without it ``save`` writes a file beside the user's, which takes that name when it is complete. See
            ``dataflow.plugin.new_file``.
        refuses: why ``load`` can't use a Converter that a plugin offers, or None; the plugin is set aside.
        plugin: who offers it; filled in when plugins are loaded.

    Raises:
        ValueError: the suffix can't be that of a file, or there is neither ``load`` nor ``save``.
    """

    suffix: str
    load: Load | None
    save: Save | None
    converts: bool = False
    exports: bool = False
    replaces: bool = False
    refuses: Callable[[Converter], str | None] | None = None
    plugin: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.suffix, str) or not re.fullmatch(r"\.[^./\\\sA-Z]+", self.suffix):
            raise ValueError(f"suffix of a format: expected lower case with one dot, as '.onnx', got {self.suffix!r}")
        if self.load is None and self.save is None:
            raise ValueError(f"format {self.suffix!r}: expected load, save or both, got neither")
        for name, function in (("load", self.load), ("save", self.save), ("refuses", self.refuses)):
            if function is not None and not callable(function):
                raise ValueError(f"format {self.suffix!r}: expected a function as {name}, got {function!r}")


@dataclass(frozen=True, slots=True)
class Named:
    """Something that users choose by name when they train, in Python and on the command line.

    Attributes:
        name: as users type it; unique among those of the hook.
        value: what it stands for, or a class of which one is made.
        plugin: who offers it; filled in when plugins are loaded.

    Raises:
        ValueError: users couldn't type the name.
    """

    name: str
    value: Any
    plugin: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[^\s:,=]+", self.name):
            expected = "text without spaces, colons, commas and equals signs, which come before settings"
            raise ValueError(f"the name of what is offered: expected {expected}, got {self.name!r}")


@hookspec
def dataflow_ops() -> Iterable[AnyOp]:  # type: ignore[empty-body]
    """Op declarations. Names are unique; each has a numpy kernel or a decomposition."""


@hookspec
def dataflow_devices() -> Iterable[Device]:  # type: ignore[empty-body]
    """Devices. Cheap: opens nothing and never raises; says why one is unavailable."""


@hookspec
def dataflow_kernels(device: Device) -> Iterable[Kernel]:  # type: ignore[empty-body]
    """More kernels for a device, beside its own: for devices of other plugins; nothing for those it doesn't know."""


@hookspec
def dataflow_passes() -> Iterable[Pass]:  # type: ignore[empty-body]
    """Passes over graphs that run when a plan is made; ``dataflow/passes/pipeline.py`` shows the core's and phases."""


@hookspec
def dataflow_formats() -> Iterable[Format]:  # type: ignore[empty-body]
    """Model file formats, by suffix. Suffixes are unique."""


@hookspec
def dataflow_losses() -> Iterable[Named]:  # type: ignore[empty-body]
    """Losses: dataflow.train.losses.Loss, or functions ``(g, outputs, batch) -> Value``."""


@hookspec
def dataflow_optimizers() -> Iterable[Named]:  # type: ignore[empty-body]
    """Optimizers: dataflow.train.optimizers.Optimizer, or what makes one of ``lr``, ``weight_decay``, ``schedule``."""


@hookspec
def dataflow_metrics() -> Iterable[Named]:  # type: ignore[empty-body]
    """Metrics: dataflow.train.metrics.Metric or Gathered, or functions ``(g, outputs, batch) -> Value``."""


@hookspec
def dataflow_schedules() -> Iterable[Named]:  # type: ignore[empty-body]
    """Schedules: functions from the optimizer steps done to the factor on the learning rate."""


@hookspec
def dataflow_callbacks() -> Iterable[Named]:  # type: ignore[empty-body]
    """Callbacks: functions of a dataflow.train.callbacks.Event."""


@hookspec
def dataflow_samples() -> Iterable[Any]:  # type: ignore[empty-body]
    """Samples (dataflow.testing.Sample) of the ops that this plugin declares, for the conformance kit."""


@hookspec
def onnx_converters() -> Iterable[Converter]:  # type: ignore[empty-body]
    """Converters of ONNX operators that the importer doesn't have, e.g. of a domain of one's own."""


@hookspec
def onnx_exporters() -> Iterable[Exporter]:  # type: ignore[empty-body]
    """What ops of plugins are written as in ONNX files, e.g. operators of a domain of one's own."""


HOOKS: Mapping[str, Any] = {
    "dataflow_ops": dataflow_ops,
    "dataflow_devices": dataflow_devices,
    "dataflow_kernels": dataflow_kernels,
    "dataflow_passes": dataflow_passes,
    "dataflow_formats": dataflow_formats,
    "dataflow_losses": dataflow_losses,
    "dataflow_optimizers": dataflow_optimizers,
    "dataflow_metrics": dataflow_metrics,
    "dataflow_schedules": dataflow_schedules,
    "dataflow_callbacks": dataflow_callbacks,
    "dataflow_samples": dataflow_samples,
    "onnx_converters": onnx_converters,
    "onnx_exporters": onnx_exporters,
}
