"""What the benchmarks share: interleaved rounds, medians of ratios, JSON."""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """The processor and how many of its cores this process may use."""
    name = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {"processor": name, "cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}


def instruction_set() -> str:
    """The one whose kernels the device cpu runs here."""
    from dataflow.plugin.registry import default_registry

    return default_registry().devices["cpu"].version.split()[-1]


def interleaved(rounds: int, competitors: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Seconds of each competitor in each round; they take turns, since the machine's speed drifts."""
    times: dict[str, list[float]] = {name: [] for name in competitors}
    for _ in range(rounds):
        for name, run in competitors.items():
            times[name].append(run())
    return times


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over rounds of our time divided by theirs."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def row(
    what: str,
    times: Mapping[str, Sequence[float]],
    goal: float,
    floors: Mapping[str, float] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """A line of a table: medians, the ratio to the best competitor, what is to be reached, the floors.

    Args:
        what: names the work.
        times: seconds per round by engine; ``dataflow`` is ours.
        goal: the ratio to reach; 1.10 of the floor is enough where that is more.
        floors: the least milliseconds, by what limits them; the column ``floor_ratio`` is the ratio at 1.10 of it.
        more: further columns.
    """
    others = [name for name in times if name != "dataflow"]
    best = min(others, key=lambda name: statistics.median(times[name]))
    found: dict[str, Any] = {"what": what}
    found |= {f"{name}_ms": statistics.median(seconds) * 1e3 for name, seconds in times.items()}
    found |= {f"{name}_min_ms": min(seconds) * 1e3 for name, seconds in times.items()}
    limits = dict(floors or {})
    enough = 1.1 * max(limits.values(), default=0.0) / found[f"{best}_ms"]
    found |= {"ratio": ratio(times["dataflow"], times[best]), "goal": max(goal, enough)}
    if limits:
        found |= {**limits, "floor_ratio": enough}
    return {**found, **more}


def geometric(what: str, rows: Sequence[Mapping[str, Any]], goal: float) -> dict[str, Any]:
    """A line with the geometric mean of ratios; what is to be reached is capped per row, as there."""
    return {
        "what": what,
        "ratio": statistics.geometric_mean(row["ratio"] for row in rows),
        "goal": statistics.geometric_mean(max(goal, row.get("floor_ratio", 0)) for row in rows),
    }


def write(name: str, results: Sequence[Mapping[str, Any]], keep: bool = False, **more: Any) -> None:
    """Prints the results and, but where ``keep`` leaves those that are there, writes them to ``results/NAME.json``.

    Those of a processor with AVX2 alone stand beside, in ``results/NAME.avx2.json``.
    """
    date = datetime.date.today().isoformat()
    record = {"benchmark": name, "date": date, "machine": machine(), **more, "results": list(results)}
    if not keep:
        FOLDER.mkdir(exist_ok=True)
        beside = ".avx2" if instruction_set() == "avx2" else ""
        (FOLDER / f"{name}{beside}.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"{name}, {date}, {record['machine']['processor']}, {record['machine']['cores']} cores")
    for result in results:
        print(line(result))


def line(result: Mapping[str, Any]) -> str:
    """A row as text."""
    goal = f"   goal: at most {result['goal']:.4g}" if "goal" in result else ""
    met = "" if "goal" not in result else "   met" if result["ratio"] <= result["goal"] else "   MISSED"
    return "  " + ", ".join(f"{k} {_short(v)}" for k, v in result.items() if k != "goal") + goal + met


def said(result: dict[str, Any]) -> dict[str, Any]:
    """The row, which also goes to stderr: whoever waits sees how far it is."""
    print(line(result), file=sys.stderr, flush=True)
    return result


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
