"""Connectionist temporal classification: sequences of labels without their places in time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ... import ops
from ...errors import InputError
from ...host import checks
from ...host.numbers import integer
from ...ir.types import TensorType, int64
from ...ir.value import Value
from .class_axis import need_class_numbers
from .loss import LABELS, Target
from .terms import alike, as_dtype, class_numbers, constant, filled, number, ones, upcast, zero


@dataclass(frozen=True)
class CTC:
    """CTC of logits (B, T, C) with labels (B, L) (Graves et al. 2006), as torch.nn.CTCLoss.

    Each sample's loss is divided by the number of its labels, as in PyTorch's ``reduction="mean"``.

    Attributes:
        blank: the class of no label.
        input_lengths: key of the entry (B,) of how many of the T steps count; None: all.
        label_lengths: key of the entry (B,) of how many labels there are; None: the labels are filled up with negative
            numbers.
        time_major: the logits are (T, B, C).
        zero_infinity: a sample with more labels than fit its time costs nothing; otherwise its loss is infinite, and
            training stops with its number.
    """

    blank: int = 0
    input_lengths: str | None = None
    label_lengths: str | None = None
    time_major: bool = False
    zero_infinity: bool = False

    skips = ("softmax", "log_softmax")
    metrics = ()

    def __post_init__(self) -> None:
        integer("ctc: blank", self.blank, 0)
        checks.optional("ctc: input_lengths", self.input_lengths, str)
        checks.optional("ctc: label_lengths", self.label_lengths, str)
        for name, flag in (("time_major", self.time_major), ("zero_infinity", self.zero_infinity)):
            checks.instance(f"ctc: {name}", flag, bool)

    @property
    def keys(self) -> tuple[str, ...]:
        """The labels, and the lengths that are given."""
        return (LABELS, *(key for key in (self.input_lengths, self.label_lengths) if key is not None))

    def target(self, output: TensorType, labels: TensorType, *lengths: TensorType) -> Target:
        """Logits, labels and lengths."""
        need_class_numbers("ctc", labels)
        form = "(T, B, C)" if self.time_major else "(B, T, C)"
        batch = output.shape[1:2] if self.time_major else output.shape[:1]
        if output.rank != 3 or labels.rank != 2 or not alike(batch, labels.shape[:1]):
            raise InputError(f"ctc: expected logits {form} and labels (B, L), got {output} and {labels}")
        classes = output.shape[2]
        if isinstance(classes, int) and self.blank >= classes:
            raise InputError(f"ctc: blank is {self.blank}; expected one of the {classes} classes")
        for key, given in zip(self.keys[1:], lengths, strict=True):
            if given.dtype.kind not in "iu" or not alike(given.shape, labels.shape[:1]):
                raise InputError(f"ctc: {key!r} is {given}; expected (B,) of an integer type")
        entries = tuple(TensorType(int64, given.shape) for given in lengths)
        return Target(output, TensorType(int64, labels.shape), entries=entries, blank=self.blank)

    def elements(self, target: Target, output: Value, labels: Value, *lengths: Value) -> tuple[Value, Value]:
        """The loss of each sample, by its number of labels, and 1."""
        z, labels = upcast(output), class_numbers(labels)
        if self.time_major:
            z = ops.transpose(z, perm=(1, 0, 2))
        given = dict(zip(self.keys[1:], lengths, strict=True))
        if self.label_lengths is None:
            there = ops.cast(ops.greater_equal(labels, 0), to=int64)
            counts = ops.reduce_sum(there, axes=(1,), keepdims=0)
        else:
            counts = class_numbers(given[self.label_lengths])
        steps = z.type.shape[1]
        if self.input_lengths is not None:
            times = class_numbers(given[self.input_lengths])
        elif isinstance(steps, int):
            times = filled(counts, steps)
        else:
            raise InputError(f"ctc: the number of steps of {output.type} isn't known")
        loss = ops.ctc_loss(ops.log_softmax(z, axis=2), labels, times, counts, blank=self.blank)
        if self.zero_infinity:
            loss = ops.where(ops.is_inf(loss), zero(loss), loss)
        divisor = as_dtype(ops.maximum(counts, number(counts, 1)), loss.type.dtype)
        loss = ops.div(loss, divisor)
        return loss, ones(loss)

    def compared(self, target: Target, output: Value, labels: Value, *lengths: Value) -> tuple[Value, Value]:
        """Logits (B, T, C), of the blank where a step doesn't count, and labels (B, L), -1 where there is none."""
        z, labels = upcast(output), class_numbers(labels)
        if self.time_major:
            z = ops.transpose(z, perm=(1, 0, 2))
        given = dict(zip(self.keys[1:], lengths, strict=True))
        if self.input_lengths is not None:
            size, steps, classes = z.type.sizes
            there = ops.reshape(_within(class_numbers(given[self.input_lengths]), steps), shape=(size, steps, 1))
            blank = (np.arange(classes) == self.blank).astype(z.type.dtype.numpy)
            z = ops.where(there, z, constant(z, blank, "blank"))
        if self.label_lengths is not None:
            there = _within(class_numbers(given[self.label_lengths]), labels.type.shape[1])
            labels = ops.where(there, labels, number(labels, -1))
        return z, labels


def _within(counts: Value, size: Any) -> Value:
    """Which of ``size`` positions come before these counts (B,), as (B, size)."""
    assert counts.builder is not None
    attributes = {"start": 0, "limit": size, "delta": 1, "dtype": int64}
    positions = counts.builder.add(ops.range_, (), attributes).outputs[0]
    assert positions is not None
    found: Value = ops.less(positions, ops.reshape(counts, shape=(counts.type.shape[0], 1)))
    return found
