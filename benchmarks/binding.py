"""What a new binding of named sizes costs: the plan of a run, and that of a training step, for a size not seen before.

Of an encoder of four layers, and per node of models that come with onnx, whose batch is freed. A time is the least of
several, each of another size, after the first that warm up, where nothing else is said; a ratio is that to the most
that it may take.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
from report import write

import dataflow as df

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LAYERS, WIDTH, HEADS, INNER, WORDS = 4, 256, 4, 1024, 1000
FIRST = 2  # bindings that do not count
APART = ((5, 17), (2, 8), (4, 12), (3, 9), (5, 13), (2, 19), (3, 14))  # of no line
ALONE = 3  # lengths that training plans by themselves before it plans others ahead
INFERENCE, TRAINING, NODE = 8.0, 15.0, 0.1  # milliseconds, the last per node
ops = df.ops


def encoder() -> df.Model:
    """Of named batch and length, with a mask that is added and a class per word."""
    random = np.random.default_rng(1)
    g = df.GraphBuilder("encoder")

    def weight(name: str, *shape: int) -> df.Value:
        return g.parameter(name, (random.standard_normal(shape) * 0.05).astype(np.float32))

    def dense(x: df.Value, name: str, to: int) -> df.Value:
        return ops.add(ops.matmul(x, weight(f"{name}.weight", int(x.shape[-1]), to)), weight(f"{name}.bias", to))

    def norm(x: df.Value, name: str) -> df.Value:
        scale = g.parameter(f"{name}.scale", np.ones(WIDTH, np.float32))
        return ops.layer_norm(x, scale, weight(f"{name}.shift", WIDTH), axis=-1)

    def heads(x: df.Value) -> df.Value:
        return ops.transpose(ops.reshape(x, shape=(*x.shape[:2], HEADS, WIDTH // HEADS)), perm=(0, 2, 1, 3))

    ids = g.input("ids", df.int64, ("batch", "length"))
    mask = g.input("mask", df.float32, ("batch", 1, 1, "length"))
    x = ops.gather(weight("table", WORDS, WIDTH), ids, axis=0)
    for layer in range(LAYERS):
        q, k, v = (heads(dense(x, f"{layer}.{name}", WIDTH)) for name in "qkv")
        scores = ops.add(ops.div(ops.matmul(q, ops.transpose(k, perm=(0, 1, 3, 2))), 8.0), mask)
        y = ops.transpose(ops.matmul(ops.softmax(scores, axis=-1), v), perm=(0, 2, 1, 3))
        x = norm(ops.add(x, dense(ops.reshape(y, shape=x.shape), f"{layer}.out", WIDTH)), f"{layer}.norm1")
        y = dense(ops.gelu(dense(x, f"{layer}.up", INNER)), f"{layer}.down", WIDTH)
        x = norm(ops.add(x, y), f"{layer}.norm2")
    g.output("logits", dense(x, "head", WORDS))
    return df.Model(g.build())


def taken(begin: float) -> float:
    """Milliseconds of CPU since then: planning is serial, and what others run does not count."""
    return (time.process_time() - begin) * 1e3


def inference(rounds: int) -> float:
    """Milliseconds of the plan of a run."""
    session, found = df.Session(encoder(), ["cpu"], threads=2), []
    for length in range(8, 8 + FIRST + rounds):
        begin = time.process_time()
        session.plan({"ids": (2, length), "mask": (2, 1, 1, length)})
        found.append(taken(begin))
    return min(found[FIRST:])


def first_steps(sizes: Iterable[tuple[int, int]]) -> list[float]:
    """Milliseconds by which the first step of each batch and length is longer than the next ones."""
    found = []
    with df.Trainer(encoder(), "cross_entropy", df.optim.AdamW(lr=1e-4), devices=["cpu"], threads=2, metrics=[]) as t:
        for size in sizes:
            ids = np.zeros(size, np.int64)
            batch = {"ids": ids, "mask": np.zeros((size[0], 1, 1, size[1]), np.float32), "labels": ids}
            times = []
            for _ in range(3):
                begin = time.process_time()
                t.step(batch)
                times.append(taken(begin))
            found.append(times[0] - min(times[1:]))
    return found


def training(rounds: int) -> dict[str, float]:
    """Milliseconds by what they are of.

    Lengths in no order, of one batch: the median once some have shown that others are like them, and the mean of all.
    Batches and lengths of which no three lie on a line: the second, for which sizes are traced, and the median of those
    behind it. All take so little memory that nothing is searched that could be computed again.
    """
    lengths = np.random.default_rng(0).permutation(np.arange(8, 72))[: max(rounds, ALONE + 1) + FIRST].tolist()
    alike = first_steps((2, length) for length in lengths)
    alone = first_steps(APART[: 2 + rounds])
    return {
        "training": statistics.median(alike[ALONE + 1 :]),
        "training, mean of all": sum(alike) / len(alike),
        "training, sizes by themselves": statistics.median(alone[2:]),
        "training, the second sizes": alone[1],
    }


def per_node(path: Path, rounds: int) -> tuple[float, int]:
    """Milliseconds of the plan of a run of a model, and how many nodes it has."""
    model = df.load(str(path), batch="free")
    session, found = df.Session(model, ["cpu"], threads=2), []
    for batch in range(1, 1 + FIRST + rounds):
        shapes = {name: tuple(d if isinstance(d, int) else batch for d in t.shape) for name, t in model.inputs.items()}
        begin = time.process_time()
        session.plan(shapes)
        found.append(taken(begin))
    return min(found[FIRST:]), len(model.graph.nodes)


def main() -> None:
    """Measures, prints and keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    rows: list[dict[str, object]] = []
    measured = {"inference": inference(rounds), **training(rounds)}
    for what, ms in measured.items():
        most = INFERENCE if what == "inference" else TRAINING
        rows.append({"what": f"encoder, {what}", "ms": ms, "ratio": ms / most, "goal": 1.0})
    for path in sorted(LIGHT.glob("*.onnx")):
        ms, nodes = per_node(path, rounds)
        rows.append({"what": path.stem, "ms": ms, "nodes": nodes, "ratio": ms / (NODE * nodes), "goal": 1.0})
    write("binding", rows)


if __name__ == "__main__":
    main()
