"""Which algorithm a kernel uses where it has several: avoided by name, timed, and kept in a file."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import platform
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from ..errors import InputError
from ..host.fork import renew_in_child
from ..host.new_file import new_file
from ..version import VERSION

if TYPE_CHECKING:
    from ..ir.lowered import LoweredNode
    from ..plugin.device import Prepared

FORM = "dataflow algorithms 1"
GAIN = 0.97  # of the time of what the kernel finds best: less of a gain is noise
log = logging.getLogger("dataflow")

Seconds = Mapping[str, float]
Measure = Callable[["LoweredNode", Sequence[str], Collection[int]], Seconds]
"""``measure(node, names, constant)``: seconds of a run by each algorithm, with ``constant`` inputs prepacked;
empty where the node can't be run alone."""


class Algorithms:
    """Which algorithm a kernel uses where it has several.

    By default each kernel decides from shapes alone, so that results are the same on every run. Sessions and trainers
    may share one object; it is safe to use from several threads.

    Args:
        file: where the fastest is looked up, and kept when it had to be timed; made when it isn't there. Timing a
            node takes about a tenth of a second, once per machine. None: nothing is timed.
        avoid: names of algorithms that aren't used where a kernel has another, e.g. ``"winograd"``, which rounds more
            than the plain sum does.

    Raises:
        InputError: the file is no such file.
    """

    def __init__(self, file: str | os.PathLike[str] | None = None, avoid: Collection[str] = ()) -> None:
        self.file = None if file is None else Path(file)
        self.avoid = frozenset([avoid] if isinstance(avoid, str) else avoid)
        self._lock = threading.Lock()
        self._used: dict[str, str] = {}
        self._adopted: dict[str, str] = {}
        known = {} if self.file is None else _read(self.file).get(_processor(), {})
        self._known: dict[str, Seconds] = {**known}
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock."""
        self._lock = threading.Lock()

    @property
    def free(self) -> bool:
        """Whether every kernel uses what it finds best itself."""
        return self.file is None and not self.avoid and not self._adopted

    @property
    def used(self) -> dict[str, str]:
        """The name of the algorithm by description of the node, for the nodes of the plans so far."""
        with self._lock:
            return dict(self._used)

    @property
    def fingerprint(self) -> str:
        """A hash of ``used``: plans with equal ones compute the same bits on the same machine."""
        return hashlib.sha256(json.dumps(sorted(self.used.items())).encode()).hexdigest()

    def adopt(self, choices: Mapping[str, str]) -> list[str]:
        """Uses ``choices`` (``used`` of another run) from now on; returns the nodes that used others before."""
        with self._lock:
            self._adopted.update(choices)
            return [node for node, name in self._used.items() if choices.get(node, name) != name]

    def resolve(
        self, nodes: Sequence[LoweredNode], prepared: Sequence[Prepared], described: str, measure: Measure
    ) -> dict[int, str]:
        """The names by index of the nodes that shall not use what their kernel finds best.

        Args:
            nodes: of one device.
            prepared: what their kernels answered.
            described: what choices depend on beside the nodes: threads, precision.
            measure: called where a file is kept and doesn't know the node.
        """
        wanted = {}
        timed = False
        for index, (node, answer) in enumerate(zip(nodes, prepared, strict=True)):
            if len(answer.algorithms) < 2:
                continue
            constant = [prepack.input for prepack in answer.prepacks]
            key = f"{_describe(node)}, packed {constant}, {described}"
            allowed = [name for name in answer.algorithms if name not in self.avoid] or [answer.algorithm]
            own = answer.algorithm if answer.algorithm in allowed else allowed[0]
            name = self._adopted.get(key)
            if name not in allowed:
                name, new = self._fastest(key, allowed, own, functools.partial(measure, node, allowed, constant))
                timed = timed or new
            with self._lock:
                self._used[key] = name
            if name != answer.algorithm:
                wanted[index] = name
        if timed:
            self._write()
        return wanted

    def _fastest(self, key: str, allowed: Sequence[str], own: str, measure: Callable[[], Seconds]) -> tuple[str, bool]:
        """The algorithm to use, and whether it was timed just now."""
        if self.file is None or len(allowed) < 2:
            return own, False
        with self._lock:
            known = self._known.get(key, {})
        missing = not known.keys() >= {*allowed}
        if missing:
            known = {**known, **measure()}
            with self._lock:
                self._known[key] = known
            log.info("timed %s: %s", key, ", ".join(f"{n} {1e6 * s:.0f} us" for n, s in known.items()))
        times = {name: known[name] for name in allowed if name in known}
        best = min(times, key=lambda name: times[name], default=own)
        return (best if times and times[best] < GAIN * times.get(own, float("inf")) else own), missing

    def _write(self) -> None:
        """Adds what was timed to the file, which appears whole or not at all."""
        assert self.file is not None
        machines = _read(self.file)
        with self._lock:
            machines[_processor()] = {**machines.get(_processor(), {}), **self._known}
        with new_file(self.file) as unfinished:
            unfinished.write_text(json.dumps({"format": FORM, "machines": machines}, indent=1), "utf-8")


def _describe(node: LoweredNode) -> str:
    """What decides how long a node takes: kernel, attributes, operands."""
    operands = [*node.inputs, None, *node.outputs]
    types = ["-" if s is None else f"{s.type.dtype.short}{list(s.type.sizes)}" for s in operands]
    return f"{node.kernel.name} {dict(node.node.attributes)} {' '.join(types)}"


def _processor() -> str:
    """What timings depend on beside the node."""
    model = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return f"{model}, {os.cpu_count()} processors, dataflow {VERSION}"


def _read(file: Path) -> dict[str, dict[str, Seconds]]:
    """Seconds by machine, node and algorithm; nothing where there is no file."""
    try:
        data: Any = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(f"{file}: can't be read as a file of algorithms: {error}") from error
    machines = data.get("machines") if isinstance(data, dict) and data.get("format") == FORM else None
    if not _is_table(machines):
        raise InputError(
            f"{file}: no file of algorithms of this form; expected {FORM!r}; name another file, or remove it"
        )
    return dict(machines)


def _is_table(machines: object) -> TypeGuard[dict[str, dict[str, Seconds]]]:
    """Whether this is seconds by machine, node and algorithm."""
    return isinstance(machines, dict) and all(
        isinstance(nodes, dict)
        and all(
            isinstance(times, dict) and all(isinstance(s, (int, float)) and s >= 0 for s in times.values())
            for times in nodes.values()
        )
        for nodes in machines.values()
    )
