"""What samples of the conformance kit take on a device, and which share of its roofline that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import DataflowError, InputError
from ..execute.profile import StepTime
from ..planning.algorithms import Algorithms
from ..plugin.registry import Registry, registry_of
from ..testing.sample import Sample
from ..testing.samples import SAMPLES
from ..testing.trial import Target
from .roofline import Roofline


@dataclass(frozen=True, slots=True)
class SampleTime:
    """What one sample takes.

    Attributes:
        device: its id.
        op: of the sample.
        sample: its name.
        kernel: with the algorithm where it has several.
        seconds: the median.
        operations, bytes: as the op declares them.
        share: of the roofline; the time that bytes or operations take at the least over the time that passed.
        against: seconds of another device; None: there is none, or it doesn't take the sample.
    """

    device: str
    op: str
    sample: str
    kernel: str
    seconds: float
    operations: int
    bytes: int
    share: float
    against: float | None = None

    def row(self) -> dict[str, Any]:
        """For JSON, with the times that the other device takes as long."""
        share = None if math.isnan(self.share) else self.share
        return {
            **asdict(self),
            "share": share,
            "speedup": None if self.against is None else self.against / self.seconds,
        }


def sample_times(
    device: str,
    *,
    select: str | None,
    against: str | None,
    rooflines: Mapping[str, Roofline],
    rounds: int,
    registry: Registry | None = None,
) -> Iterator[SampleTime]:
    """The time of each sample that a device takes, as its kernel alone; those that it doesn't take are left out.

    Args:
        device: id.
        select: name of an op, or the begin of the names of samples; None: all.
        against: id of another device.
        rooflines: by device id; of the device at least.
        rounds: how often each runs.
        registry: of plugins; None: of those that are installed.

    Raises:
        InputError: no sample has the name.
    """
    registry = registry_of(registry)
    samples = [
        s for s in (*SAMPLES, *registry.samples) if select in (None, s.op.name) or s.name.startswith(str(select))
    ]
    if not samples:
        raise InputError(f"no sample has an op {select!r} or a name that begins so")
    for sample in samples:
        found = _step(sample, Target(device, registry), rounds)
        if found is None:
            continue
        other = None if against is None else _step(sample, Target(against, registry), rounds)
        most = rooflines[device]
        least = max(
            (v for v in (found.operations / most.flops, found.bytes / most.bandwidth) if v == v), default=math.nan
        )
        yield SampleTime(
            device,
            sample.op.name,
            sample.name,
            found.kernel,
            found.seconds,
            found.operations,
            found.bytes,
            least / found.seconds,
            None if other is None else other.seconds,
        )


def devices_and_ops(name: str, registry: Registry) -> tuple[list[str], str | None]:
    """The devices that a device, plugin or op of this name stands for, and the op, if it is one.

    A plugin stands for its devices, or where it has none for those that its kernels are for.

    Raises:
        InputError: there is nothing of the name.
    """
    device = name.removesuffix(":0")
    if device in registry.devices:
        return [device], None
    available = [key for key, d in registry.devices.items() if not d.unavailable and d.role != "reference"]
    if name in registry.ops:
        return available, name
    if not any(plugin.name == name for plugin in registry.plugins):
        raise InputError(f"{name!r} is no device, no plugin and no op; see dataflow devices and dataflow ops")
    offered = registry.offered_by(name)
    own = [key for key in available if any(registry.devices[key] is d for d in offered.get("dataflow_devices", ()))]
    return own or available, None


def _step(sample: Sample, target: Target, rounds: int) -> StepTime | None:
    """The step of the sample's op on the device; None where that doesn't take it."""
    graph, feeds = sample.build(), sample.feeds()
    try:
        steps = target.session(graph, Algorithms()).profile(feeds, rounds=rounds).steps
    except DataflowError:
        return None
    return next((s for s in steps if s.kernel and s.device == target.device and s.op == sample.op.name), None)
