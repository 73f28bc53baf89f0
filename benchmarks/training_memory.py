"""The most memory of a training process against PyTorch's, beyond weights and the optimizer's two moments.

Fresh processes; what one takes that trains a layer of a few weights is subtracted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from peer import Peer
from report import write
from works import WORKS

GOAL = 1.0
STEPS = 3


def peaks(name: str, torch_python: str, threads: int) -> tuple[dict[str, int], int]:
    """Bytes by engine, and those of the weights."""
    seed = int.from_bytes(os.urandom(4), "little")
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "batch.npz", **WORKS[name].batch_of(np.random.default_rng(seed)))
        Peer(torch_python, "torch_worker.py", name, folder, threads, seed).close()  # writes the network
        with np.load(Path(folder) / "weights.npz") as file:
            weights = sum(file[key].nbytes for key in file.files)
        workers = {
            "dataflow": Peer(sys.executable, "dataflow_worker.py", name, folder, threads),
            "torch": Peer(torch_python, "torch_worker.py", name, folder, threads, seed),
        }
        found = {}
        for engine, worker in workers.items():
            worker(STEPS)
            found[engine] = worker.peak
            worker.close()
    return found, weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter with torch and onnxscript")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    idle, _ = peaks("small", options.torch_python, options.threads)
    rows = []
    for name in WORKS:
        if name == "small":
            continue
        found, weights = peaks(name, options.torch_python, options.threads)
        beyond = {engine: found[engine] - idle[engine] - 3 * weights for engine in found}
        rows.append({
            "what": f"training {name}, memory beyond weights and moments",
            **{f"{engine}_MB": bytes / 1e6 for engine, bytes in beyond.items()},
            "weights_MB": weights / 1e6,
            "ratio": max(beyond["dataflow"], 0) / max(beyond["torch"], 1),
            "goal": GOAL,
        })  # fmt: skip
    write("training_memory", rows)


if __name__ == "__main__":
    main()
