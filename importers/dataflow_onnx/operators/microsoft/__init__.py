"""Converters of onnxruntime's own operators, which its optimizers and quantizers write: compositions of ops.

One file per family, with the words of ``dataflow.ops``.
"""

from __future__ import annotations

from ...converters import Collector
from . import (
    activation,
    arithmetic,
    attention,
    block_quantized,
    blocked,
    conv,
    dynamic_shape,
    gather,
    generation,
    grid_sample,
    grouped_query,
    hashing,
    hyper_connections,
    linalg,
    linear_attention,
    mixture,
    norm,
    pool,
    position,
    quantized,
    quantized_products,
    random,
    recurrent,
    shape,
    softmax,
    strings,
)

_FAMILIES = (
    activation,
    arithmetic,
    attention,
    block_quantized,
    blocked,
    conv,
    dynamic_shape,
    gather,
    generation,
    grid_sample,
    grouped_query,
    hashing,
    hyper_connections,
    linalg,
    linear_attention,
    mixture,
    norm,
    pool,
    position,
    quantized,
    quantized_products,
    random,
    recurrent,
    shape,
    softmax,
    strings,
)
COLLECTORS: tuple[Collector, ...] = (
    *(family.operator for family in _FAMILIES),
    activation.unversioned,
    arithmetic.unversioned,
    norm.unversioned,
    shape.unversioned,
)
"""Of the domain com.microsoft, and of what onnxruntime adds to ONNX's own domain."""
