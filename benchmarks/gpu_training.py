"""On a card: time and memory of a training step against PyTorch with CUDA graphs and, if asked for, torch.compile.

Each step takes its batch from page-locked memory of the host and brings the loss back, on both sides; beside it stands
the time of ours from an array like any other (``plain``). Statistics of batch norms are held.
PyTorch runs in processes of its own, on images once more with channels last; the rounds take turns, and the fastest of
its ways counts. Beside the time stands the least that ``gpu_model`` predicts from the plans.
It ends with an error where a step fell back: products on a path more exact, or slower, than was asked for, or a segment
that no CUDA graph was made of.
"""

from __future__ import annotations

import argparse
import functools
import logging
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TypeVar

import numpy as np
from gpu_kernels import card
from gpu_model import card_of, fallen_back, predict
from report import interleaved, ratio, write

import dataflow as df
from dataflow.plugin.registry import default_registry

# network: batch, shape of a sample (None: words), classes, steps in one turn
NETWORKS: dict[str, tuple[int, tuple[int, ...], int | None, int, int]] = {
    "mlp": (500, (784,), None, 10, 200),
    "cnn": (500, (1, 28, 28), None, 10, 200),
    "encoder": (8, (128,), 1000, 1000, 50),
    "resnet50": (64, (3, 224, 224), None, 1000, 10),
    "decoder": (8, (512,), 50257, 50257, 10),
}
IMAGES = ("cnn", "resnet50")  # PyTorch's channels lie last in one of its ways
GOALS = {"mlp": 0.8, "cnn": 0.8, "encoder": 0.8, "resnet50": 1.0, "decoder": 1.0}
# How near the first loss must be to PyTorch's in the same precision.
NEAR = {"float32": 1e-4, "tf32": 2e-3, "bf16": 2e-2}
FALLEN = 0.01  # of the operations of products; small ones of odd sizes may take another path


def batch_of(name: str) -> dict[str, np.ndarray]:
    """Random inputs and labels, fresh in every run."""
    count, shape, words, classes, _ = NETWORKS[name]
    random = np.random.default_rng()
    if words is not None:
        return {"x": random.integers(0, words, (count, *shape)), "labels": random.integers(0, classes, (count, *shape))}
    x = random.standard_normal((count, *shape)).astype(np.float32)
    return {"x": x, "labels": random.integers(0, classes, count)}


Row = TypeVar("Row")


def kept_batch(name: str, folder: str) -> dict[str, np.ndarray]:
    """A batch, which also lies in the folder for PyTorch."""
    batch = batch_of(name)
    np.savez(Path(folder) / f"{name}.npz", x=batch["x"], y=batch["labels"])
    return batch


