"""The least time that work can take here: its arithmetic at the roofline, and what it must move at the bandwidth."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from dataflow.cli.roofline import Roofline, measure_roofline
from dataflow.execute.profile import work
from dataflow.ir.plan import Plan


@functools.cache
def roofline(threads: int) -> Roofline:
    """Of the cpu, by our own kernels."""
    return measure_roofline("cpu", threads, rounds=40)


def floors(plans: Iterable[Plan], moved: int, threads: int) -> dict[str, float]:
    """Milliseconds for the arithmetic of the plans (as the ops declare it) and for moving so many bytes."""
    operations = sum(work(step)[0] for plan in plans for segment in plan.segments for step in segment.steps)
    most = roofline(threads)
    return {"arithmetic_ms": operations / most.flops * 1e3, "bytes_ms": moved / most.bandwidth * 1e3}
