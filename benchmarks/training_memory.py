"""The most memory of a training process against PyTorch's, beyond weights and the optimizer's two moments.

Fresh processes; what one takes that trains a layer of a few weights is subtracted. Then the price of less: budgets of
ours, and PyTorch with a checkpoint around every block, each with its time against that of a step that computes
nothing again. Two are timed at a time, in turns.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from peer import Peer, turn
from report import interleaved, ratio, said, write
from works import LARGE, WORKS

import dataflow as df

GOAL = 1.0
STEPS = 3
BUDGETS = (None, "0.8x", "0.6x", "0.5x", "0.4x")
ALL = {name: work for name, work in (WORKS | LARGE).items() if name != "small"}
CURVES = ("encoder", "gpt", "vit", "resnet50", "unet", "lstm")


class Setup:
    """A network and a batch in a folder, from which workers start."""

    def __init__(self, name: str, folder: str, torch_python: str, threads: int) -> None:
        self._name, self._folder, self._torch, self._threads = name, folder, torch_python, threads
        self._seed = int.from_bytes(os.urandom(4), "little")
        random = np.random.default_rng(self._seed)
        np.savez(Path(folder) / "batch.npz", **(WORKS | LARGE)[name].batch_of(random))
        self.torch().close()  # writes the network
        with np.load(Path(folder) / "weights.npz") as file:
            self.weights = sum(file[key].nbytes for key in file.files)

    def torch(self, *how: str) -> Peer:
        """PyTorch's worker."""
        return Peer(self._torch, "torch_worker.py", self._name, self._folder, self._threads, self._seed, *how)

    def dataflow(self, *memory: str) -> Peer:
        """Ours, with a budget or without."""
        return Peer(sys.executable, "dataflow_worker.py", self._name, self._folder, self._threads, *memory)

    def step(self, memory: str | None) -> Callable[[], float]:
        """Seconds of a step of ours in this process."""
        with np.load(Path(self._folder) / "batch.npz") as file:
            batch = {key: file[key] for key in file.files}
        trainer = df.Trainer(
            df.load(f"{self._folder}/model.onnx"),
            metrics=[],
            devices=["cpu"],
            threads=self._threads,
            batch_norm=(WORKS | LARGE)[self._name].batch_norm,
            memory=memory,
        )
        return lambda: turn(lambda: trainer.step(batch), 2)[0]

    def beyond(self, start: Callable[..., Peer], *how: str) -> int:
        """The most bytes of a fresh process, less weights and moments."""
        worker = start(*how)
        worker(STEPS)
        worker.close()
        return worker.peak - 3 * self.weights


def measured(name: str, idle: dict[str, int], options: argparse.Namespace) -> list[dict[str, object]]:
    """A row of both engines, and of some networks the curves."""
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(name, folder, options.torch_python, options.threads)
        ours, theirs = setup.beyond(setup.dataflow) - idle["dataflow"], setup.beyond(setup.torch) - idle["torch"]
        rows: list[dict[str, object]] = [{
            "what": f"training {name}, memory beyond weights and moments",
            "dataflow_MB": ours / 1e6,
            "torch_MB": theirs / 1e6,
            "weights_MB": setup.weights / 1e6,
            "ratio": max(ours, 0) / max(theirs, 1),
            "goal": GOAL,
        }]  # fmt: skip
        if name in CURVES:
            peers = {how: setup.torch(*how.split()) for how in ("", "checkpoint")}
            times = interleaved(options.rounds, {how: lambda peer=peer: peer(2) for how, peer in peers.items()})
            for peer in peers.values():
                peer.close()
            less = setup.beyond(setup.torch, "checkpoint") - idle["torch"]
            rows.append({
                "what": f"training {name}, PyTorch with checkpoints",
                "MB": less / 1e6,
                "of_whole": less / theirs,
                "time": ratio(times["checkpoint"], times[""]),
            })  # fmt: skip
            rows += budgets(setup, name, idle["dataflow"], options.rounds)
    return rows


def budgets(setup: Setup, name: str, idle: int, rounds: int) -> Iterator[dict[str, object]]:
    """A row per budget that is possible."""
    whole = setup.beyond(setup.dataflow, "1x") - idle
    for memory in BUDGETS:
        steps = {"1x": setup.step("1x"), memory: setup.step(memory)}
        try:
            times = interleaved(rounds, steps)
        except df.InputError as refusal:
            print(f"{name}: {refusal}", file=sys.stderr)
            return
        less = setup.beyond(setup.dataflow, *([] if memory is None else [memory])) - idle
        yield {
            "what": f"training {name}, memory={memory!r}",
            "MB": less / 1e6,
            "of_whole": less / whole,
            "time": ratio(times[memory], times["1x"]),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter with torch and onnxscript")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", nargs="*", choices=ALL, help="these instead of all; writes no results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup("small", folder, options.torch_python, options.threads)
        idle = {"dataflow": setup.beyond(setup.dataflow), "torch": setup.beyond(setup.torch)}
    rows = []
    for name in options.only or ALL:
        rows += map(said, measured(name, idle, options))
    write("training_memory", rows, keep=bool(options.only))


if __name__ == "__main__":
    main()
