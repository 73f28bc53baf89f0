"""Reference of convolution."""

from __future__ import annotations

from typing import Any

import numpy as np

from dataflow.plugin import col2im_elements

from .arrays import Array, Attributes, Code, upcast
from .windows import cropped, padded_input, positions, window_count


def conv(attributes: Attributes, x: Array, w: Array, bias: Array | None = None) -> Array:
    """The convolution: a sum over kernel positions of one product each."""
    groups = attributes["groups"]
    count = window_count(attributes, x.shape[2:], w.shape[2:])
    padded = padded_input(upcast(x), attributes["pads"], [0] * len(count), 0)
    B, O, C = x.shape[0], w.shape[0], w.shape[1]
    out = np.zeros((B, groups, O // groups, *count), padded.dtype)
    weight = upcast(w).reshape(groups, O // groups, *w.shape[1:])
    for position, index in positions(attributes, w.shape[2:], count):
        taken = padded[index].reshape(B, groups, C, *count)
        out += np.einsum("bgc...,goc->bgo...", taken, weight[(..., *position)], optimize=True)
    out = out.reshape(B, O, *count)
    if bias is not None:
        out += upcast(bias).reshape(1, -1, *[1] * len(count))
    return out.astype(x.dtype)


def _conv_grad_input(attributes: Attributes, dy: Array, w: Array) -> Array:
    groups, shape = attributes["groups"], attributes["input_shape"]
    pads, size, count = attributes["pads"], shape[2:], dy.shape[2:]
    spatial = len(size)
    B, O, C = shape[0], w.shape[0], w.shape[1]
    z = upcast(dy)
    padded = np.zeros((B, shape[1], *(n + pads[i] + pads[i + spatial] for i, n in enumerate(size))), z.dtype)
    z = z.reshape(B, groups, O // groups, *count)
    weight = upcast(w).reshape(groups, O // groups, *w.shape[1:])
    for position, index in positions(attributes, w.shape[2:], count):
        term = np.einsum("bgo...,goc->bgc...", z, weight[(..., *position)], optimize=True)
        padded[index] += term.reshape(B, groups * C, *count)
    return cropped(padded, pads, size).astype(dy.dtype)


def _conv_grad_weight(attributes: Attributes, x: Array, dy: Array) -> Array:
    groups, shape = attributes["groups"], attributes["weight_shape"]
    count = dy.shape[2:]
    padded = padded_input(upcast(x), attributes["pads"], [0] * len(count), 0)
    B, O, C = x.shape[0], shape[0], shape[1]
    size = int(np.prod(count))
    z = upcast(dy).reshape(B, groups, O // groups, size)
    dw = np.zeros((groups, O // groups, *shape[1:]), padded.dtype)
    for position, index in positions(attributes, shape[2:], count):
        taken = padded[index].reshape(B, groups, C, size)
        dw[(..., *position)] = np.einsum("bgcn,bgon->goc", taken, z, optimize=True)
    return dw.reshape(shape).astype(x.dtype)


def _col2im(attributes: Attributes, x: Array) -> Array:
    window = {key: attributes[key] for key in ("kernel", "strides", "pads", "dilations")}
    elements = col2im_elements(attributes["image"], **window)
    total = int(np.prod(attributes["image"]))
    rows = upcast(x).reshape(x.shape[0] * (x.shape[1] // len(elements)), elements.size)
    out = np.zeros((len(rows), total + 1), rows.dtype)
    np.add.at(out, (np.arange(len(rows))[:, None], elements.reshape(1, -1)), rows)
    return out[:, :total].reshape(x.shape[0], x.shape[1] // len(elements), *attributes["image"]).astype(x.dtype)


def _planar(x: Array) -> Array:
    return np.moveaxis(x, -1, 1)


def _conv_last(
    attributes: Attributes, x: Array, w: Array, bias: Array | None = None, addend: Array | None = None
) -> Array:
    y = np.moveaxis(conv(attributes, _planar(x), _planar(w), bias), 1, -1)
    y = y if addend is None else y + addend
    return np.maximum(y, 0) if attributes["relu"] else y


def _with_first(attributes: Attributes, shape: str) -> dict[str, Any]:
    batch, *sizes, channels = attributes[shape]
    return {**attributes, shape: (batch, channels, *sizes)}


def _conv_last_grad_input(attributes: Attributes, dy: Array, w: Array) -> Array:
    return np.moveaxis(_conv_grad_input(_with_first(attributes, "input_shape"), _planar(dy), _planar(w)), 1, -1)


def _conv_last_grad_weight(attributes: Attributes, x: Array, dy: Array) -> Array:
    return np.moveaxis(_conv_grad_weight(_with_first(attributes, "weight_shape"), _planar(x), _planar(dy)), 1, -1)


KERNELS: dict[str, Code] = {
    "conv": conv,
    "conv_grad_input": _conv_grad_input,
    "conv_grad_weight": _conv_grad_weight,
    "col2im": _col2im,
    "conv_last": _conv_last,
    "conv_last_grad_input": _conv_last_grad_input,
    "conv_last_grad_weight": _conv_last_grad_weight,
}
