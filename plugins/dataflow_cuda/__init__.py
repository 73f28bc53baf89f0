"""The devices ``cuda``, ``cuda:1``, ...: NVIDIA cards, through a library that nvcc builds."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path

from dataflow.plugin import Device, Unavailable, devices_of, hookimpl

LIBRARY = Path(__file__).parent / "_cuda.so"
NOT_BUILT = (
    "its library was not built, since nvcc was not found when dataflow was installed; "
    "install the CUDA toolkit, then dataflow again from source"
)
# The vendor's libraries in packages of the extra ``cuda``, by the variable that the plugin's library reads.
VENDOR = {
    "DATAFLOW_CUBLASLT": ("cu13/lib/libcublasLt.so.13", "cublas/lib/libcublasLt.so.13"),
    "DATAFLOW_CUDNN": ("cudnn/lib/libcudnn.so.9",),
}


@hookimpl
def dataflow_devices() -> Iterable[Device]:
    """A device per card; one that says why, when there is none. DATAFLOW_CUDA_LIBRARY names another library."""
    library = Path(os.environ.get("DATAFLOW_CUDA_LIBRARY") or LIBRARY)
    if not library.exists():
        return [Unavailable("cuda", NOT_BUILT)]
    for variable, paths in VENDOR.items():
        found = None if variable in os.environ else _packaged(paths)
        if found is not None:
            os.environ[variable] = str(found)
    devices: list[Device] = [*devices_of(library)]
    return devices


def _packaged(paths: Iterable[str]) -> Path | None:
    """The first of these files that an installed package of NVIDIA's has."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    found = (Path(folder, path) for path in paths for folder in folders)
    return next((path for path in found if path.exists()), None)
