"""CDevice: a device in a shared library, found through df_plugin_entry, and the kernels that it offers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._runtime import ffi, lib
from ..errors import DeviceError, InputError, PluginError
from ..ir.graph import Node
from ..ir.kernel import HOST, Kernel, parse_operands
from ..ir.operand import Operand
from ..ir.types import TensorType, contiguous_strides
from ..plugin.device import Precision, Role
from .abi import CData, Tables, member, text_of
from .backend import CBackend
from .log import log_to_python


def devices_of(path: str | Path, role: Role = "accelerator") -> list[CDevice]:
    """The devices that a plugin library offers, each with this role.

    Raises:
        PluginError: the library can't be opened or is built for another contract.
    """
    plugin = _opened(path)
    return [CDevice(path, index, plugin, role) for index in range(plugin.n_devices)]


def kernels_of(path: str | Path) -> list[Kernel]:
    """The kernels for devices of other plugins that a library offers; for the hook ``dataflow_kernels``.

    Raises:
        PluginError: the library can't be opened or is built for another contract.
    """
    plugin = _opened(path)
    return [_kernel(plugin.kernels[i]) for i in range(plugin.n_kernels)] if member(plugin, "kernels") else []


def _opened(path: str | Path) -> CData:
    log_to_python()
    error = ffi.new("df_error *")
    plugin = lib.df_library_open(str(path).encode(), error)
    if plugin == ffi.NULL:
        raise PluginError(f"{Path(path).name}: {ffi.string(error.text).decode(errors='replace')}")
    return plugin


class CDevice:
    """A device behind the C contract.

    Attributes: see ``dataflow.plugin.device.Device``, and
        names_failures: what fails is known by its node when it is waited for.
    """

    def __init__(
        self, path: str | Path, index: int = 0, plugin: CData | None = None, role: Role = "accelerator"
    ) -> None:
        if plugin is None:
            devices = devices_of(path)
            if index >= len(devices):
                raise PluginError(f"{Path(path).name} has {len(devices)} devices, not one with index {index}")
            plugin = devices[index]._plugin
        self._plugin: CData = plugin
        self._device = plugin.devices[index]
        self.name = text_of(self._device.name)
        self.version = text_of(plugin.version)
        self.ordinal = int(self._device.ordinal)
        self.alignment = int(self._device.alignment) or 64
        self.asynchronous = bool(self._device.flags & lib.DF_ASYNCHRONOUS)
        self.bodies = bool(self._device.flags & lib.DF_BODIES)
        self.nested_bodies = bool(self._device.flags & lib.DF_NESTED_BODIES)
        self.peers = self.name if self._device.flags & lib.DF_PEERS else None
        self.prepacks = bool(self._device.flags & lib.DF_HOST_PREPACKS)
        self.names_failures = not self.asynchronous or self._member("failed") is not None
        host = bool(self._device.flags & lib.DF_MEMORY_HOST)
        self.memory = HOST if host else f"{self.name}:{self.ordinal}"
        self.role: Role = role
        self.unavailable = text_of(self._device.unavailable) or None

    def kernels(self) -> list[Kernel]:
        """A record for each of the library's kernels."""
        return [_kernel(self._device.kernels[i]) for i in range(self._device.n_kernels)]

    def misfit(self, kernel: Kernel) -> str | None:
        """Why the device can't run a kernel that somebody offers for it, or None."""
        known = hasattr(kernel.code, "run")  # a function of Python has none
        return None if known else f"is {kernel.code!r}; those for a device in C are records of C, from kernels_of"

    def open(self, options: Mapping[str, Any], precision: Precision = "float32") -> CBackend:
        """The open device.

        Raises:
            DeviceError: it is unavailable.
            InputError: an option that it doesn't have, or a value that is no whole number.
        """
        if self.unavailable:
            raise DeviceError(f"device {self.name!r} is unavailable: {self.unavailable}")
        names = text_of(self._member("options")).split(",") if self._member("options") else []
        for name, value in options.items():
            if name not in names:
                has = f"it has {', '.join(names)}" if names else "it has none"
                raise InputError(f"device {self.name!r} has no option {name!r}; {has}")
            if not isinstance(value, (int, np.integer)):
                raise InputError(f"device {self.name!r}, option {name!r}: expected a whole number, got {value!r}")
        values = ffi.new("int64_t[]", [int(options.get(name, _NOT_GIVEN)) for name in names] or 1)
        return CBackend(self._device, self.name, values, precision)

    def _member(self, name: str) -> Any:
        return member(self._device, name)


_PAIR = re.compile(r"(\d+)<(\d+)")
_NOT_GIVEN = -(2**63)
_MOST_ANSWERS = 1024  # that are remembered, per kernel
_UNKNOWN = "unknown"


class _Accepts:
    """Why a kernel of a library can't take a node, or None; remembers answers, for the same node is asked about often.

    An answer depends on types and attributes alone.
    """

    def __init__(self, record: CData) -> None:
        self._record = record
        self._known: dict[Any, str | None] = {}

    def __call__(self, node: Node) -> str | None:
        types = [None if v is None else v.type for v in (*node.inputs, *node.outputs)]
        kinds = tuple((type(a), a) for a in node.attributes.values())
        key = (len(node.inputs), tuple(None if t is None else (t.dtype.code, t.shape) for t in types), kinds)
        answer = self._known.get(key, _UNKNOWN)
        if answer == _UNKNOWN:
            if len(self._known) >= _MOST_ANSWERS:
                self._known.clear()
            answer = self._known[key] = self._ask(node, types)
        return answer

    def _ask(self, node: Node, types: Sequence[TensorType | None]) -> str | None:
        into = ffi.new("df_node *")
        tables = Tables()
        values = [None if t is None else Operand(-1, 0, t, contiguous_strides(t.sizes), 0) for t in types]
        count = len(node.inputs)
        _, operands = tables.operands(values)
        tables.node(into, operands, count, len(values) - count, node.attributes, 1)
        return text_of(lib.df_accepts(self._record, into)) or None


def _kernel(record: CData) -> Kernel:
    name, overwritten = text_of(record.name), text_of(record.inplace)
    try:
        inputs, outputs = parse_operands(text_of(record.operands))
    except PluginError as error:
        raise PluginError(f"kernel {name!r}: {error}") from None
    pairs = [_PAIR.fullmatch(pair) for pair in overwritten.replace(" ", "").split(",") if pair]
    if None in pairs:
        raise PluginError(f"kernel {name!r}: inplace is {overwritten!r}; expected pairs such as '0<0,0<1'")
    return Kernel(
        op=text_of(record.op),
        name=name,
        inputs=inputs,
        outputs=outputs,
        code=record,
        inplace=tuple((int(pair[1]), int(pair[2])) for pair in pairs if pair is not None),
        priority=int(record.priority),
        accepts=_Accepts(record) if record.accepts != ffi.NULL else None,
        capturable=bool(record.capturable),
    )
