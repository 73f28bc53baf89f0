"""Overhead per node: 10,000 unary nodes of ten ops on 16 floats, against onnxruntime; folding and fusion off.

And how what comes before the first result grows with the number of nodes: up to 100,000, with --million ten times that.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from fresh import first_result
from onnx import TensorProto, helper
from report import interleaved, ratio, write

import dataflow as df

NODES = 10_000
OPS = ("Abs", "Tanh", "Sigmoid", "Neg", "Relu", "Sin", "Softsign", "Floor", "Cos", "Erf")


def model(count: int = NODES) -> onnx.ModelProto:
    """The chain."""
    nodes = [helper.make_node(OPS[i % len(OPS)], [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(count)]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [16])],
        [helper.make_tensor_value_info(f"v{count}", TensorProto.FLOAT, [16])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def growth(sizes: Sequence[int]) -> list[dict[str, object]]:
    """Seconds per node from a file to the first result and to the first training step; ratios to the smallest chain."""
    rows: list[dict[str, object]] = []
    x = np.linspace(-1, 1, 16, dtype=np.float32)
    for engine, what in (("dataflow", "first result"), ("training", "first training step")):
        each: list[float] = []
        for count in sizes if engine == "dataflow" else sizes[:3]:
            with tempfile.TemporaryDirectory() as folder:
                onnx.save(trained(count), str(Path(folder) / "model.onnx"))
                onnx.save(trained(1), str(Path(folder) / "small.onnx"))
                for name in ("small", "feeds"):
                    np.savez(Path(folder) / f"{name}.npz", x=x)
                found = first_result(engine, folder, 2, plain=True)
            each.append(found["seconds"] / count * 1e6)
            row = {"what": f"{what} of {count:,} nodes, per node", "dataflow_us": each[-1], "ratio": each[-1] / each[0]}
            rows.append({**row, "goal": 1.25})
    return rows


def trained(count: int) -> onnx.ModelProto:
    """The chain behind a product with a weight, without the op that has no gradient."""
    proto = model(count)
    for node in proto.graph.node:
        node.op_type = {"Floor": "Tanh"}.get(node.op_type, node.op_type)
    proto.graph.node.insert(0, helper.make_node("Mul", ["x", "weight"], ["v0"], name="scaled"))
    proto.graph.input[0].name = "x"
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.full(16, 0.5, np.float32), "weight"))
    return proto


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--million", action="store_true", help="also a million nodes: three gigabytes, a minute")
    options = parser.parse_args()
    rounds, sizes = options.rounds, [1_000, 10_000, 100_000, *([1_000_000] if options.million else [])]
    x = np.linspace(-1, 1, 16, dtype=np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        onnx.save(model(), path)
        onnx.save(model(1), str(Path(folder) / "small.onnx"))
        for name in ("small", "feeds"):
            np.savez(Path(folder) / f"{name}.npz", v0=x)
        ours = df.Session(df.load(path), devices=["cpu"], threads=2, fold=False, fuse=False)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 2
        theirs = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        (expected,) = theirs.run(None, {"v0": x})
        np.testing.assert_allclose(ours.run(x)[f"v{NODES}"], expected, atol=1e-4)
        (segment,) = ours.plan().segments
        assert len(segment.steps) == NODES

        def timed(run):
            def once() -> float:
                begin = time.perf_counter()
                for _ in range(5):
                    run()
                return (time.perf_counter() - begin) / 5

            return once

        times = interleaved(
            rounds, {"ours": timed(lambda: ours.run(x)), "theirs": timed(lambda: theirs.run(None, {"v0": x}))}
        )
        first = interleaved(
            max(3, rounds // 3),
            {
                "ours": lambda: first_result("dataflow", folder, 2, plain=True)["seconds"],
                "theirs": lambda: first_result("onnxruntime", folder, 2, plain=True)["seconds"],
            },
        )
    median = {name: sorted(t)[len(t) // 2] / NODES * 1e6 for name, t in times.items()}
    write(
        "chain",
        [
            {
                "what": "time per node",
                "dataflow_us": median["ours"],
                "onnxruntime_us": median["theirs"],
                "ratio": ratio(times["ours"], times["theirs"]),
                "goal": 0.18,
            },
            {
                "what": "from file to first result",
                "dataflow_s": sorted(first["ours"])[len(first["ours"]) // 2],
                "onnxruntime_s": sorted(first["theirs"])[len(first["theirs"]) // 2],
                "ratio": ratio(first["ours"], first["theirs"]),
                "goal": 2.5,
            },
            *growth(sizes),
        ],
        onnxruntime=onnxruntime.__version__,
    )


if __name__ == "__main__":
    main()
