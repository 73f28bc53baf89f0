"""One engine in a fresh process: from a file to the first result, and the most memory; prints JSON.

``first_result`` starts it. The process has run another, small model before, so that what a process does once (loading
libraries, starting threads) is not counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from peer import memory

Run = Callable[[], object]


def run_dataflow(path: str, feeds: Mapping[str, np.ndarray], threads: int, plain: bool) -> Run:
    import dataflow as df

    session = df.Session(df.load(path), devices=["cpu"], threads=threads, fold=not plain, fuse=not plain)
    return lambda: session.run(feeds)


def run_onnxruntime(path: str, feeds: Mapping[str, np.ndarray], threads: int, plain: bool) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(feeds))


def run_training(path: str, feeds: Mapping[str, np.ndarray], threads: int, plain: bool) -> Run:
    """A step of training; the output, of the input's shape, is fitted to zeros."""
    import dataflow as df

    trainer = df.Trainer(df.load(path), "mse", df.optim.SGD(lr=0.1), devices=["cpu"], threads=threads, fuse=not plain)
    (given,) = feeds.values()
    return lambda: trainer.step({**feeds, "labels": np.zeros_like(given)})


ENGINES = {"dataflow": run_dataflow, "onnxruntime": run_onnxruntime, "training": run_training}


def first_result(engine: str, folder: str, threads: int, *, plain: bool = False, idle: bool = False) -> dict[str, Any]:
    """``seconds`` from the file to the first result, and bytes after two more runs: ``peak``, ``resident``.

    Args:
        engine: whose.
        folder: has model.onnx, feeds.npz, and the same of a small model: small.onnx, small.npz.
        threads: the most to use.
        plain: without optimizations of the graph.
        idle: run the small model only.
    """
    command = [sys.executable, __file__, engine, folder, "--threads", str(threads)]
    command += ["--plain"] * plain + ["--idle"] * idle
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--idle", action="store_true")
    options = parser.parse_args()
    make, folder = ENGINES[options.engine], options.folder
    make(str(folder / "small.onnx"), read(folder / "small.npz"), options.threads, options.plain)()
    seconds = 0.0
    if not options.idle:
        feeds = read(folder / "feeds.npz")
        begin = time.perf_counter()
        run = make(str(folder / "model.onnx"), feeds, options.threads, options.plain)
        run()
        seconds = time.perf_counter() - begin
        run()
        run()
    print(json.dumps({"seconds": seconds, "peak": memory("VmHWM"), "resident": memory("VmRSS")}))


if __name__ == "__main__":
    main()
