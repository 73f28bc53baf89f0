"""Inference of the nine light models and of BERT-base against onnxruntime, with random weights and inputs."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from bert import bert, feeds_of
from engines import compare
from onnx import numpy_helper
from report import geometric, said, write

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/light"))
from seeded import NAMES, inputs_of, seeded

GOAL, MEAN_GOAL = 0.95, 0.8
WORKS = (*NAMES, "bert")


def fresh(name: str, batch: int = 1) -> tuple[onnx.ModelProto, str, dict[str, np.ndarray]]:
    """The model with weights that it never had, the value that is compared (before Softmax), and an input."""
    if name == "bert":
        model = bert(batch)
        return model, model.graph.output[0].name, feeds_of(batch)
    model, logits = seeded(name, check=False, salt=os.urandom(8).hex())
    rebatch(model, batch)
    random = np.random.default_rng()
    feeds = {key: random.standard_normal(x.shape).astype(np.float32) for key, x in inputs_of(model)[0].items()}
    return model, logits, feeds


def rebatch(model: onnx.ModelProto, batch: int) -> None:
    """Makes a batch of one another one: in the types of inputs and outputs, and where Reshape has it as a constant."""
    graph = model.graph
    stored = {tensor.name: tensor for tensor in graph.initializer}
    made = {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    for value in [v for v in graph.input if v.name not in stored] + list(graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    for node in graph.node:
        if node.op_type == "Reshape" and node.input[0] not in stored:
            tensor = (stored | made)[node.input[1]]
            shape = numpy_helper.to_array(tensor).copy()
            assert shape[0] in (1, batch), f"{node.name}: {shape}"
            shape[0] = batch
            tensor.CopyFrom(numpy_helper.from_array(shape, tensor.name))


def measured(name: str, batch: int, threads: int, rounds: int) -> dict[str, object]:
    model, logits, feeds = fresh(name, batch)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/{name}.onnx"
        onnx.save(model, path)
        return compare(f"{name}, batch {batch}", path, model, logits, feeds, rounds, threads, GOAL, batch == 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", nargs="*", choices=WORKS, help="these instead of all; writes no results")
    parser.add_argument("--batch", nargs="*", type=int, default=[1, 8])
    parser.add_argument("--threads", nargs="*", type=int, default=[2, 1])
    options = parser.parse_args()
    found: list[dict[str, object]] = []
    for batch in options.batch:
        for threads in options.threads:
            rows = [said(measured(name, batch, threads, options.rounds)) for name in options.only or WORKS]
            goal = MEAN_GOAL if batch == 1 else GOAL
            found += [*rows, geometric(f"geometric mean, batch {batch}, {threads} threads", rows, goal)]
    write("light", found, keep=bool(options.only), onnxruntime=onnxruntime.__version__)


if __name__ == "__main__":
    main()