class Worker:
    """PyTorch in a process of its own, which imports it and then waits to be asked for a network."""

    def __init__(self, python: str) -> None:
        script = str(Path(__file__).parent / "gpu_torch_worker.py")
        self._process = subprocess.Popen(
            [python, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        self.version, self.first, self.peak = "", 0.0, 0

    def ask(self, name: str, precision: str, mode: str, folder: str) -> None:
        """For a network and what to do with it, without waiting."""
        self._say(f"{name} {precision} {mode} {folder}")

    def wait(self) -> Worker:
        """Until its network is there and its step is captured, or compiled."""
        line = self.until("ready")
        self.version, self.first = line.split()[1], float(line.split()[2])
        return self

    def until(self, what: str) -> str:
        """The next line that begins so."""
        line = ""
        while not line.startswith(what):
            line = self._line()
        return line

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("gpu_torch_worker.py ended; its message is above")
        return line

    def __call__(self, steps: int) -> float:
        self._say(str(steps))
        seconds, _, peak = self._line().split()
        self.peak = int(peak)
        return float(seconds)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def started(python: str, modes: dict[Row, tuple[str, ...]]) -> dict[Row, dict[str, Worker]]:
    """Workers by row and mode, which have imported PyTorch beside each other: nothing is measured meanwhile."""
    found = {row: {mode: Worker(python) for mode in own} for row, own in modes.items()}
    for workers in found.values():
        for worker in workers.values():
            worker.until("imported")
    return found


class Warnings(logging.Handler):
    """What the library warns of while it is at work."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def check_paths(name: str, precision: str, trainer: df.Trainer, warnings: Warnings) -> None:
    """Ends the program where a step is not what was asked for."""
    fallen = fallen_back(trainer.programs.plans(), precision)
    for path, share in fallen.items():
        print(f"{name}, {precision}: {share:.2%} of the operations of products by {path!r}", flush=True)
    if sum(fallen.values()) > FALLEN or any("CUDA graph" in text for text in warnings.texts):
        raise SystemExit(f"{name}, {precision}: steps fell back: {fallen} {warnings.texts}")


def compare(
    name: str, precision: str, workers: dict[str, Worker], rounds: int, device: str, folder: str
) -> dict[str, object]:
    """One row; the network is exported into the folder unless it is there already.

    Args:
        name: the network.
        precision: of its products, on both sides.
        workers: PyTorch's processes by mode, of which that of ``compile`` has compiled.
        rounds: of turns.
        device: ours.
        folder: for the network.
    """
    batch, steps = kept_batch(name, folder), NETWORKS[name][4]
    for mode, worker in workers.items():  # one after the other: each measures algorithms on the card
        if mode != "compile":
            worker.ask(name, precision, mode, folder)
            worker.wait()
    model = df.load(Path(folder) / f"{name}.onnx")
    optimizer = df.optim.AdamW(lr=1e-3, weight_decay=0.01, no_decay=())
    trainer = df.Trainer(model, optimizer=optimizer, metrics=[], devices=[device, "cpu"], precision=precision)
    warnings = Warnings()
    logging.getLogger("dataflow").addHandler(warnings)
    first = trainer.step(batch)
    near = abs(first - workers["graph"].first) / workers["graph"].first
    if near > NEAR[precision]:
        raise SystemExit(f"{name}, {precision}: the first loss is {first}, PyTorch's {workers['graph'].first}")

    def ours(batch: dict[str, np.ndarray]) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            trainer.step(batch)
        return (time.perf_counter() - begin) / steps

    own = {"ours": functools.partial(ours, trainer.staged(batch)), "plain": functools.partial(ours, batch)}
    for run in own.values():
        run()
    peers = {mode: functools.partial(worker, steps) for mode, worker in workers.items()}
    times = interleaved(rounds, own | peers)
    best = min(workers, key=lambda mode: sorted(times[mode])[rounds // 2])
    check_paths(name, precision, trainer, warnings)
    logging.getLogger("dataflow").removeHandler(warnings)
    known = card_of(card())
    least = sum(row.seconds for row in predict(trainer.programs.plans(), known, precision).values()) if known else None
    plans = trainer.programs.plans().values()
    kept = {a.name: a.bytes for p in plans for a in p.arenas if a.kind in ("weights", "state", "prepacks")}
    memory = sum(kept.values()) + max(p.peak_bytes for p in plans)
    for worker in workers.values():
        worker.close()
    trainer.close()
    middle = {key: sorted(found)[rounds // 2] * 1e3 for key, found in times.items()}
    return {
        "what": f"training step, {name}, batch {len(batch['labels'])}, {precision}",
        "dataflow_ms": middle["ours"],
        "dataflow_plain_ms": middle["plain"],
        **{f"torch_{mode}_ms": middle[mode] for mode in workers},
        "predicted_ms": None if least is None else 1e3 * least,
        "ratio": ratio(times["ours"], times[best]),
        "goal": GOALS[name],
        "dataflow_MB": memory / 1e6,
        "torch_MB": workers[best].peak / 1e6,
        "torch": workers[best].version,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter with torch")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="*", choices=list(NETWORKS), help="these instead of all")
    parser.add_argument("--models", help="a folder for the exported networks, which are used again if they are there")
    parser.add_argument("--compile", action="store_true", help="torch.compile beside CUDA graphs")
    parser.add_argument("--precision", nargs="*", choices=list(NEAR), default=["tf32", "bf16"])
    options = parser.parse_args()
    reason = default_registry().devices[options.device].unavailable
    if reason:
        raise SystemExit(f"no card: {reason}")
    modes = ["graph", *(["compile"] if options.compile else [])]  # the first one writes the ONNX file
    rows = [(name, precision) for name in options.only or NETWORKS for precision in options.precision]
    ways = {row: (*modes, *(["channels_last"] if row[0] in IMAGES else [])) for row in rows}
    waiting = started(options.torch_python, ways)
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.models or temporary
        if options.compile:  # beside each other, which chooses nothing by time
            for name, precision in rows:
                kept_batch(name, folder)
                waiting[name, precision]["compile"].ask(name, precision, "compile", folder)
            for row in rows:
                waiting[row]["compile"].wait()
                print("compiled", *row, flush=True)
        for name, precision in rows:
            line = compare(name, precision, waiting[name, precision], options.rounds, options.device, folder)
            found.append(line)
            print(*line.items(), flush=True)  # the table comes at the end
    write("gpu_training", found, card=card())


if __name__ == "__main__":
    main()
