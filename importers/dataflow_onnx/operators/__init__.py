"""Converters of ONNX's own operators, one file per family, with the words of ``dataflow.ops``."""

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
)
STANDARD = Table(converter for family in _FAMILIES for converter in family.operator.converters)
