"""The command line; see the package."""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy: workers are forked, and each is one of several

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

from .campaign import SHARE, Report, campaign, print_progress

TARGETS = ("files", "graphs", "gradients", "second", "training", "saved", "plans", "sizes", "adapters", "storage",
           "sessions", "edits", "losses", "quantized", "processes", "dtypes", "integers", "optimizers")  # fmt: skip


def main() -> int:
    """Runs a campaign; 1 when it has findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("target", choices=[*TARGETS, "coverage"])
    parser.add_argument("--count", type=int, default=10_000, help="cases, or without end with --minutes")
    parser.add_argument("--begin", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="one case alone, in this process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="no more work begins after so long")
    parser.add_argument("--isa", nargs="*", default=None, help="instruction sets of the cpu, each on every case")
    parser.add_argument("--output", type=Path, help="where the report goes; build/fuzz/TARGET-SEED.json by default")
    parser.add_argument("--log", type=Path, help="a file of JSON lines that gets a summary of this run behind the rest")
    parser.add_argument("--keep", action="store_true", help="coverage: keep inputs that reached something new")
    parser.add_argument("--reproducer", type=Path, help="with --case: where the minimized input goes")
    options = parser.parse_args()
    if options.case is not None:
        return _single(options)
    if options.target == "coverage":
        from .coverage import cover

        report = cover(options.minutes or 10.0, options.seed, options.keep, options.jobs)
    else:
        report = _campaign(options)
    _write(report, options.output or Path(f"build/fuzz/{options.target}-{options.seed}.json"), options.log)
    return 1 if report.findings else 0


def _campaign(options: argparse.Namespace) -> Report:
    target = importlib.import_module(f".{options.target}", __package__)
    sets = _instruction_sets(options.isa, target)
    return campaign(
        options.target,
        target.target,
        options.seed,
        range(options.begin, options.begin + options.count),
        jobs=options.jobs,
        environments=[{"DATAFLOW_CPU_ISA": name} if name else {} for name in sets],
        seconds=None if options.minutes is None else options.minutes * 60,
        share=min(SHARE, max(50, options.count // (4 * options.jobs))),
        progress=print_progress,
    )


def _instruction_sets(wanted: list[str] | None, target: object) -> list[str]:
    """Those named, else all that a target compares and the machine has; no name is the machine's best."""
    flags = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lacking = {name for name in ("avx512", "avx2") if f" {name}" not in flags}
    return wanted or [name for name in getattr(target, "INSTRUCTION_SETS", ("",)) if name not in lacking]


def _single(options: argparse.Namespace) -> int:
    target = importlib.import_module(f".{options.target}", __package__)
    outcome = target.target(options.seed, options.case)
    for finding in outcome.findings:
        print(f"{finding.kind}: {finding.where}\n{finding.text}")
    print(outcome.word)
    if options.reproducer is not None:
        target.reproduce(options.seed, options.case, options.reproducer)
    return 1 if outcome.findings else 0


def _write(report: Report, path: Path, log: Path | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    for name, entry in sorted(report.findings.items(), key=lambda item: -item[1]["count"]):
        first = entry["text"].partition("\n")[0]
        print(f"{entry['count']:6d}  {name}\n        cases {entry['cases']}: {first[:300]}")
    print(f"{report.cases} cases, {len(report.findings)} kinds of findings; the report is {path}")
    if log is not None:
        summary = report.as_json() | {"findings": len(report.findings), "day": time.strftime("%Y-%m-%d")}
        with log.open("a") as file:
            file.write(json.dumps(summary) + "\n")


if __name__ == "__main__":
    sys.exit(main())
