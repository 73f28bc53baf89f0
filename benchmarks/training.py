"""Time of a training step against PyTorch and JAX: dense, convolutional and recurrent networks, AdamW.

The peers run in processes and interpreters of their own (``--torch-python``, ``--jax-python``); the rounds take turns.
All begin with the same weights and must have the same losses.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from floors import floors
from peer import Peer, turn
from report import interleaved, row, said, write
from works import WORKS

import dataflow as df

TIMED = [name for name in WORKS if name != "small"]


def compare(name: str, torch_python: str, jax_python: str, rounds: int, threads: int) -> dict[str, object]:
    work, seed = WORKS[name], int.from_bytes(os.urandom(4), "little")
    batch = work.batch_of(np.random.default_rng(seed))
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "batch.npz", **batch)
        peers = {"torch": Peer(torch_python, "torch_worker.py", name, folder, threads, seed, threads=threads)}
        if work.jax:
            peers["jax"] = Peer(jax_python, "jax_worker.py", name, folder, threads=threads)
        model = df.load(f"{folder}/model.onnx")
    weights = sum(p.type.nbytes for p in model.parameters.values())
    optimizer = df.optim.AdamW(lr=1e-3, weight_decay=0.01, no_decay=())
    trainer = df.Trainer(
        model, optimizer=optimizer, metrics=[], devices=["cpu"], threads=threads, batch_norm=work.batch_norm
    )
    losses = {}

    def ours() -> float:
        seconds, losses["dataflow"] = turn(lambda: trainer.step(batch), work.steps)
        return seconds

    runs = {"dataflow": ours, **{key: lambda peer=peer: peer(work.steps) for key, peer in peers.items()}}
    for _ in range(2 if work.steps == 1 else 1):  # so that an update is part of what is compared
        for run in runs.values():
            run()
    # Now, and not at the end: after 150 steps PyTorch's own float32 and float64 losses of the cnn are 3% apart.
    losses |= {key: peer.loss for key, peer in peers.items()}
    assert all(abs(loss - losses["torch"]) < work.near * losses["torch"] for loss in losses.values()), losses
    times = interleaved(rounds, runs)
    plans = trainer.programs.plans().values()
    for peer in peers.values():
        peer.close()
    # Weights are read; AdamW reads and writes them and two moments; the batch is read.
    moved = 7 * weights + sum(array.nbytes for array in batch.values())
    return row(
        f"training step, {name}, batch {work.batch}, {threads} threads",
        times,
        work.goal,
        floors(plans, moved, threads),
        arena_MB=max(plan.peak_bytes for plan in plans) / 1e6,
        **{f"{key}_version": peer.version for key, peer in peers.items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter with torch and onnxscript")
    parser.add_argument("--jax-python", default=sys.executable, help="an interpreter with jax")
    parser.add_argument("--threads", nargs="*", type=int, default=[2, 1])
    parser.add_argument("--only", nargs="*", choices=TIMED, help="these instead of all; writes no results")
    options = parser.parse_args()
    found = [
        said(compare(name, options.torch_python, options.jax_python, options.rounds, threads))
        for threads in options.threads
        for name in options.only or TIMED
    ]
    write("training", found, keep=bool(options.only))


if __name__ == "__main__":
    main()
