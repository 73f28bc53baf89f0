"""Ops without an ONNX operator as ops that have one: losses, gradients, and what only some nodes need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dataflow import Dim, Node, Value, int64, ops
from dataflow.errors import ModelError

from ...emit import along, cast_to, full, slice_axis
from .pool_gradients import avg_pool_grad, max_pool_grad

Smaller = Callable[..., Any]
"""``smaller(*inputs, **attributes)``: the results of an op, the extra ones too where they are read, in smaller ops."""


def _full_like(x: Value, number: float) -> Any:
    assert x.builder is not None
    return full(x.builder, x.type.shape, number, x.type.dtype)


# ---- normalization ------------------------------------------------------------------------------------


def layer_norm(
    x: Value, scale: Value | None = None, bias: Value | None = None, *, axis: int, epsilon: float, center: bool
) -> tuple[Value, Value, Value]:
    """With mean and deviation, or without the mean taken off."""
    at = axis % x.type.rank
    axes = tuple(range(at, x.type.rank))
    mean = ops.reduce_mean(x, axes=axes, keepdims=True)
    moved = ops.sub(x, mean) if center else x
    variance = ops.reduce_mean(ops.mul(moved, moved), axes=axes, keepdims=True)
    inverse = ops.reciprocal(ops.sqrt(ops.add(variance, epsilon)))
    y = ops.mul(moved, inverse)
    y = y if scale is None else ops.mul(y, scale)
    y = y if bias is None else ops.add(y, bias)
    rows = x.type.shape[:at]
    mean = mean if center else _full_like(mean, 0.0)
    return y, ops.reshape(mean, shape=rows), ops.reshape(inverse, shape=rows)


def batch_norm_train(
    x: Value, scale: Value, bias: Value, running: Value, variance: Value, *known: Value, epsilon: float, momentum: float
) -> tuple[Value, ...]:
    """With the statistics, or of known ones."""
    rank, axes = x.type.rank, (0, *range(2, x.type.rank))
    mean = ops.reduce_mean(x, axes=axes, keepdims=False)
    moved = ops.sub(x, along(mean, 1, rank))
    batch_variance = ops.reduce_mean(ops.mul(moved, moved), axes=axes, keepdims=False)
    inverse = ops.reciprocal(ops.sqrt(ops.add(batch_variance, epsilon)))
    if known and known[0] is not None:  # as they were computed of the same x
        mean, inverse = known
        batch_variance = ops.sub(ops.reciprocal(ops.mul(inverse, inverse)), epsilon)
        moved = ops.sub(x, along(mean, 1, rank))
    y = ops.add(ops.mul(moved, along(ops.mul(scale, inverse), 1, rank)), along(bias, 1, rank))

    def followed(old: Value, new: Value) -> Any:
        return ops.add(ops.mul(old, momentum), ops.mul(new, 1.0 - momentum))

    return y, followed(running, mean), followed(variance, batch_variance), mean, inverse


def lrn(x: Value, *, size: int, alpha: float, beta: float, bias: float) -> tuple[Value, Value]:
    """With its scale, which its gradient reads."""
    rank, before = x.type.rank, (size - 1) // 2
    pads = [0] * (2 * rank)
    pads[1], pads[rank + 1] = before, size - 1 - before
    squares = ops.pad(ops.mul(x, x), 0.0, pads=tuple(pads), mode="constant")
    channels = x.type.shape[1]
    total = slice_axis(squares, 1, 0, channels)
    for first in range(1, size):
        total = ops.add(total, slice_axis(squares, 1, first, first + channels))
    scale = ops.add(ops.mul(total, alpha / size), bias)
    return ops.div(x, ops.pow(scale, beta)), scale


# ---- losses -------------------------------------------------------------------------------------------


def _classes(logits: Value, labels: Value, axis: int, label_smoothing: float, classes: int) -> tuple[Any, Any]:
    """Which elements are classes, or None for all; and the distribution that labels stand for."""
    count = logits.type.shape[axis]
    if isinstance(count, Dim):
        raise ModelError("cross-entropy over a named number of classes has no ONNX form")
    builder, rank = logits.builder, logits.type.rank
    assert builder is not None
    used = classes or count
    inside = None
    if used < count:
        numbers = np.arange(count).reshape([-1 if i == axis else 1 for i in range(rank)])
        inside = builder.constant(numbers < used)
    hot = cast_to(ops.one_hot(cast_to(labels, int64), depth=count, axis=axis), logits.type.dtype)
    target = ops.mul(hot, 1.0 - label_smoothing)
    if label_smoothing:
        share = _full_like(hot, label_smoothing / used)
        target = ops.add(target, share if inside is None else ops.where(inside, share, 0.0))
    return inside, target


def _counted(labels: Value, ignore_index: int, value: Value) -> Any:
    return ops.where(ops.equal(labels, ignore_index), 0.0, value)


def softmax_cross_entropy(
    logits: Value, labels: Value, *, axis: int, ignore_index: int, label_smoothing: float, classes: int
) -> tuple[Value, Value, Value]:
    """The loss, the largest logit, and the logarithm of the sum of exponentials relative to it."""
    at = axis % logits.type.rank
    inside, target = _classes(logits, labels, at, label_smoothing, classes)
    least = float(np.finfo(np.float32).min)
    seen = logits if inside is None else ops.where(inside, logits, least)
    largest = ops.reduce_max(seen, axes=(at,), keepdims=True)
    below = ops.sub(seen, largest)
    log_sum = ops.log(ops.reduce_sum(ops.exp(below), axes=(at,), keepdims=True))
    hit = ops.mul(target, below if inside is None else ops.where(inside, below, 0.0))
    loss = ops.sub(log_sum, ops.reduce_sum(hit, axes=(at,), keepdims=True))
    loss, top, log_sum = (ops.reshape(value, shape=labels.type.shape) for value in (loss, largest, log_sum))
    return _counted(labels, ignore_index, loss), top, log_sum


def softmax_cross_entropy_grad(
    dloss: Value,
    logits: Value,
    labels: Value,
    top: Value,
    log_sum: Value,
    *,
    axis: int,
    ignore_index: int,
    label_smoothing: float,
    classes: int,
) -> Any:
    """The gradient by logits."""
    at = axis % logits.type.rank
    inside, target = _classes(logits, labels, at, label_smoothing, classes)
    per_label = tuple(1 if i == at else n for i, n in enumerate(logits.type.shape))
    below = ops.sub(logits, ops.reshape(top, shape=per_label))
    probability = ops.exp(ops.sub(below, ops.reshape(log_sum, shape=per_label)))
    if inside is not None:
        probability = ops.where(inside, probability, 0.0)
    weight = ops.reshape(_counted(labels, ignore_index, dloss), shape=per_label)
    return ops.mul(weight, ops.sub(probability, target))


# ---- gradients ----------------------------------------------------------------------------------------


def softmax_grad(dy: Value, y: Value, *, axis: int) -> Any:
    """Dx = y (dy - sum(dy y))."""
    return ops.mul(y, ops.sub(dy, ops.reduce_sum(ops.mul(dy, y), axes=(axis % y.type.rank,), keepdims=True)))


def log_softmax_grad(dy: Value, y: Value, *, axis: int) -> Any:
    """Dx = dy - e^y sum(dy)."""
    return ops.sub(dy, ops.mul(ops.exp(y), ops.reduce_sum(dy, axes=(axis % y.type.rank,), keepdims=True)))


def relu_grad(dy: Value, y: Value) -> Any:
    """Dx = dy where y > 0."""
    return ops.where(ops.greater(y, 0.0), dy, 0.0)


def slice_grad(
    dy: Value, *, shape: Sequence[Any], starts: Sequence[Any], stops: Sequence[Any], steps: Sequence[int]
) -> Any:
    """Along each axis: zeros, to which what was read is added where it was read."""
    found = dy
    for axis, (size, start, step) in enumerate(zip(shape, starts, steps, strict=True)):
        if (start, found.type.shape[axis], step) == (0, size, 1):
            continue
        assert dy.builder is not None
        limit = start + found.type.shape[axis] * step
        numbers = {"start": start, "limit": limit, "delta": step, "dtype": int64}
        read: Any = dy.builder.add(ops.range_, (), numbers).outputs[0]
        found = index_add(read, found, size=size, axis=axis)
    return ops.copy(found) if found is dy else found


def index_add(indices: Value, updates: Value, addend: Value | None = None, *, size: Any, axis: int) -> Any:
    """An addition by element, for which indices and updates get the same shape."""
    assert updates.builder is not None
    rank, at = indices.type.rank, axis % (updates.type.rank - indices.type.rank + 1)
    before, after = updates.type.shape[:at], updates.type.shape[at + rank :]
    count: Any = 1
    for n in indices.type.shape:
        count = count * n
    flat = ops.reshape(updates, shape=(*before, count, *after))
    where = along(ops.reshape(cast_to(indices, int64), shape=(count,)), at, flat.type.rank)
    where = ops.broadcast_to(where, shape=flat.type.shape)
    start = addend if addend is not None else full(updates.builder, (*before, size, *after), 0.0, updates.type.dtype)
    return ops.scatter_elements(start, where, flat, axis=at, reduction="add")


def conv_grad_weight(
    x: Value,
    dy: Value,
    *,
    weight_shape: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Any:
    """A convolution of x by dy with samples as channels; strides and dilations change places."""
    spatial = len(strides)
    channels_first = (1, 0, *range(2, 2 + spatial))

    def of(x: Value, dy: Value) -> Any:
        found = ops.conv(
            ops.transpose(x, perm=channels_first),
            ops.transpose(dy, perm=channels_first),
            strides=tuple(dilations),
            pads=tuple(pads),
            dilations=tuple(strides),
        )
        shape = (*found.type.shape[:2], *weight_shape[2:])
        if found.type.shape != shape:  # a window that doesn't fit evenly leaves more taps
            found = ops.slice(found, starts=(0,) * len(shape), stops=shape, steps=(1,) * len(shape))
        return ops.transpose(found, perm=channels_first)

    def group(value: Value, index: int) -> Any:
        shape = value.type.shape
        width = int(shape[1]) // groups
        starts = (0, width * index, *(0,) * spatial)
        stops = (shape[0], width * (index + 1), *shape[2:])
        return ops.slice(value, starts=starts, stops=stops, steps=(1,) * len(shape))

    if groups == 1:
        return of(x, dy)
    return ops.concat(*(of(group(x, i), group(dy, i)) for i in range(groups)), axis=0)


def resample(x: Value, index: Value, weight: Value, *, axis: int) -> Any:
    """The elements taken, weighed and summed."""
    at = axis % x.type.rank
    taken = ops.gather(x, index, axis=at)  # (..., results, taps, ...)
    factors = ops.reshape(weight, shape=tuple(weight.type.shape) + (1,) * (x.type.rank - at - 1))
    return ops.reduce_sum(ops.mul(taken, factors), axes=(at + 1,), keepdims=False)


# ---- others -------------------------------------------------------------------------------------------


def mod(a: Value, b: Value, *, fmod: bool) -> Any:
    """Of floats: the rest with a's sign, and b more where that isn't b's."""
    rest = ops.mod(a, b, fmod=True)
    other = ops.logical_xor(ops.less(rest, 0.0), ops.less(b, 0.0))
    return ops.where(ops.logical_and(other, ops.logical_not(ops.equal(rest, 0.0))), ops.add(rest, b), rest)


