"""What a token of a decoder takes at several lengths, against onnxruntime with its cache as inputs and outputs.

Each engine feeds the same tokens in turns of a few, with a rest before each. What is printed as error is that of the
logits, as a part of the largest.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
from decoders import POSITIONS, SHAPES, Shape, decoder
from floors import floors
from report import row, write

import dataflow as df

GOAL = 0.8
LENGTHS = (16, 256, 1000)
TOKENS, REST, FIRST = 8, 0.05, 2  # of a turn; seconds; tokens of a turn that do not count

Feed = Callable[[np.ndarray], np.ndarray]


def ours(path: str, threads: int) -> tuple[Feed, Callable[[], None]]:
    """Feeds tokens, and forgets them."""
    model = df.load(path)
    session = df.Session(model, ["cpu"], threads=threads, state=df.cache_state(model))
    return lambda ids: session.run(ids)["logits"], session.reset


def theirs(path: str, shape: Shape, threads: int) -> tuple[Feed, Callable[[], None]]:
    """The same by onnxruntime, whose caller hands the cache over."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()[1:]]
    empty = {name: np.zeros((1, shape.shared, 0, shape.head), np.float32) for name in names}
    cache: dict[str, np.ndarray] = {}

    def feed(ids: np.ndarray) -> np.ndarray:
        logits, *present = session.run(None, {"input_ids": ids, **empty, **cache})
        cache.update(zip(names, present, strict=True))
        return logits

    return feed, cache.clear


def moved(model: df.Model, shape: Shape, length: int) -> int:
    """Bytes of what a token reads: all weights but the tables, of which it needs a row, and the cache."""
    tables = shape.words + (0 if shape.rotary else POSITIONS)
    cache = 2 * shape.layers * shape.shared * shape.head * length
    return sum(p.type.nbytes for p in model.parameters.values()) + 4 * (cache - tables * shape.width)


def measured(name: str, rounds: int, threads: int) -> list[dict[str, object]]:
    """A row per length."""
    shape, rows = SHAPES[name], []
    random = np.random.default_rng(1)
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        onnx.save(decoder(shape), file.name)
        model = df.load(file.name)
        engines = {"dataflow": ours(file.name, threads), "onnxruntime": theirs(file.name, shape, threads)}
        for length in LENGTHS:
            prompt = random.integers(0, shape.words, (1, length))
            logits: dict[str, list[np.ndarray]] = {engine: [] for engine in engines}
            times: dict[str, list[float]] = {engine: [] for engine in engines}
            for engine, (feed, forget) in engines.items():
                forget()
                logits[engine].append(feed(prompt)[:, -1:])
            # The first turn makes plans.
            for turn in range(rounds + 1):
                tokens = random.integers(0, shape.words, (TOKENS, 1, 1))
                for engine, (feed, _) in engines.items():
                    time.sleep(REST)
                    taken = []
                    for token in tokens:
                        begin = time.perf_counter()
                        logits[engine].append(feed(token))
                        taken.append(time.perf_counter() - begin)
                    if turn:
                        times[engine].append(float(np.median(taken[FIRST:])))
            pairs = zip(logits["dataflow"], logits["onnxruntime"], strict=True)
            error = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
            what = f"{name}, a token after {length}, {threads} threads"
            least = {"bytes_ms": floors((), moved(model, shape, length), threads)["bytes_ms"]}
            rows.append(row(what, times, GOAL, least, off=error))
    return rows


def main() -> None:
    """Measures, prints and keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=SHAPES, action="append")
    options = parser.parse_args()
    rows = [r for name in options.only or SHAPES for r in measured(name, options.rounds, options.threads)]
    write("tokens", rows, keep=options.only is not None, onnxruntime=onnxruntime.__version__)


if __name__ == "__main__":
    main()
