"""Converters of ONNX's own operators, one file per family, with the words of ``dataflow.ops``, and of onnxruntime's."""

from __future__ import annotations

from ..converters import Table
from . import (
    activation,
    arithmetic,
    attention,
    cast,
    constant,
    control_flow,
    conv,
    dynamic_shape,
    einsum,
    gather,
    linalg,
    logic,
    loss,
    microsoft,
    norm,
    pool,
    quantized,
    random,
    recurrent,
    reduce,
    resize,
    scatter,
    shape,
    softmax,
    sort,
    strings,
)

_FAMILIES = (
    activation,
    arithmetic,
    attention,
    cast,
    constant,
    control_flow,
    conv,
    dynamic_shape,
    einsum,
    gather,
    linalg,
    logic,
    loss,
    norm,
    pool,
    quantized,
    random,
    recurrent,
    reduce,
    resize,
    scatter,
    shape,
    softmax,
    sort,
    strings,
)
_COLLECTORS = (*(family.operator for family in _FAMILIES), *microsoft.COLLECTORS)
STANDARD = Table(converter for collector in _COLLECTORS for converter in collector.converters)
