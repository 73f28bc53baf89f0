"""From file to first result in a fresh process, and the memory it took beyond the weights, against onnxruntime.

A process that has run a small model alone is subtracted from the memory; so are the weights, once.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnxruntime
from fresh import first_result
from light import WORKS, fresh
from onnx import TensorProto, helper
from report import interleaved, row, write

GOAL, MEMORY_GOAL = 0.8, 1.0
ENGINES = ("dataflow", "onnxruntime")


def store_small(folder: Path) -> None:
    """A model of one node, and its input."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [16]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "small", [x], [y])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "small.onnx")
    np.savez(folder / "small.npz", x=np.ones(16, np.float32))


def weights_of(model: onnx.ModelProto) -> int:
    """Bytes of the stored floats."""
    floats = [t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT]
    return sum(4 * int(np.prod(tensor.dims)) for tensor in floats)


def measured(name: str, rounds: int, threads: int) -> tuple[dict[str, object], dict[str, object]]:
    """A row of times and one of memory."""
    model, _, feeds = fresh(name)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/model.onnx")
        np.savez(f"{folder}/feeds.npz", **feeds)
        store_small(Path(folder))
        weights = weights_of(model)
        del model
        found: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}

        def once(engine: str) -> float:
            found[engine].append(first_result(engine, folder, threads))
            return found[engine][-1]["seconds"]

        times = interleaved(rounds, {engine: lambda engine=engine: once(engine) for engine in ENGINES})
        idle = {engine: first_result(engine, folder, threads, idle=True) for engine in ENGINES}
    memory = {
        f"{engine}_{what}_MB": (median(f[what] for f in found[engine]) - idle[engine][what] - weights) / 1e6
        for what in ("peak", "resident")
        for engine in ENGINES
    }
    ratio = max(memory["dataflow_peak_MB"], 0) / max(memory["onnxruntime_peak_MB"], 1e-3)
    return row(f"{name}, from file to first result, {threads} threads", times, GOAL), {
        "what": f"{name}, memory beyond weights", **memory, "weights_MB": weights / 1e6, "ratio": ratio,
        "goal": MEMORY_GOAL,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=WORKS, help="these instead of all; writes no results")
    options = parser.parse_args()
    rows = [measured(name, options.rounds, options.threads) for name in options.only or WORKS]
    versions = {"onnxruntime": onnxruntime.__version__}
    write("loading", [times for times, _ in rows], keep=bool(options.only), **versions)
    write("memory", [memory for _, memory in rows], keep=bool(options.only), **versions)


if __name__ == "__main__":
    main()
