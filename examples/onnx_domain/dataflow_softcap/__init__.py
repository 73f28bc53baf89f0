"""The ONNX operator ``Softcap`` of the domain ``org.example``: y = cap tanh(x / cap)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dataflow import Value, ops
from dataflow.plugin import Converter, hookimpl


def softcap(importer: Any, x: Any, *, cap: float = 1.0) -> Value:
    """Builds the operator from ops, which have gradients and run on every device.

    Args:
        importer: gives the value of an operand; see dataflow_onnx.importer for all that it does.
        x: the operand.
        cap: the attribute; its annotation says what kind a file must give.
    """
    value = importer.value(x)
    return ops.mul(ops.tanh(ops.div(value, cap)), cap)


@hookimpl
def onnx_converters() -> Iterable[Converter]:
    """The operator since version 1 of its domain."""
    return [Converter("org.example", "Softcap", 1, softcap)]
