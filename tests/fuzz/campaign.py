"""Runs a target over many cases in worker processes and watches them: death, hangs, memory."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import mmap
import os
import resource
import select
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .findings import Finding, Outcome, finding_of

Target = Callable[[int, int], Outcome]
"""``target(seed, case)``; the same arguments give the same input on every machine."""

SHARE = 1000  # cases per worker process: a fresh process per share keeps one case's leftovers from many others
CPU_SECONDS = 10.0  # what a case may take
WALL_SECONDS = 60.0  # with a busy machine in mind; one that sleeps for ever is found by it
MEMORY = 6 << 30  # bytes of address space of a worker
# Bytes by which a case may raise the peak of resident memory: twice the limit of a run, for the reference adds its own.
GROWTH = 1 << 30
_STATE = struct.Struct("qdd")  # case, process time and monotonic time when it began


@dataclass
class Report:
    """What a campaign gave; the form of its JSON."""

    target: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    findings: dict[str, dict[str, Any]] = field(default_factory=dict)  # by kind and where
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    said: set[str] = field(default_factory=set)  # kinds of findings that were printed

    @property
    def cases(self) -> int:
        """How many were run."""
        return sum(self.counts.values())

    def enter(self, case: int, finding: Finding, environment: Mapping[str, str]) -> None:
        """Counts a finding; the first cases of each cause are kept."""
        entry = self.findings.setdefault(
            f"{finding.kind}: {finding.where}", {"count": 0, "cases": [], "text": finding.text, **environment}
        )
        entry["count"] += 1
        if len(entry["cases"]) < 5:
            entry["cases"].append(case)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        rate = self.cases / max(self.cpu_seconds, 1e-9)
        return {
            "target": self.target, "seed": self.seed, "cases": self.cases, "counts": dict(self.counts),
            "seconds": round(self.seconds, 1), "cpu_seconds": round(self.cpu_seconds, 1),
            "cases_per_cpu_second": round(rate, 1), "findings": self.findings,
        }  # fmt: skip


class _Worker:
    """A forked process that runs the cases of a share; the parent's half."""

    def __init__(self, target: Target, seed: int, cases: range, environment: Mapping[str, str]) -> None:
        self.cases, self.environment = cases, environment
        self.state = mmap.mmap(-1, _STATE.size)
        self.state[:] = _STATE.pack(cases.start, 0.0, time.monotonic())
        self.trace = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(read)
            _work(target, seed, cases, environment, self.state, self.trace.fileno(), write)
        os.close(write)
        self.pipe = read
        self.rest = b""
        self.late = ""

    def lines(self) -> list[bytes]:
        """The lines that have come since; a broken last one is kept for later."""
        data = os.read(self.pipe, 1 << 16)
        *complete, self.rest = (self.rest + data).split(b"\n")
        return [*complete] if data else [b""]

    def overdue(self) -> str:
        """What the current case has exceeded, or nothing."""
        case, cpu, wall = _STATE.unpack(self.state[:])
        with contextlib.suppress(OSError, IndexError):
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            if used - cpu > CPU_SECONDS:
                return f"case {case} has taken {used - cpu:.0f} s of CPU"
        waited = time.monotonic() - wall
        return f"case {case} has taken {waited:.0f} s" if waited > WALL_SECONDS else ""

    def case(self) -> int:
        return int(_STATE.unpack(self.state[:])[0])

    def traceback(self) -> str:
        """What faulthandler wrote when it died."""
        self.trace.seek(0)
        return self.trace.read().decode(errors="replace")

    def close(self) -> None:
        os.close(self.pipe)
        self.trace.close()


