"""What a device can do at most: short runs of its own kernels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import ops
from .builder import GraphBuilder
from .device import Precision
from .session import Session
from .types import float32

LONG = 0.02  # seconds; a product that takes so long keeps every device busy
COPIED = 64 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The most that a device does.

    Attributes:
        flops: floating-point operations per second.
        bandwidth: bytes per second, read and written together.
    """

    flops: float
    bandwidth: float


def measure(device: str, threads: int | None = None, precision: Precision = "float32", rounds: int = 15) -> Ceilings:
    """The ceilings of a device: the fastest of some matrix products, and a copy of 64 MB.

    Args:
        device: id.
        threads: as for Session.
        precision: as for Session.
        rounds: how often each runs; the fastest counts.

    Raises:
        InputError: there is no such device.
        DeviceError: it is unavailable.
    """
    rates, size, seconds = [], 256, 0.0
    while seconds < LONG:
        g = GraphBuilder()
        x, w = g.input("x", float32, (size, size)), g.parameter("w", np.full((size, size), 0.5, np.float32))
        g.output("y", ops.matmul(x, w))
        seconds = _fastest(Session(g.build(), [device], threads=threads, precision=precision), rounds)
        rates.append(2 * size**3 / seconds)
        size *= 2
    g = GraphBuilder()
    g.output("y", ops.neg(g.input("x", float32, (COPIED // 4,))))
    copied = _fastest(Session(g.build(), [device], threads=threads), rounds)
    return Ceilings(max(rates), 2 * COPIED / copied)


def _fastest(session: Session, rounds: int) -> float:
    """Seconds of the one node of a model with one input."""
    (type_,) = session.model.inputs.values()
    profile = session.profile(np.full(type_.sizes, 0.5, np.float32), rounds=rounds)
    (seconds,) = [step.fastest for step in profile.steps if step.kernel]
    return seconds
