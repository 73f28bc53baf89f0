"""What lower precisions of products gain and cost: inference against onnxruntime in float32, with errors against
float64; training steps against PyTorch in float32 and under autocast to bfloat16.

All take turns; there is no goal, since the peers compute something else.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import onnxruntime
from engines import onnxruntime_session, rested
from exact import exact
from light import fresh
from peer import Peer, turn
from report import interleaved, ratio, said, write
from works import WORKS

import dataflow as df
from dataflow.plugin.device import Precision

LEVELS: tuple[Precision, ...] = get_args(Precision)
INFERENCE, TRAINING = ("bert", "resnet50"), ("encoder", "mlp", "resnet50")


def rows(
    what: str,
    times: Mapping[str, Sequence[float]],
    levels: Sequence[Precision],
    peers: Mapping[str, str],
    **errors: Mapping[Precision, float],
) -> list[dict[str, Any]]:
    """A line per precision: medians, and the ratios to ours in float32 and to each peer.

    Args:
        what: names the work.
        times: seconds per round, by precision and by peer.
        levels: the precisions.
        peers: names of columns by key of ``times``.
        errors: further columns, a number for each precision.
    """
    found = []
    for level in levels:
        row: dict[str, Any] = {"what": f"{what}, {level}", "dataflow_ms": statistics.median(times[level]) * 1e3}
        row |= {f"{name}_ms": statistics.median(times[key]) * 1e3 for key, name in peers.items()}
        row["to_float32"] = ratio(times[level], times["float32"])
        row |= {f"to_{name}": ratio(times[level], times[key]) for key, name in peers.items()}
        found.append(said(row | {name: values[level] for name, values in errors.items()}))
    return found


def inference(name: str, threads: int, rounds: int, levels: Sequence[Precision]) -> list[dict[str, Any]]:
    """Lines of a model at batch 1."""
    model, logits, feeds = fresh(name)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/{name}.onnx"
        onnx.save(model, path)
        loaded = df.load(path)
        sessions = {p: df.Session(loaded, devices=["cpu"], threads=threads, precision=p) for p in levels}
        right = exact(model, feeds, logits)
        errors = {}
        for level, session in sessions.items():
            found = session.run(feeds, outputs=[logits])[logits]
            errors[level] = float(np.abs(found - right).max() / np.abs(right).max())
        theirs = onnxruntime_session(path, threads)
        runs = {level: rested(lambda s=session: s.run(feeds)) for level, session in sessions.items()}
        runs["onnxruntime"] = rested(lambda: theirs.run(None, dict(feeds)))
        times = interleaved(rounds, runs)
    return rows(f"{name}, batch 1, {threads} threads", times, levels, {"onnxruntime": "onnxruntime"}, error=errors)


def training(name: str, python: str, threads: int, rounds: int, levels: Sequence[Precision]) -> list[dict[str, Any]]:
    """Lines of a step with AdamW; ``loss_off``: how far the loss after two turns is from PyTorch's in float32."""
    work, seed = WORKS[name], int.from_bytes(os.urandom(4), "little")
    batch = work.batch_of(np.random.default_rng(seed))
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "batch.npz", **batch)
        peers = {
            key: Peer(python, "torch_worker.py", name, folder, threads, seed, level, threads=threads)
            for key, level in (("torch", "float32"), ("torch_bf16", "bf16"))
        }
        model = Path(folder, "model.onnx").read_bytes()
        trainers = {level: _trainer(model, folder, level, threads, work.batch_norm) for level in levels}
    losses: dict[str, float] = {}

    def ours(level: Precision) -> float:
        seconds, losses[level] = turn(lambda: trainers[level].step(batch), work.steps)
        return seconds

    runs = {level: lambda p=level: ours(p) for level in levels}
    runs |= {key: lambda peer=peer: peer(work.steps) for key, peer in peers.items()}
    for _ in range(2):
        for run in runs.values():
            run()
    off = {level: abs(losses[level] / peers["torch"].loss - 1) for level in levels}
    times = interleaved(rounds, runs)
    for peer in peers.values():
        peer.close()
    names = {key: key for key in peers}
    return rows(f"step of {name}, batch {work.batch}, {threads} threads", times, levels, names, loss_off=off)


def _trainer(model: bytes, folder: str, level: Precision, threads: int, batch_norm: Any) -> df.Trainer:
    path = Path(folder, f"{level}.onnx")  # each trains weights of its own
    path.write_bytes(model)
    optimizer = df.optim.AdamW(lr=1e-3, weight_decay=0.01, no_decay=())
    return df.Trainer(
        df.load(path),
        optimizer=optimizer,
        metrics=[],
        devices=["cpu"],
        threads=threads,
        batch_norm=batch_norm,
        precision=level,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter with torch and onnxscript")
    parser.add_argument("--threads", nargs="*", type=int, default=[2, 1])
    parser.add_argument("--infer", nargs="*", choices=INFERENCE, help="these instead of all; writes no results")
    parser.add_argument("--train", nargs="*", choices=TRAINING, help="these instead of all; writes no results")
    options = parser.parse_args()
    some = options.infer is not None or options.train is not None
    found: list[dict[str, Any]] = []
    for threads in options.threads:
        for name in options.infer or (() if some else INFERENCE):
            found += inference(name, threads, options.rounds, LEVELS)
        for name in options.train or (() if some else TRAINING):
            found += training(name, options.torch_python, threads, options.rounds, LEVELS)
    write("precision", found, keep=some, onnxruntime=onnxruntime.__version__)


if __name__ == "__main__":
    main()
