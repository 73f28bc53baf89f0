"""Runs, sessions, training steps and errors without end: memory, descriptors and threads stay where they are.

    python -m tests.fuzz.long_runs --runs 100000 --sessions 10000 --steps 100000 --errors 10000 --output long.json

Each kind of work is done in rounds. What the process holds is read after each of them; the first rounds fill pools and
caches, and after them nothing may grow with the number of rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import dataflow as df
from dataflow.cdevice.host_memory import allocated

ROUNDS = 20
WARM = 8  # rounds until pools and caches are full
SLACK = 3 << 20  # bytes that the allocator may keep beyond what the first rounds needed


@dataclass(frozen=True, slots=True)
class Held:
    """What the process holds.

    Attributes:
        resident: bytes.
        tensors: bytes of host memory for tensors.
        descriptors: open files.
        threads: of the process, the native ones too.
    """

    resident: int
    tensors: int
    descriptors: int
    threads: int


def held() -> Held:
    """What this process holds now."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    descriptors, threads = (len([*Path(f"/proc/self/{folder}").iterdir()]) for folder in ("fd", "task"))
    return Held(pages * os.sysconf("SC_PAGE_SIZE"), allocated()[0], descriptors, threads)


def growth(readings: list[Held]) -> list[str]:
    """What grew after the warm rounds: more than the allocator's slack, or at all where things are counted."""
    before, after = readings[WARM : WARM + 3], readings[-3:]
    found = []
    for name, slack in (("resident", SLACK), ("tensors", 0), ("descriptors", 0), ("threads", 0)):
        most, least = (pick(getattr(r, name) for r in window) for pick, window in ((max, before), (min, after)))
        if least > most + slack:
            found.append(f"{name}: {most} after the first rounds, at least {least} in the last")
    return found


def repeat(work: Callable[[int], None], count: int) -> tuple[list[Held], list[str]]:
    """Readings after each round of ``work(number)``, ``count`` calls in all, and what grew."""
    readings = []
    for number in range(ROUNDS):
        for call in range(count * number // ROUNDS, count * (number + 1) // ROUNDS):
            work(call)
        readings.append(held())
    return readings, growth(readings)


def model(width: int = 8) -> df.Model:
    """A small model with a named batch size, and a table that a wrong index is outside of."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("rows", width))
    index = g.input("index", df.int64, ("rows",))
    table = g.parameter("table", np.ones((4, width), np.float32))
    y = df.ops.relu(x @ g.parameter("w", np.eye(width, dtype=np.float32))) + df.ops.gather(table, index, axis=0)
    g.output("y", y)
    return df.Model(g.build())


def feeds(rows: int) -> dict[str, np.ndarray]:
    """Inputs of ``model`` with so many rows."""
    return {"x": np.ones((rows, 8), np.float32), "index": np.zeros(rows, np.int64)}


def runs(folder: Path) -> Callable[[int], None]:
    """Runs with random shapes; most have a plan, some make one."""
    session, numbers = df.Session(model(), threads=2, plans=8), np.random.default_rng(1)

    def work(call: int) -> None:
        rows = int(numbers.integers(1, 12)) if call % 50 == 0 else 1 + call % 4
        assert session.run(feeds(rows))["y"].shape == (rows, 8)

    return work


def sessions(folder: Path) -> Callable[[int], None]:
    """Sessions that are dropped or closed, some in a cycle that only the collector finds."""
    kept = model()

    def work(call: int) -> None:
        session = df.Session(kept, threads=1)
        session.run(feeds(1 + call % 3))
        if call % 3 == 0:
            session.close()
        elif call % 3 == 1:
            session.__dict__["me"] = session

    return work


def steps(folder: Path) -> Callable[[int], None]:
    """Training steps; now and then a new trainer, the one before closed or dropped."""
    trained, current = model(), []

    def work(call: int) -> None:
        if call % 1000 == 0:
            if current and call % 2000:
                current[0].close()
            current.clear()
            current.append(df.Trainer(trained, "mse", df.optim.AdamW(lr=1e-5), threads=1))
        rows = 1 + call % 3
        current[0].step({**feeds(rows), "labels": np.ones((rows, 8), np.float32)})

    return work


def errors(folder: Path) -> Callable[[int], None]:
    """Files that can't be loaded, inputs that are refused, kernels that refuse data, runs that are cancelled."""
    broken, kept = folder / "broken.onnx", model()
    df.save(kept, str(folder / "whole.onnx"), overwrite=True)
    data = (folder / "whole.onnx").read_bytes()
    session = df.Session(kept, threads=2)
    complete = feeds(2)

    def load(call: int) -> None:
        broken.write_bytes(data[: 1 + call * 37 % (len(data) - 1)])
        df.load(str(broken))

    def cancelled(call: int) -> None:
        session.run(complete)
        (bound, *_) = next(iter(session._loaded().engine.programs.values())).bounds
        cancel = threading.Thread(target=bound.cancel)
        cancel.start()
        try:
            session.run(complete)
        finally:
            cancel.join()

    kinds: list[Callable[[int], object]] = [
        load,
        lambda call: session.run({"x": complete["x"][:, :3], "index": complete["index"]}),
        lambda call: session.run({**complete, "index": np.full(2, 9)}),
        lambda call: session.run(complete, out={"y": np.zeros(3, np.float32)}),
        lambda call: df.Session(kept, devices=["nothing"]),
        lambda call: df.Trainer(kept, "mse", trainable=["nothing"]),
        cancelled,
    ]

    def work(call: int) -> None:
        with contextlib.suppress(df.DataflowError, KeyboardInterrupt):
            kinds[call % len(kinds)](call)

    return work


KINDS = {kind.__name__: kind for kind in (runs, sessions, steps, errors)}


def campaign(counts: dict[str, int]) -> tuple[dict[str, object], bool]:
    """Readings and what grew, by kind of work; whether nothing did."""
    report: dict[str, object] = {}
    flat = True
    for name, count in counts.items():
        with tempfile.TemporaryDirectory() as folder:
            readings, grew = repeat(KINDS[name](Path(folder)), count)
        flat = flat and not grew
        report[name] = {"count": count, "grew": grew, "readings": [asdict(reading) for reading in readings]}
    return report, flat


def main() -> int:
    """Writes a report as JSON; 1 when something grew."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.long_runs", description=__doc__)
    for name, count in (("runs", 100_000), ("sessions", 10_000), ("steps", 100_000), ("errors", 10_000)):
        parser.add_argument(f"--{name}", type=int, default=count)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    report, flat = campaign({name: getattr(options, name) for name in KINDS if getattr(options, name)})
    text = json.dumps(report, indent=1)
    if options.output is not None:
        options.output.write_text(text + "\n", "utf-8")
    for name, found in report.items():
        first, last = found["readings"][WARM], found["readings"][-1]
        sys.stdout.write(f"{name}: {found['count']} times: {first} -> {last}; grew: {found['grew'] or 'nothing'}\n")
    return 0 if flat else 1


if __name__ == "__main__":
    sys.exit(main())
