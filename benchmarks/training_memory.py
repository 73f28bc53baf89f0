"""The most memory of a training process beyond weights and the optimizer's two moments, and the time of its steps.

Ours at several budgets, PyTorch and JAX, each of these also with every block computed again in backward. Processes are
fresh; what one takes that trains a layer of a few weights is subtracted. Of JAX it is what XLA says that the step
takes: in its process the compiler takes most.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from peer import Peer
from report import interleaved, ratio, said, write
from works import LARGE, WORKS

GOAL = 0.75  # of the least of the others, in at most the time of the fastest of them
WARM, STEPS = 2, 1
OURS = {
    "memory='1x'": ("1x",),
    "no budget": (),
    "memory='0.6x'": ("0.6x",),
    "memory='0.5x'": ("0.5x",),
    "memory='0.4x'": ("0.4x",),
    "memory='0.6x', update='as_ready'": ("0.6x", "as_ready"),
}
NAMES = tuple(name for name in WORKS | LARGE if name != "small")


class Setup:
    """A network and a batch in a folder, from which workers start."""

    def __init__(self, name: str, folder: str, options: argparse.Namespace) -> None:
        self._name, self._folder, self._options = name, folder, options
        self._seed = int.from_bytes(os.urandom(4), "little")
        random = np.random.default_rng(self._seed)
        np.savez(Path(folder) / "batch.npz", **(WORKS | LARGE)[name].batch_of(random))
        self.torch().close()  # writes the network
        with np.load(Path(folder) / "weights.npz") as file:
            self.weights = sum(file[key].nbytes for key in file.files)

    def torch(self, *how: str) -> Peer:
        """PyTorch's worker."""
        threads = self._options.threads
        given = (self._name, self._folder, threads, self._seed, *how)
        return Peer(self._options.torch_python, "torch_worker.py", *given, threads=threads)

    def jax(self, *how: str) -> Peer:
        """JAX's."""
        given = (self._name, self._folder, *how)
        return Peer(self._options.jax_python, "jax_worker.py", *given, threads=self._options.threads)

    def dataflow(self, *how: str) -> Peer:
        """Ours, with a budget or without."""
        threads = self._options.threads
        given = (self._name, self._folder, threads, *how)
        return Peer(sys.executable, "dataflow_worker.py", *given, threads=threads)

    def others(self) -> dict[str, Peer]:
        """PyTorch and JAX, each also with every block computed again."""
        found = {"PyTorch": self.torch(), "PyTorch with checkpoints": self.torch("checkpoint")}
        return found | {"JAX": self.jax(), "JAX with remat": self.jax("remat")}

    def ours(self) -> dict[str, Peer]:
        """Ours at every budget that is possible."""
        found = {}
        for name, how in OURS.items():
            worker = self.dataflow(*how)
            try:
                worker(1)
            except SystemExit:
                print(f"{self._name}: {name} is refused", file=sys.stderr)
                continue
            found[name] = worker
        return found


def measured(name: str, idle: dict[str, int], options: argparse.Namespace) -> list[dict[str, object]]:
    """A row per engine and budget, and one of ours against the others."""
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(name, folder, options)
        others, ours = setup.others(), setup.ours()
        peers = {**others, **ours}
        for peer in peers.values():
            peer(WARM)
        turns: dict[str, Callable[[], float]] = {how: lambda peer=peer: peer(STEPS) for how, peer in peers.items()}  # type: ignore[misc]
        times = interleaved(options.rounds, turns)
        for peer in peers.values():
            peer.close()
    fastest = min(others, key=lambda how: statistics.median(times[how]))
    taken, rows = {}, []
    for how, peer in peers.items():
        engine = "torch" if "PyTorch" in how else "jax" if "JAX" in how else "dataflow"
        taken[how] = (peer.peak - 3 * setup.weights - idle[engine]) / 1e6
        slower = ratio(times[how], times[fastest])
        rows.append({"what": f"training {name}, {how}", "MB": taken[how], "time": slower})
    least = min(others, key=lambda how: taken[how])
    allowed = [how for how in ours if ratio(times[how], times[fastest]) <= 1.0] or [*ours]
    best = min(allowed, key=lambda how: taken[how])
    rows.append({
        "what": f"training {name}, {best} against {least}",
        "time": ratio(times[best], times[fastest]),
        "weights_MB": setup.weights / 1e6,
        "ratio": taken[best] / taken[least],
        "goal": GOAL,
    })  # fmt: skip
    return rows


def idle_of(options: argparse.Namespace) -> dict[str, int]:
    """What a process of each engine takes that trains next to nothing."""
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup("small", folder, options)
        workers = {"dataflow": setup.dataflow(), "torch": setup.torch()}
        for worker in workers.values():
            worker(WARM)
            worker.close()
        return {"jax": 0, **{name: worker.peak - 3 * setup.weights for name, worker in workers.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter with torch and onnxscript")
    parser.add_argument("--jax-python", default=sys.executable, help="an interpreter with jax")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", choices=NAMES, help="these instead of all; writes no results")
    options = parser.parse_args()
    idle = idle_of(options)
    rows = []
    for name in options.only or NAMES:
        rows += map(said, measured(name, idle, options))
    write("training_memory", rows, keep=bool(options.only))


if __name__ == "__main__":
    main()
