"""A competitor in a process and interpreter of its own: both ends of the pipe.

Per line with a number of steps it answers one with seconds per step, the last loss, and the most memory the process
has had, in bytes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

REST = 0.05  # seconds before a turn: threads of whoever came before still spin


def memory(what: str) -> int:
    """Bytes that this process has resident (``VmRSS``), or the most so far (``VmHWM``)."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(what))
    return int(line.split()[1]) * 1024


def turn(step: Callable[[], float], steps: int) -> tuple[float, float]:
    """Seconds per step and the last loss, after a rest and, where several are timed, a step that does not count."""
    time.sleep(REST)
    if steps > 1:
        step()
    begin = time.perf_counter()
    for _ in range(steps):
        loss = step()
    return (time.perf_counter() - begin) / steps, loss


def answer(version: str, step: Callable[[], float], taken: int | None = None) -> None:
    """The worker's end: answers until its input ends; with ``taken`` in place of the most memory, where it is given."""
    print("ready", version, flush=True)
    for line in sys.stdin:
        print(*turn(step, int(line)), memory("VmHWM") if taken is None else taken, flush=True)


class Peer:
    """The other end.

    Attributes:
        version: of the competitor.
        loss: of its last step.
        peak: the most memory it has had.
    """

    def __init__(self, python: str, script: str, *arguments: object, threads: int = 2) -> None:
        command = [python, str(Path(__file__).parent / script), *map(str, arguments)]
        if threads == 1:
            command = ["taskset", "-c", "0", *command]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.loss, self.peak = float("nan"), 0
        line = ""
        while not line.startswith("ready"):
            line = self._line(script)
        self.version = line.split()[1]

    def _line(self, script: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{script} ended; its message is above")
        return line

    def __call__(self, steps: int) -> float:
        """Seconds per step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps}\n")
        self._process.stdin.flush()
        seconds, loss, peak = self._line("the worker").split()
        self.loss, self.peak = float(loss), int(peak)
        return float(seconds)

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
