"""On a card: the time of a forward pass, from arrays of the host to arrays of the host, against PyTorch's CUDA graphs.

Both take their input from page-locked memory, and results come back there; beside it stands our time from and to any
arrays (``plain``). PyTorch runs in processes of its own, the rounds take turns, and the faster of its ways counts
(images: once with channels last). It ends with an error where results differ.
"""

from __future__ import annotations

import argparse
import functools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from gpu_kernels import card
from gpu_training import IMAGES, Worker, batch_of, started
from report import interleaved, ratio, write

import dataflow as df
from dataflow.plugin.registry import default_registry

# network: batches, passes in one turn
PASSES: dict[str, tuple[tuple[int, ...], int]] = {
    "mlp": ((1, 500), 200),
    "cnn": ((1, 500), 200),
    "encoder": ((1, 8), 100),
    "resnet50": ((1, 64), 30),
}
NEAR = {"float32": 1e-5, "tf32": 5e-3, "bf16": 5e-2}  # relative error of all results together


def compare(
    name: str, batch: int, precision: str, workers: dict[str, Worker], rounds: int, folder: str
) -> dict[str, object]:
    """One row, against PyTorch's processes by mode; the network is exported into the folder unless it is there."""
    x = batch_of(name)["x"][:batch]
    np.savez(Path(folder) / f"{name}.npz", x=x, y=x)
    path, passes = Path(folder) / f"{name}.onnx", PASSES[name][1]
    for mode, worker in workers.items():  # one after the other: each writes its results
        worker.ask(name, precision, mode, folder)
        worker.wait()
    wanted = np.load(Path(folder) / f"{name}.npy").astype(np.float64)
    session = df.Session(df.load(path), devices=["cuda", "cpu"], precision=precision)
    found = session.run({"x": x})["logits"]
    error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
    if not error < NEAR[precision]:
        raise SystemExit(f"{name}, batch {batch}, {precision}: results differ from PyTorch's by {error:.2g}")

    def ours(feeds: dict[str, np.ndarray], out: dict[str, np.ndarray] | None) -> float:
        begin = time.perf_counter()
        for _ in range(passes):
            session.run(feeds, out=out)
        return (time.perf_counter() - begin) / passes

    into = session.staged({"logits": found})
    own = {
        "ours": functools.partial(ours, session.staged({"x": x}), into),
        "plain": functools.partial(ours, {"x": x}, None),
    }
    for run in own.values():
        run()
    peers = {mode: functools.partial(worker, passes) for mode, worker in workers.items()}
    times = interleaved(rounds, own | peers)
    best = min(workers, key=lambda mode: sorted(times[mode])[rounds // 2])
    for worker in workers.values():
        worker.close()
    middle = {key: sorted(seconds)[rounds // 2] * 1e3 for key, seconds in times.items()}
    return {
        "what": f"forward pass, {name}, batch {batch}, {precision}",
        "dataflow_ms": middle["ours"],
        "dataflow_plain_ms": middle["plain"],
        **{f"torch_{mode}_ms": middle[mode] for mode in workers},
        "ratio": ratio(times["ours"], times[best]),
        "goal": 1.0,
        "error": float(error),
        "torch": workers[best].version,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torch-python", default=sys.executable, help="an interpreter with torch")
    parser.add_argument("--only", nargs="*", choices=list(PASSES), help="these instead of all")
    parser.add_argument("--models", help="a folder for the exported networks, which are used again if they are there")
    parser.add_argument("--precision", nargs="*", choices=list(NEAR), default=["tf32", "bf16"])
    options = parser.parse_args()
    if default_registry().devices["cuda"].unavailable:
        raise SystemExit(f"no card: {default_registry().devices['cuda'].unavailable}")
    rows = [
        (name, batch, precision)
        for name in options.only or PASSES
        for batch in PASSES[name][0]
        for precision in options.precision
    ]
    ways = {row: ("forward", *(["forward_last"] if row[0] in IMAGES else [])) for row in rows}
    waiting = started(options.torch_python, ways)
    found = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.models or temporary
        for row in rows:
            line = compare(*row, waiting[row], options.rounds, folder)
            found.append(line)
            print(*line.items(), flush=True)
    write("gpu_inference", found, card=card())


if __name__ == "__main__":
    main()