def _addressed() -> int:
    """Bytes of address space that this process has already: many, where other tests reserved some."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _work(
    target: Target, seed: int, cases: range, environment: Mapping[str, str], state: mmap.mmap, trace: int, pipe: int
) -> None:
    """The child: runs the cases and leaves without cleaning up."""
    status = 1
    try:
        os.environ.update(environment)
        faulthandler.enable(file=trace)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _, most = resource.getrlimit(resource.RLIMIT_AS)
        memory = MEMORY + _addressed()
        memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        if not os.environ.get("FUZZ_STDERR"):
            os.dup2(null, 2)
        for case in cases:
            state[:] = _STATE.pack(case, time.process_time(), time.monotonic())
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            try:
                outcome = target(seed, case)
            except Exception as error:  # the target's own mistakes are findings too
                outcome = Outcome("failed", (finding_of(error, "the target"),))
            grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
            if grown > GROWTH and case > cases.start:
                text = f"resident memory grew by {grown >> 20} MiB"
                outcome = Outcome(outcome.word, (*outcome.findings, Finding("memory", outcome.word, text)))
            found = [[f.kind, f.where, f.text] for f in outcome.findings]
            os.write(pipe, json.dumps([case, outcome.word, found]).encode()[:60000] + b"\n")
        status = 0
    finally:
        os._exit(status)


def campaign(
    name: str,
    target: Target,
    seed: int,
    cases: range,
    *,
    jobs: int = 1,
    environments: Sequence[Mapping[str, str]] = ({},),
    seconds: float | None = None,
    share: int = SHARE,
    progress: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Runs every case once in each environment.

    Args:
        name: of the target, for the report.
        target: what a case is.
        seed: of all cases.
        cases: their numbers.
        jobs: worker processes at once.
        environments: variables of the workers, such as the instruction set of the cpu.
        seconds: no new share begins after so long.
        share: cases per worker process.
        progress: called every few seconds.
    """
    report = Report(name, seed)
    begin, shown = time.monotonic(), time.monotonic()
    blocks = [range(at, min(at + share, cases.stop)) for at in range(cases.start, cases.stop, share)]
    waiting = [(block, environment) for block in reversed(blocks) for environment in reversed(environments)]
    running: list[_Worker] = []
    while waiting or running:
        if seconds is not None and time.monotonic() - begin > seconds:
            waiting.clear()
        while waiting and len(running) < jobs:
            running.append(_Worker(target, seed, *waiting.pop()))
        ready = select.select([w.pipe for w in running], [], [], 1.0)[0]
        for worker in list(running):
            worker.late = worker.late or worker.overdue()
            if worker.late:
                os.kill(worker.pid, signal.SIGKILL)
            if not (worker.pipe in ready and _collect(worker, report)):
                continue
            running.remove(worker)
            _, status, usage = os.wait4(worker.pid, 0)
            report.cpu_seconds += usage.ru_utime + usage.ru_stime
            if status:
                _enter_death(report, worker, status)
                rest = range(worker.case() + 1, worker.cases.stop)
                if rest:
                    waiting.append((rest, worker.environment))
            worker.close()
        report.seconds = time.monotonic() - begin
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            progress(report)
    progress(report)
    return report


def _collect(worker: _Worker, report: Report) -> bool:
    """Enters what a worker has written; True at its end."""
    for line in worker.lines():
        if not line:
            return True
        case, word, found = json.loads(line)
        report.counts[word] += 1
        for kind, where, text in found:
            report.enter(case, Finding(kind, where, text), worker.environment)
    return False


def _enter_death(report: Report, worker: _Worker, status: int) -> None:
    """A worker died, or was killed because its case took too long."""
    frames = [line.strip() for line in worker.traceback().splitlines() if line.lstrip().startswith("File")]
    where = frames[0] if frames else ""
    if worker.late:
        finding = Finding("hang", where, worker.late)
    elif os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        finding = Finding("crash", f"{name} {where}", "\n".join(frames[:6]))
    else:
        finding = Finding("crash", f"exit {os.WEXITSTATUS(status)}", worker.traceback()[:300])
    report.counts["died"] += 1
    report.enter(worker.case(), finding, worker.environment)


def print_progress(report: Report) -> None:
    """One line on stderr, and one for each kind of finding that is new."""
    for name, entry in report.findings.items():
        if name not in report.said:
            report.said.add(name)
            print(f"{report.target}: case {entry['cases'][0]}: {name}"[:300], file=sys.stderr, flush=True)
    counts = ", ".join(f"{n} {word}" for word, n in sorted(report.counts.items()))
    rate = report.cases / max(report.cpu_seconds, report.seconds, 1e-9)
    print(
        f"{report.target}: {report.cases} cases in {report.seconds:.0f} s ({rate:.0f}/s): {counts}; "
        f"{len(report.findings)} kinds of findings",
        file=sys.stderr, flush=True,
    )  # fmt: skip
