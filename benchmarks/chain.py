"""Overhead per node: 10,000 unary nodes of eight ops on 16 floats, against onnxruntime; folding and fusion off."""

from __future__ import annotations

import argparse
import tempfile
import time
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
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
        ],
        onnxruntime=onnxruntime.__version__,
    )


if __name__ == "__main__":
    main()
