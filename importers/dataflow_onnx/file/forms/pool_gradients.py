"""Gradients of pools in ops that have an ONNX operator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import Value, int64, ops
from dataflow.errors import ModelError

from ...emit import cast_to, full
from ...shape_eval import product
from .writer import numbers


def max_pool_grad(dy: Value, indices: Value, *, input_shape: Sequence[Any]) -> Any:
    """Each dy added where its maximum was."""
    assert dy.builder is not None
    outer = tuple(input_shape[:2])
    zeros = full(dy.builder, (*outer, product(input_shape[2:])), 0.0, dy.type.dtype)
    count = product(dy.type.shape[2:])
    at = ops.reshape(cast_to(indices, int64), shape=(*outer, count))
    found = ops.scatter_elements(zeros, at, ops.reshape(dy, shape=(*outer, count)), axis=2, reduction="add")
    return ops.reshape(found, shape=tuple(input_shape))


def avg_pool_grad(
    dy: Value,
    *,
    input_shape: Sequence[Any],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
) -> Any:
    """Each dy over the number of its window's elements, put back as a transposed convolution by ones does."""
    builder, dtype = dy.builder, dy.type.dtype
    assert builder is not None
    if ceil_mode:
        raise ModelError("the gradient of a pool with ceil_mode has no ONNX form")
    (channels,) = numbers(input_shape[1:2], "channels")
    window: Any = {"strides": tuple(strides), "pads": tuple(pads), "dilations": tuple(dilations)}
    if count_include_pad or not any(pads):
        share = ops.mul(dy, 1.0 / math.prod(kernel))
    else:  # as many as a convolution by ones counts
        plane = full(builder, (1, 1, *input_shape[2:]), 1.0, dtype)
        count = ops.conv(plane, builder.constant(np.ones((1, 1, *kernel), dtype.numpy)), **window)
        share = ops.div(dy, ops.maximum(count, 1.0))
    weight = builder.constant(np.ones((channels, 1, *kernel), dtype.numpy))
    return ops.conv_grad_input(share, weight, input_shape=tuple(input_shape), **window, groups=channels)
