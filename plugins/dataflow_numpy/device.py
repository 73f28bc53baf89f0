"""The device ``numpy``: every op in plain NumPy."""

from __future__ import annotations

from collections.abc import Sequence

from dataflow.plugin import Kernel, OperandSpec, PythonDevice, Role

from .kernels import KERNELS

_ANY = OperandSpec(None, strided=True, optional=True, repeated=True, strings=True)


class NumpyDevice(PythonDevice):
    """The reference; a kernel of a loop runs the body itself."""

    name = "numpy"
    role: Role = "reference"

    def kernels(self) -> Sequence[Kernel]:
        """A record per op; each takes everything."""
        return [Kernel(op, f"numpy {op}", (_ANY,), (_ANY,), code) for op, code in KERNELS.items()]
