"""What plugins offer, gathered and compared: a plugin that clashes with an earlier one is set aside whole."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from .. import ops as own
from ..errors import PluginError
from ..ir.kernel import Kernel
from ..ir.op import AnyOp
from ..passes.pipeline import CORE, Pass, arranged
from .device import ROLES, Device
from .hooks import Hooks
from .hookspecs import Converter, Exporter, Format, Named

# Hooks whose records users choose by name, by what they call one.
NAMED = {
    "loss": "dataflow_losses",
    "optimizer": "dataflow_optimizers",
    "metric": "dataflow_metrics",
    "schedule": "dataflow_schedules",
    "callback": "dataflow_callbacks",
}


def device_id(device: Device) -> str:
    """``name`` or ``name:ordinal``."""
    return device.name if device.ordinal == 0 else f"{device.name}:{device.ordinal}"


def _version(converter: Converter) -> str:
    """What it converts, e.g. ``"com.example.Relu6, since 2"``."""
    return f"{converter.domain}.{converter.operator}, since {converter.since}".lstrip(".")


# Hooks whose records are unique: what users call one, its type, and by what it is known.
UNIQUE: Mapping[str, tuple[str, type, Callable[[Any], str]]] = {
    "dataflow_ops": ("op", AnyOp, lambda op: str(op.name)),
    "dataflow_devices": ("device", Device, device_id),
    "dataflow_formats": ("suffix", Format, lambda form: str(form.suffix)),
    "onnx_converters": ("operator", Converter, _version),
    "onnx_exporters": ("operator for the op", Exporter, lambda exporter: str(exporter.op)),
    **{hook: (kind, Named, lambda one: str(one.name)) for kind, hook in NAMED.items()},
}


class Offers:
    """The records of the plugins that aren't set aside.

    Args:
        hooks: the plugins, the earliest first; those that clash are set aside.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._records: dict[str, list[tuple[str, Any]]] = {
            hook: [*hooks.offers(hook, kind)] for hook, (_, kind, _) in UNIQUE.items()
        }
        self._passes: list[tuple[str, Pass]] = [*hooks.offers("dataflow_passes", Pass)]
        self._check_devices()
        self._kernels = [(device, self._ask(name, device)) for name, device in self._live("dataflow_devices")]
        self._contested: dict[str, tuple[str, str]] = {}  # ops that several plugins declare: by name who
        known = -1
        while known != len(hooks.problems):  # one that is set aside may have brought what another needs
            known = len(hooks.problems)
            self._check_unique()
            self._check_converters()
            self._check_contested()
            self._check_passes()
            self._check_reference()
            self._check_definitions()

    def by_key(self, hook: str) -> dict[str, Any]:
        """The records of a hook by what they are known by; named ones and formats say who offers them."""
        _, kind, key = UNIQUE[hook]
        found = self._live(hook)
        if kind in (Named, Format):
            return {key(record): dataclasses.replace(record, plugin=name) for name, record in found}
        return {key(record): record for _, record in found}

    def owners(self, hook: str) -> dict[str, str]:
        """The plugin of each record of a hook."""
        return {UNIQUE[hook][2](record): name for name, record in self._live(hook)}

    def kernels(self, device: str) -> dict[str, tuple[Kernel, ...]]:
        """The kernels of a device by op, highest priority first, of one priority those of the earliest plugin first."""
        chosen = self.by_key("dataflow_devices")[device]
        found: dict[str, list[Kernel]] = {}
        for name, kernel in next(kernels for offered, kernels in self._kernels if offered is chosen):
            if name not in self._hooks.problems:
                found.setdefault(kernel.op, []).append(kernel)
        return {op: tuple(sorted(kernels, key=lambda k: -k.priority)) for op, kernels in found.items()}

    def passes(self) -> tuple[Pass, ...]:
        """The core's passes and those of plugins, in the order in which they run."""
        live = [(name, one) for name, one in self._passes if name not in self._hooks.problems]
        return arranged([dataclasses.replace(one, plugin=name) for name, one in live])

    def _live(self, hook: str) -> Iterator[tuple[str, Any]]:
        return ((name, record) for name, record in self._records[hook] if name not in self._hooks.problems)

    def _ask(self, name: str, device: Device) -> list[tuple[str, Kernel]]:
        """A device's own kernels, offered by the plugin ``name``, and those that other plugins have for it."""
        if device.unavailable:
            return []
        with self._hooks.guarded(name, f"kernels of the device {device.name}"):
            kernels = [(name, kernel) for kernel in device.kernels()]
            wrong = next((type(kernel).__name__ for _, kernel in kernels if not isinstance(kernel, Kernel)), None)
            if wrong is not None:
                raise TypeError(f"expected Kernel records, got {wrong}")
            kernels += self._hooks.offers("dataflow_kernels", Kernel, device=device)
            earlier: dict[Any, str] = {}
            for owner, kernel in kernels:
                self._check_kernel(owner, device, kernel)
                takes = (
                    owner,
                    kernel.op,
                    kernel.priority,
                    *map(tuple, (kernel.inputs, kernel.outputs)),
                    id(kernel.accepts),
                )
                if takes in earlier:
                    both = f"{earlier[takes]!r} and {kernel.name!r} for the device {device.name} take the same nodes"
                    remedy = f"with priority {kernel.priority}; give one of them a higher one"
                    self._hooks.set_aside(owner, f"op {kernel.op!r}: its kernels {both} {remedy}")
                earlier[takes] = kernel.name
            return [(owner, dataclasses.replace(kernel, plugin=owner)) for owner, kernel in kernels]
        return []

    def _check_kernel(self, owner: str, device: Device, kernel: Kernel) -> None:
        """Sets the plugin aside whose kernel a device says that it can't run."""
        misfit = getattr(device, "misfit", None)
        with self._hooks.guarded(owner, f"kernels for the device {device.name}"):
            problem = None if misfit is None else misfit(kernel)
            if problem is not None:
                self._hooks.set_aside(owner, f"its kernel {kernel.name!r} for the device {device.name} {problem}")

    def _check_devices(self) -> None:
        for name, device in self._live("dataflow_devices"):
            with self._hooks.guarded(name, "dataflow_devices"):
                if not isinstance(device.name, str) or not re.fullmatch(r"[\w.+-]+", device.name):
                    raise ValueError(f"a device has the name {device.name!r}; expected a word without colons")
                if not isinstance(device.ordinal, int) or device.ordinal < 0:
                    raise ValueError(f"device {device.name!r} has the ordinal {device.ordinal!r}; expected 0 or more")
                if device.role not in ROLES:
                    there_are = ", ".join(ROLES)
                    raise ValueError(f"device {device.name!r} has the role {device.role!r}; there are: {there_are}")
                _ = bool(device.unavailable)

    def _check_unique(self) -> None:
        """Accepts plugins in their order, each if it offers nothing that an accepted one has."""
        owners = {(hook, op.name): CORE for op in own.ALL for hook in ("dataflow_ops", "onnx_exporters")}
        for name in dict.fromkeys(name for records in self._records.values() for name, _ in records):
            offered: dict[tuple[str, str], str] = {}
            for hook, (kind, _, key) in UNIQUE.items():
                for _, record in (pair for pair in self._live(hook) if pair[0] == name):
                    with self._hooks.guarded(name, hook):
                        known = owners.get((hook, key(record)), offered.get((hook, key(record))))
                        if known is not None:
                            both = f"by {known} and by {name}"
                            if hook == "dataflow_ops" and known not in (CORE, name):
                                self._contested[key(record)] = known, name
                            self._hooks.set_aside(name, f"{kind} {key(record)!r} is offered twice: {both}")
                        offered[hook, key(record)] = name
            if name not in self._hooks.problems:
                owners |= offered

    def _check_converters(self) -> None:
        """Sets the plugin aside whose converter a format says that it can't use."""
        for owner, form in self._live("dataflow_formats"):
            for name, converter in self._live("onnx_converters") if form.refuses is not None else ():
                with self._hooks.guarded(owner, f"refuses of the format {form.suffix!r}"):
                    problem = form.refuses(converter)
                    if problem is not None:
                        self._hooks.set_aside(name, f"{problem}; DATAFLOW_PLUGINS=-{name} leaves the plugin out")

    def _check_contested(self) -> None:
        """Kernels know ops by name: one of a third plugin computes either of two, and nobody knows which."""
        for _, kernels in self._kernels:
            for name, kernel in kernels:
                known, other = self._contested.get(kernel.op, (name, ""))
                if known != name and name not in self._hooks.problems:
                    offered = f"it has a kernel of the op {kernel.op!r}, which {known} and {other} declare"
                    self._hooks.set_aside(name, f"{offered}; leave one of them out, DATAFLOW_PLUGINS=-{known}")

    def _check_passes(self) -> None:
        """Sets the fewest plugins aside without which the passes can be ordered, of these the latest."""
        live = list(dict.fromkeys(name for name, _ in self._passes if name not in self._hooks.problems))
        try:
            self.passes()
        except PluginError as error:
            choices = (left for n in range(1, len(live) + 1) for left in itertools.combinations(reversed(live), n))
            for name in next(filter(self._orderable_without, choices)):
                self._hooks.set_aside(name, str(error))

    def _orderable_without(self, left_out: Collection[str]) -> bool:
        problems = {*self._hooks.problems, *left_out}
        try:
            arranged([dataclasses.replace(one, plugin=name) for name, one in self._passes if name not in problems])
        except PluginError:
            return False
        return True

    def _check_reference(self) -> None:
        """There is one reference at most, and an op has a kernel on it or a decomposition."""
        references = [pair for pair in self._live("dataflow_devices") if self._is_reference(pair[1])]
        for name, device in references[1:]:
            both = f"{device_id(references[0][1])} of {references[0][0]} and {device_id(device)} of {name}"
            self._hooks.set_aside(name, f"there is more than one reference: {both}")
        if not references:
            return
        name, device = references[0]
        known = self.kernels(device_id(device))
        for owner, op in [*((name, op) for op in own.ALL), *self._live("dataflow_ops")]:
            if op.name not in known and op.decompose is None and not op.bodies:
                needs = f"needs a kernel on {device_id(device)} or a decomposition"
                self._hooks.set_aside(owner, f"op {op.name!r} {needs}")

    def _check_definitions(self) -> None:
        """The reference says what an op of this project computes: none but its own plugin has kernels of these."""
        defined = {op.name for op in own.ALL}
        for device, kernels in self._kernels:
            owner = next((name for name, offered in self._live("dataflow_devices") if offered is device), None)
            if owner is None or not self._is_reference(device):
                continue
            for name, kernel in kernels:
                if name != owner and kernel.op in defined and name not in self._hooks.problems:
                    there = f"the reference, {device_id(device)}, which defines what the op computes"
                    self._hooks.set_aside(name, f"it has a kernel of dataflow's op {kernel.op!r} for {there}")

    @staticmethod
    def _is_reference(device: Device) -> bool:
        return device.role == "reference" and not device.unavailable
