"""Which device and kernel each node of a lowered graph has, and why not one earlier in the list."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..errors import ModelError
from ..ir.graph import Node
from ..ir.lowered import Loop, Lowered, LoweredItem, LoweredNode, Move
from ..ir.plan import Plan, Step
from .execution import Placement

log = logging.getLogger("dataflow")

MOST_AWAY = 0.01  # of the work may run on devices that were not named, without a word


@dataclass(frozen=True, slots=True)
class AssignedNode:
    """Where a node runs and why not earlier in the device list.

    Attributes:
        kernel: its name, with the algorithm where it has several and a plan was made.
        refusals: device to the reason why it did not take the node.
    """

    node: str
    op: str
    device: str
    kernel: str
    operations: int
    refusals: Mapping[str, str]


class FallbackJudge:
    """Says once, or refuses, when much of the work is not on a named device.

    Of its own, since what a session loaded must not keep the session alive.
    """

    def __init__(self, fallback: str, placement: Placement) -> None:
        self._fallback, self._placement, self._warned = fallback, placement, False

    def __call__(self, lowered: Lowered) -> None:
        """Looks at what a plan will be made of."""
        silent = self._fallback == "allow" or (self._warned and self._fallback == "warn")
        if silent or (text := work_elsewhere(lowered, self._placement)) is None:
            return
        if self._fallback == "error":
            raise ModelError(text + "; name the device, or leave out fallback='error'")
        self._warned = True
        log.warning(text)


def work_elsewhere(lowered: Lowered, placement: Placement) -> str | None:
    """Says how much of the work runs on devices that were not named, and why; None where it is next to nothing.

    Strings stay on the host: what is computed with them is no work that a device could have.
    """
    if all(isinstance(i, Move) or i.device in placement.named for i in lowered.items):
        return None
    nodes = list(assigned_nodes(lowered))
    total = sum(p.operations for p in nodes)
    strings = {item.node.name for item, _ in _counted(lowered.items, 1) if _has_strings(item.node)}
    away = [p for p in nodes if p.device not in placement.named and p.node not in strings]
    share = sum(p.operations for p in away) / max(total, 1)
    if share <= MOST_AWAY:
        return None
    worst = max(away, key=lambda p: p.operations)
    return (
        f"{share:.0%} of the work runs on {', '.join(sorted({p.device for p in away}))}, which was not named; "
        f"most of it in {worst.op} {worst.node!r}: "
        + ("; ".join(f"{device}: {reason}" for device, reason in worst.refusals.items()) or "it is pinned there")
    )


def _has_strings(node: Node) -> bool:
    return any(v is not None and v.type.dtype.kind == "s" for v in (*node.inputs, *node.outputs))


def assigned_nodes(lowered: Lowered, plan: Plan | None = None) -> Iterator[AssignedNode]:
    """Each node with its device, those of bodies too; with a plan of them also by which algorithm it is computed."""
    paths = {} if plan is None else dict(_paths(step for segment in plan.segments for step in segment.steps))
    reasons: dict[str, dict[str, str]] = {}
    for (name, device), reason in lowered.fallbacks.items():
        reasons.setdefault(name, {})[device] = reason
    for item, times in _counted(lowered.items, 1):
        node = item.node
        yield AssignedNode(
            node.name,
            node.op.name,
            item.device,
            paths.get(node.name, item.kernel.name),
            int(item.node.operations()) * times,
            MappingProxyType(reasons.get(node.name, {})),
        )


def _counted(items: Iterable[LoweredItem], times: int) -> Iterator[tuple[LoweredNode, int]]:
    """Nodes with kernels, and how often each runs, where that is known; one iteration of loops of unknown length."""
    for item in items:
        if isinstance(item, LoweredNode):
            yield item, times
        elif isinstance(item, Loop):
            yield from _counted(item.items, times * item.iterations if item.kind == "repeat" else times)


def _paths(steps: Iterable[Step]) -> Iterator[tuple[str, str]]:
    """Names of nodes and what computes them."""
    for step in steps:
        if step.body is None:
            yield step.node.name, step.path
        else:
            yield from _paths(step.body.steps)
