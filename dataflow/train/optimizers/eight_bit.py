"""Moments in bytes: the state of an optimizer in a quarter of its memory.

Block-wise dynamic quantization (Dettmers et al. 2021, "8-bit Optimizers via Block-wise Quantization"): a block of 2,048
elements has its largest magnitude as float32, and each element the nearest share of that among 256 numbers, which are
denser towards 0. The update itself is that of float32: the moments of one parameter at a time are decoded before it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ... import ops
from ...errors import InputError
from ...ir.builder import GraphBuilder
from ...ir.types import Array, float32, uint8
from ...ir.value import Value
from .protocol import Optimizer, Sizes, Slot, same_shape, slots_of
from .wrapping import Wrapping

BLOCK = 2048
FEWEST = 4096  # elements of a parameter whose moments take bytes
BITS = (8, 32)


def check_moment_bits(name: str, bits: int) -> None:
    """Raises InputError where moments can't have so many bits."""
    if bits not in BITS or isinstance(bits, bool):
        raise InputError(f"{name}: moment_bits is {bits!r}; expected 8 or 32")


def with_moment_bits(rule: Optimizer) -> Optimizer:
    """The optimizer, with moments in bytes where its ``moment_bits`` says so."""
    return EightBit(rule) if getattr(rule, "moment_bits", 32) == 8 else rule


@functools.cache
def dynamic_code(signed: bool) -> Array:
    """The shares that a byte stands for: (256,) float32, ascending.

    e leading zeros stand for 10^-e, a one ends them, and the other bits divide 0.1 to 1 linearly. With a sign there are
    7 bits for it; 0 and 1 are there beside, so that a block's largest element is exact.
    """
    bits = 6 if signed else 7
    found = [0.0, 1.0]
    for zeros in range(7):
        count = 2 ** (bits - zeros)
        magnitudes = 10.0**-zeros * (0.1 + 0.9 * (np.arange(count) + 0.5) / count)
        found += [*magnitudes, *(-magnitudes if signed else ())]
    return np.sort(np.array(found, np.float32))


@dataclass(frozen=True)
class EightBit(Wrapping):
    """An optimizer whose tensors of a parameter's shape, zeros at first, are kept in bytes where that is large."""

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The optimizer's for small parameters; for large ones codes and scales in the place of each."""
        return tuple(slot for own in slots_of(self.rule) for slot in _in_bytes(own))

    def build(
        self, g: GraphBuilder, param: Value, grad: Value, slots: Sequence[Value], hyper: Value, scale: Value
    ) -> tuple[Value, ...]:
        """The new parameter, and the optimizer's new tensors as they are kept."""
        if not _is_large(param.type.sizes):
            return self.rule.build(g, param, grad, slots, hyper, scale)
        own = slots_of(self.rule)
        codes = {signed: g.constant(dynamic_code(signed), "code") for signed in {s.signed for s in own if _fits(s)}}
        given = iter(slots)
        tensors = [
            ops.decode_blocks(next(given), next(given), codes[slot.signed], block=BLOCK) if _fits(slot) else next(given)
            for slot in own
            if slot.shape(param.type.sizes) is not None
        ]
        new, *changed = self.rule.build(g, param, grad, tensors, hyper, scale)
        kept: list[Value] = []
        for slot, value in zip((s for s in own if s.shape(param.type.sizes) is not None), changed, strict=True):
            kept += ops.encode_blocks(value, codes[slot.signed], block=BLOCK) if _fits(slot) else [value]
        return new, *kept


def _fits(slot: Slot) -> bool:
    """Whether a slot may be kept in bytes."""
    return slot.shape is same_shape and slot.start == 0.0 and not slot.evaluated


def _is_large(shape: Sizes) -> bool:
    return math.prod(shape) >= FEWEST


def _in_bytes(slot: Slot) -> tuple[Slot, ...]:
    if not _fits(slot):
        return (slot,)
    zero = float(np.searchsorted(dynamic_code(slot.signed), 0.0))
    return (
        Slot(slot.name, lambda shape: None if _is_large(shape) else shape),
        Slot(f"{slot.name}.codes", lambda shape: shape if _is_large(shape) else None, zero, dtype=uint8),
        Slot(
            f"{slot.name}.scales",
            lambda shape: (-(-math.prod(shape) // BLOCK),) if _is_large(shape) else None,
            dtype=float32,
        ),
    )
