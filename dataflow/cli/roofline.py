"""What a device can do at most: short runs of its own kernels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .. import ops
from ..ir.builder import GraphBuilder
from ..ir.op import Op
from ..ir.types import Array, float32
from ..plugin.device import Precision
from ..plugin.registry import Registry
from ..session import Session

LONG = 0.02  # seconds; a product that takes so long keeps every device busy
COPIED = 64 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Roofline:
    """The most that a device does.

    Attributes:
        flops: floating-point operations per second.
        bandwidth: bytes per second, read and written together.
    """

    flops: float
    bandwidth: float


def measure_roofline(
    device: str,
    threads: int | None = None,
    precision: Precision = "float32",
    rounds: int = 15,
    registry: Registry | None = None,
) -> Roofline:
    """The roofline of a device: the fastest of some matrix products, and a copy of 64 MB; nan where it has no kernel.

    The copy is a negation.

    Args:
        device: id.
        threads: as for Session.
        precision: as for Session.
        rounds: how often each runs; the fastest counts.
        registry: of plugins; the installed ones by default.

    Raises:
        InputError: there is no such device.
        DeviceError: it is unavailable.
    """

    def fastest(op: Op, x: tuple[int, ...], *more: Array) -> float:
        """Seconds of a node on the device."""
        g = GraphBuilder()
        given = [g.parameter(f"w{index}", array) for index, array in enumerate(more)]
        g.output("y", op(g.input("x", float32, x), *given))
        # What runs elsewhere isn't timed, and is no news to who asked about another model.
        session = Session(
            g.build(), [device], threads=threads, precision=precision, registry=registry, fallback="allow"
        )
        steps = session.profile(np.full(x, 0.5, np.float32), rounds=rounds).steps
        return min((step.fastest for step in steps if step.kernel and step.device == device), default=math.nan)

    rates, size, seconds = [], 256, 0.0
    while seconds < LONG:
        seconds = fastest(ops.matmul, (size, size), np.full((size, size), 0.5, np.float32))
        rates.append(2 * size**3 / seconds)
        size *= 2
    return Roofline(max(rates), 2 * COPIED / fastest(ops.neg, (COPIED // 4,)))


def described(roofline: Roofline) -> str:
    """Its figures; a device that has no kernel for what would be timed has none."""
    flops, bandwidth = roofline.flops / 1e9, roofline.bandwidth / 1e9
    return (
        f"{'no kernel of matmul' if math.isnan(flops) else f'{flops:.4g} GFLOP/s'}, "
        f"{'no kernel of neg' if math.isnan(bandwidth) else f'{bandwidth:.4g} GB/s'}"
    )


def percent(share: float) -> str:
    """A share of a roofline, or nothing where that isn't known."""
    return "" if math.isnan(share) else f"{share:.1%}"
