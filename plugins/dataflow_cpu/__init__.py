"""The device ``cpu``: C kernels on the native runtime, for the instruction set of the processor."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dataflow.plugin import Device, devices_of, hookimpl

LIBRARY = Path(__file__).parent / "_cpu.so"


@hookimpl
def dataflow_devices() -> Iterable[Device]:
    """The device ``cpu``."""
    found: list[Device] = [*devices_of(LIBRARY, role="host")]
    return found
