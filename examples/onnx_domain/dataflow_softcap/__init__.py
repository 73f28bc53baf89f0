"""The op ``softcap``, y = cap tanh(x / cap): the operator ``Softcap`` of the domain ``org.example`` in ONNX files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dataflow import Value, ops
from dataflow.plugin import Converter, Exporter, Op, hookimpl
from dataflow.testing import Operand, Sample

softcap = Op(
    "softcap",
    inputs=("x",),
    infer=lambda x, cap: x,
    attributes={"cap": 1.0},
    decompose=lambda x, cap: ops.mul(ops.tanh(ops.div(x, cap)), cap),
    doc="y = cap tanh(x / cap), elementwise.",
)
"""An op so that it can be written again; what is only read can be built from ops of dataflow."""


def convert(importer: Any, x: Any, *, cap: float = 1.0) -> Value:
    """Builds the op from the operator.

    Args:
        importer: gives the value of an operand; see dataflow_onnx.importer for all that it does.
        x: the operand.
        cap: the attribute; its annotation says what kind a file must give.
    """
    return softcap(importer.value(x), cap=cap)


@hookimpl
def dataflow_ops() -> Iterable[Op]:
    """The op, which runs as its decomposition on every device."""
    return [softcap]


@hookimpl
def dataflow_samples() -> Iterable[Sample]:
    """What the conformance kit runs."""
    return [Sample(softcap, (Operand((3, 5)),), {"cap": 2.5}, gradient=(0,))]


@hookimpl
def onnx_converters() -> Iterable[Converter]:
    """The operator since version 1 of its domain."""
    return [Converter("org.example", "Softcap", 1, convert)]


@hookimpl
def onnx_exporters() -> Iterable[Exporter]:
    """What the op is written as; its attributes are the operator's."""
    return [Exporter("softcap", "org.example", "Softcap")]
