"""A profile as a trace that Perfetto and chrome://tracing open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .profile import TRANSFER, WAIT, Profile, StepTime

Event = dict[str, Any]


def trace_events(profile: Profile) -> list[Event]:
    """The round of median length in the Trace Event Format: what belongs under ``traceEvents``.

    A track per device; a complete event per step, transfer and wait, and one per segment around its steps. Sorted by
    begin, what is around before what is inside. Times are microseconds.
    """
    tracks = {device: number for number, device in enumerate(dict.fromkeys(s.device for s in profile.steps))}
    names = [_named(number, device) for device, number in tracks.items()]
    events = [*_segments(profile, tracks), *_steps(profile, tracks)]  # of equal spans the segment comes first
    return names + sorted(events, key=lambda event: (event["ts"], -event["dur"]))


def _named(track: int, device: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": 0, "tid": track, "args": {"name": device}}


def _steps(profile: Profile, tracks: dict[str, int]) -> Iterator[Event]:
    for step, (begin, end) in zip(profile.steps, profile.spans, strict=True):
        arguments = {
            "op": step.op,
            "kernel": step.kernel,
            "median_us": step.seconds * 1e6,
            "operations": step.operations,
            "bytes": step.bytes,
        }
        title = " ".join(filter(None, (step.op, step.node)))
        yield _complete(title, _category(step), tracks[step.device], begin, end, arguments)


def _segments(profile: Profile, tracks: dict[str, int]) -> Iterator[Event]:
    spans: dict[int, tuple[StepTime, float, float, int]] = {}
    for step, (begin, end) in zip(profile.steps, profile.spans, strict=True):
        if _category(step) == "step":
            first, start, _, count = spans.get(step.segment, (step, begin, end, 0))
            spans[step.segment] = first, start, end, count + 1
    for number, (first, begin, end, count) in spans.items():
        yield _complete(f"segment {number}", "segment", tracks[first.device], begin, end, {"steps": count})


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
