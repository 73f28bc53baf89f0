"""Converters of softmax with a bias."""

from __future__ import annotations

from typing import Any

from dataflow import ops

from ...converters import Collector
from ...importer import Importer
from ...shape_eval import axis_in
from ...tensor import Tensor
from ..shape import reshaped

T = Tensor
operator = Collector("com.microsoft")


@operator("BiasSoftmax")
def BiasSoftmax(c: Importer, x: T, bias: T, *, is_inner_broadcast: int, axis: int = 1) -> Any:
    """The bias broadcasts; ``is_inner_broadcast`` says along which axes, which its shape says too."""
    scores = ops.add(c.value(x), c.value(bias))
    shape = scores.type.shape
    at = axis_in(axis, len(shape))
    if at == len(shape) - 1:
        return ops.softmax(scores, axis=at)
    return ops.reshape(ops.softmax(reshaped(scores, [*shape[:at], -1]), axis=-1), shape=shape)
