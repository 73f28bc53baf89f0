"""The devices ``cuda``, ``cuda:1``, ...: NVIDIA cards, through a library that nvcc builds."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dataflow.cdevice import devices_of
from dataflow.device import Device, Unavailable
from dataflow.hookspecs import hookimpl

LIBRARY = Path(__file__).parent / "_cuda.so"
NOT_BUILT = (
    "its library was not built, since nvcc was not found when dataflow was installed; "
    "install the CUDA toolkit, then dataflow again from source"
)


@hookimpl
def dataflow_devices() -> Iterable[Device]:
    """A device per card; one that says why, when there is none. DATAFLOW_CUDA_LIBRARY names another library."""
    library = Path(os.environ.get("DATAFLOW_CUDA_LIBRARY") or LIBRARY)
    if not library.exists():
        return [Unavailable("cuda", NOT_BUILT)]
    found: list[Device] = [*devices_of(library)]
    return found