SMALLER: dict[str, Smaller] = {
    "layer_norm": layer_norm,
    "batch_norm_train": batch_norm_train,
    "softmax_cross_entropy": softmax_cross_entropy,
    "softmax_cross_entropy_grad": softmax_cross_entropy_grad,
    "softmax_grad": softmax_grad,
    "log_softmax_grad": log_softmax_grad,
    "relu_grad": relu_grad,
    "max_pool_grad": max_pool_grad,
    "slice_grad": slice_grad,
    "index_add": index_add,
    "conv_grad_weight": conv_grad_weight,
    "avg_pool_grad": avg_pool_grad,
    "lrn": lrn,
    "mod": mod,
    "resample": resample,
}


EXTRA = ("max_pool", "scan")  # whose forms give what they keep for backward


def smaller_of(node: Node, extra_is_read: bool, has_form: bool) -> Smaller | None:
    """What computes a node in smaller ops, where it has to be; None where it has a form as it is.

    Args:
        node: of any op.
        extra_is_read: whether a result that the op keeps for backward is read.
        has_form: the op has one.
    """
    name, a = node.op.name, node.attributes
    first = node.inputs[0].type if node.inputs and node.inputs[0] is not None else None
    if name == "layer_norm":
        wanted = extra_is_read or not a["center"]
    elif name == "batch_norm_train":
        wanted = extra_is_read or len(node.inputs) > 5
    elif name == "mod":
        wanted = not a["fmod"] and first is not None and first.dtype.is_float
    elif name in ("lstm", "gru", "rnn"):  # behind the end of a sequence ONNX has zeros
        lengths = node.op.inputs.index("lengths?")
        wanted = extra_is_read or (len(node.inputs) > lengths and node.inputs[lengths] is not None)
    elif name in EXTRA:
        wanted = False
    else:
        wanted = extra_is_read or not has_form
    if not wanted:
        return None
    return SMALLER.get(name) or node.op.decompose
