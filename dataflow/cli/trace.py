"""A profile as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..execute.profile import TRANSFER, WAIT, Profile, StepTime

COLLECTIVES = "collectives"

Event = dict[str, Any]
Span = tuple[StepTime, float, float]  # a step, when it began and when it ended, in seconds


def trace_events(*profiles: Profile) -> list[Event]:
    """Rounds of median length in the Trace Event Format, one profile behind the other: what is under ``traceEvents``.

    A track per device, and one for what processes do together; a complete event per step, transfer and wait, and one
    per segment around its steps. Sorted by begin, what is around before what is inside. Times are microseconds.
    """
    tracks: dict[str, int] = {}
    events: list[Event] = []
    start = 0.0
    for profile in profiles:
        for step in profile.steps:
            tracks.setdefault(step.device, len(tracks))
        spans = [
            (step, start + begin, start + end) for step, (begin, end) in zip(profile.steps, profile.spans, strict=True)
        ]
        events += [*_segments(spans, tracks), *_steps(spans, tracks)]  # of equal spans the segment comes first
        for name, (begin, end) in profile.beside:
            track = tracks.setdefault(COLLECTIVES, len(tracks))
            events.append(_complete(name, COLLECTIVES, track, start + begin, start + end, {}))
        start = max((end for _, _, end in spans), default=start)
    names = [_named(number, device) for device, number in tracks.items()]
    return names + sorted(events, key=lambda event: (event["ts"], -event["dur"]))


def _named(track: int, device: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": 0, "tid": track, "args": {"name": device}}


def _steps(spans: Sequence[Span], tracks: Mapping[str, int]) -> Iterator[Event]:
    for step, begin, end in spans:
        arguments = {
            "op": step.op,
            "kernel": step.kernel,
            "median_us": step.seconds * 1e6,
            "operations": step.operations,
            "bytes": step.bytes,
        }
        title = " ".join(filter(None, (step.op, step.node)))
        yield _complete(title, _category(step), tracks[step.device], begin, end, arguments)


def _segments(spans: Sequence[Span], tracks: Mapping[str, int]) -> Iterator[Event]:
    steps = [p for p in spans if _category(p[0]) == "step"]
    for number, group in itertools.groupby(steps, key=lambda p: p[0].segment):
        inside = list(group)
        (first, begin, _), (_, _, end) = inside[0], inside[-1]
        yield _complete(f"segment {number}", "segment", tracks[first.device], begin, end, {"steps": len(inside)})


def _category(step: StepTime) -> str:
    return step.op if step.op in (TRANSFER, WAIT) else "step"


def _complete(name: str, category: str, track: int, begin: float, end: float, arguments: Event) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": 0,
        "tid": track,
        "ts": begin * 1e6,
        "dur": (end - begin) * 1e6,
        "args": arguments,
    }
