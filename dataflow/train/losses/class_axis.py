"""Where the classes of a value are, given its type and that of the labels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import ops
from ...errors import InputError
from ...ir.types import DType, TensorType
from ...ir.value import Value
from ..data.columns import listed
from .loss import Allowed
from .terms import alike, constant, zero

_log = logging.getLogger("dataflow")


def class_axis(name: str, axis: int | None, output: TensorType, labels: TensorType) -> int:
    """The axis whose removal from the output's shape gives the shape of labels that are class numbers.

    Args:
        name: of the loss, for messages.
        axis: the user's choice.
        output: type of the value.
        labels: type of the entry.

    Raises:
        InputError: there is none, or several fit.
    """
    if axis is not None:
        chosen = _chosen(name, axis, output)
        if alike(without(output, chosen), labels.shape):
            return chosen
        raise InputError(
            f"{name}: labels {labels} don't fit logits {output} with the classes on axis {chosen}; labels have the "
            f"logits' shape without that axis{_resized(output, labels)}"
        )
    found = [axis for axis in range(1, output.rank) if alike(without(output, axis), labels.shape)]
    if len(found) == 1:
        return found[0]
    if found:
        raise InputError(
            f"{name}: logits {output} and labels {labels} fit with the classes on any of the axes {found}; choose one "
            f"with axis=, e.g. df.losses.CrossEntropy(axis={found[0]})"
        )
    advice = f"labels have the logits' shape without the class axis{_resized(output, labels)}"
    if labels.rank == output.rank and labels.shape[-1] == 1:
        advice = "drop the last axis with labels[..., 0]"
    elif labels.rank == output.rank:
        advice = "if they are one-hot, use labels.argmax(axis)"
    raise InputError(f"{name}: labels {labels} don't fit logits {output}; {advice}")


def _resized(output: TensorType, labels: TensorType) -> str:
    """Advice for labels of images of another size than the logits."""
    if output.rank < 4 or labels.rank != output.rank - 1:
        return ""
    return (
        "; where they have another resolution, resize the logits: model.append('resized', lambda v: df.ops.resize(v, "
        "sizes=(*v.shape[:2], HEIGHT, WIDTH), mode='linear'), of=OUTPUT)"
    )


def axis_of_probabilities(name: str, axis: int | None, output: TensorType, labels: TensorType) -> int:
    """The class axis where labels are a share of each class, of the output's shape.

    Raises:
        InputError: they have another shape, or several axes are possible.
    """
    if not alike(output.shape, labels.shape):
        raise InputError(
            f"{name}: labels {labels} don't fit logits {output}; class probabilities have the logits' shape, class "
            "numbers are of an integer type and have it without the class axis: use .astype(np.int64) on whole numbers"
        )
    if axis is not None:
        return _chosen(name, axis, output)
    if output.rank == 2:
        return 1
    raise InputError(f"{name}: class probabilities {labels} don't say on which axis the classes are; choose with axis=")


def without(output: TensorType, axis: int) -> tuple[Any, ...]:
    """The shape without an axis."""
    return (*output.shape[:axis], *output.shape[axis + 1 :])


def need_class_numbers(name: str, labels: TensorType) -> None:
    """Raises InputError where labels are no integers."""
    if labels.dtype.kind == "s":
        raise InputError(
            f"{name}: labels are texts; tables (CSV, DataFrame, ...) number them, elsewhere use "
            "np.unique(labels, return_inverse=True)"
        )
    if labels.dtype.kind not in "iub":
        raise InputError(
            f"{name}: labels are {labels}; expected class numbers of an integer type; use "
            ".argmax(axis) on one-hot labels, .astype(np.int64) on whole numbers, and loss 'mse' for real targets"
        )


def class_weights_of(what: str, weights: Sequence[float] | None) -> tuple[float, ...] | None:
    """One number per class.

    Raises:
        InputError: they aren't finite, or negative.
    """
    if weights is None:
        return None
    try:
        found = tuple(float(w) for w in weights)
    except (TypeError, ValueError):
        found = (np.nan,)
    if not all(np.isfinite(w) and w >= 0 for w in found):
        raise InputError(f"{what}: class_weights must be finite and not negative")
    return found


def check_class_weights(name: str, weights: Sequence[float] | None, classes: Any) -> None:
    """Raises InputError where there is another number of weights than of classes."""
    if weights is not None and classes != len(weights):
        raise InputError(f"{name}: {len(weights)} class_weights for {classes} classes")


def weight_of_labels(
    labels: Value, ignored: int, weights: Sequence[float] | None, dtype: DType
) -> tuple[Value, Value, Value]:
    """Which labels count, labels that may index classes also where they don't, and the weight of each: 0 where not."""
    counted = ops.logical_not(ops.equal(labels, ignored))
    safe = ops.where(counted, labels, zero(labels))
    weight = ops.cast(counted, to=dtype)
    if weights is not None:
        table = constant(labels, np.asarray(weights, dtype.numpy), "class_weights")
        weight = ops.mul(weight, ops.gather(table, safe, axis=0))
    return counted, safe, weight


def beside(flags: Value, output: TensorType, axis: int) -> Value:
    """Flags per label with a class axis of one, to be broadcast over the output."""
    shape = tuple(1 if i == axis else n for i, n in enumerate(output.shape))
    found: Value = ops.reshape(flags, shape=shape)
    return found


def classes_of(output: TensorType, axis: int, ignored: int) -> Allowed:
    """The class numbers that labels may be, where the number of classes is known."""
    classes = output.shape[axis]
    if not isinstance(classes, int):
        return Allowed(0, besides=ignored)
    one = f"logits {output} have one class, of which nothing is learned; of yes and no use 'binary_cross_entropy'"
    if classes == 1:
        return Allowed(0, 0, ignored, advice=one)
    more = "df.replace_head(model, classes=N), --classes N, makes a head for N classes" if output.rank == 2 else ""
    return Allowed(0, classes - 1, ignored, remedy=more)


def check_names(output: TensorType, names: Sequence[str]) -> None:
    """Says that logits (B, C) are of more classes than labels (B,) with these names have.

    Raises:
        InputError: they are of fewer.
    """
    classes = output.shape[1] if output.rank == 2 else None
    if isinstance(classes, int) and 1 < classes < len(names):
        raise InputError(
            f"the data has {len(names)} classes, {listed(names)}, and the logits {output} are of {classes}; "
            f"df.replace_head(model, classes={len(names)}), --classes {len(names)}, makes a head for those of the data"
        )
    if isinstance(classes, int) and classes > len(names):
        _log.warning(
            "the data has %d classes, %s, and the logits %s are of %d: the others are only learned to be never right; "
            "df.replace_head(model, classes=%d), --classes %d, makes a head for those of the data",
            len(names), listed(names), output, classes, len(names), len(names),
        )  # fmt: skip


def _chosen(name: str, axis: int, output: TensorType) -> int:
    fits = isinstance(axis, (int, np.integer)) and -output.rank <= axis < output.rank
    if not fits or axis % output.rank == 0:
        raise InputError(f"{name}: axis {axis} is no class axis of logits {output}")
    return int(axis % output.rank)
