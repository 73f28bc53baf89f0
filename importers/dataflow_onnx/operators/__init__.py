"""Converters of ONNX's own operators, one file per family, with the words of ``dataflow.ops``."""

from __future__ import annotations

from ..converters import Table
from . import (
    arithmetic,
    attention,
    control_flow,
    derived,
    dynamic_shape,
    einsum,
    gather,
    layers,
    norm,
    quantized,
    recurrent,
    resize,
    shape,
)

_FAMILIES = (
    arithmetic,
    attention,
    control_flow,
    derived,
    dynamic_shape,
    einsum,
    gather,
    layers,
    norm,
    quantized,
    recurrent,
    resize,
    shape,
)
STANDARD = Table(converter for family in _FAMILIES for converter in family.operator.converters)
