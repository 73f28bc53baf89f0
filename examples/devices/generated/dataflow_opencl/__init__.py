"""The device ``opencl``: segments as kernels of OpenCL."""

from collections.abc import Iterable
from pathlib import Path

from dataflow.plugin import Device, devices_of, hookimpl


def library() -> Path:
    """The library; raises FileNotFoundError where it wasn't built."""
    found = sorted(Path(__file__).parent.glob("_native*.so"))
    if not found:
        raise FileNotFoundError("dataflow_opencl/_native is not built: install the project as its README.md says")
    return found[0]


@hookimpl
def dataflow_devices() -> Iterable[Device]:
    """The device of the library."""
    return devices_of(library())
