"""The reference device: every op in plain NumPy. Oracle of the conformance kit, fallback of last resort."""

from __future__ import annotations

from collections.abc import Iterable

from dataflow.plugin import Device, hookimpl

from .device import NumpyDevice


@hookimpl
def dataflow_devices() -> Iterable[Device]:
    """The device ``numpy``."""
    return [NumpyDevice()]
