"""The device ``exact``: sums and products of float32 in double precision, to find out whether rounding matters.

It stands before another device, which runs the rest: ``df.Session(model, ["exact", "cpu"])``. As every device of a
plugin it is used where it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dataflow import float32
from dataflow.plugin import Array, Device, Kernel, OperandSpec, PythonDevice, Role, hookimpl

FLOATS = OperandSpec(frozenset({float32}), strided=True)


def _reduced(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(attributes: Mapping[str, Any], x: Array) -> Array:
        axes = tuple(attributes["axes"]) or None
        result: Array = function(x.astype(np.float64), axis=axes, keepdims=bool(attributes["keepdims"]))
        return result.astype(np.float32)

    return run


def _matmul(attributes: Mapping[str, Any], a: Array, b: Array) -> Array:
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.float32)


def _copy(attributes: Mapping[str, Any], x: Array) -> Array:
    return x


# One function per op. A kernel takes a node where its specs fit the operands.
KERNELS: dict[str, tuple[Callable[..., Array], int]] = {
    "copy": (_copy, 1),
    "matmul": (_matmul, 2),
    "reduce_mean": (_reduced(np.mean), 1),
    "reduce_sum": (_reduced(np.sum), 1),
}


class Exact(PythonDevice):
    """Works on the host's memory, as every PythonDevice does."""

    name = "exact"
    role: Role = "host"

    def kernels(self) -> Sequence[Kernel]:
        """One per function."""
        return [
            Kernel(op, f"exact {op}", (FLOATS,) * operands, (FLOATS,), code) for op, (code, operands) in KERNELS.items()
        ]


@hookimpl
def dataflow_devices() -> Iterable[Device]:
    """The device."""
    return [Exact()]
