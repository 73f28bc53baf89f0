"""On a card: the bandwidth of memory-bound kernels as a share of a plain copy's, and the time per node of a chain.

A kernel's time is the difference between a program that runs it many times and one that runs it a few times, divided by
the difference of the counts: what a run costs beside it falls out. The copy is a contiguous one made the same way.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from report import write

import dataflow as df
from dataflow.ir.value import Value
from dataflow.ops.fused import program
from dataflow.plugin.registry import default_registry

GOAL = 0.85  # of the copy's bandwidth
NODES = 10_000
Chain = Callable[[df.GraphBuilder, Value, int], Value]


def repeated(op: Callable[[Value], Value]) -> Chain:
    """One op after another."""

    def build(g: df.GraphBuilder, x: Value, count: int) -> Value:
        for _ in range(count):
            x = op(x)
        return x

    return build


def added(op: Callable[[Value, Value], Value]) -> Chain:
    """One op after another with the first value as the second operand."""

    def build(g: df.GraphBuilder, x: Value, count: int) -> Value:
        y = x
        for _ in range(count):
            y = op(y, x)
        return y

    return build


def reduced(axes: tuple[int, ...]) -> Chain:
    """Reductions of one value side by side; their sum is small work."""

    def build(g: df.GraphBuilder, x: Value, count: int) -> Value:
        sums = [df.ops.reduce_sum(x, axes=axes, keepdims=True) for _ in range(count)]
        total = sums[0]
        for one in sums[1:]:
            total = df.ops.add(total, one)
        return total

    return build


def lost(rows: int, columns: int) -> Chain:
    """Cross entropies of one value side by side; their sum is small work."""
    labels = np.arange(rows) % columns

    def build(g: df.GraphBuilder, x: Value, count: int) -> Value:
        losses = [df.ops.softmax_cross_entropy(x, labels, axis=1) for _ in range(count)]
        total = losses[0]
        for one in losses[1:]:
            total = df.ops.add(total, one)
        return total

    return build


def sloped(rows: int, columns: int) -> Chain:
    """Gradients of layer norms, each of the one before."""
    moments, scale = np.ones(rows, np.float32), np.ones(columns, np.float32)

    def build(g: df.GraphBuilder, x: Value, count: int) -> Value:
        kept = [g.constant(array) for array in (scale, moments, moments)]
        y = x
        for _ in range(count):
            made = g.add(df.ops.layer_norm_grad, (y, x, *kept), {"axis": 1, "epsilon": 1e-5, "center": True})
            y, dscale, dbias = (value for value in made.outputs if value is not None)
            y = df.ops.add(y, df.ops.add(dscale, dbias))
        return y

    return build


def stepped(g: df.GraphBuilder, x: Value, count: int) -> Value:
    """Optimizer steps, each of which reads and writes a parameter and two moments."""
    hyper, scale = g.constant(np.array([1e-3, 0.01, 0.1, 0.1], np.float32)), g.constant(np.float32(1))
    p, m, v = x, df.ops.abs(x), df.ops.abs(df.ops.neg(x))
    for _ in range(count):
        p, m, v = df.ops.adamw_step(p, x, m, v, hyper, scale, beta1=0.9, beta2=0.999, epsilon=1e-8)
    return df.ops.add(df.ops.add(p, m), v)


Step = tuple[str | int, ...]
HALF, ONE, CUBIC, FACTOR = (np.float32(value) for value in (0.5, 1.0, 0.044715, np.sqrt(2 / np.pi)))
# Inputs behind x, and steps; the last one is what a program computes.
PROGRAMS: dict[str, tuple[tuple[np.float32, ...], tuple[Step, ...]]] = {
    "4 steps": ((HALF, CUBIC, ONE), (("mul", 0, 1), ("add", 4, 2), ("maximum", 5, 0), ("sub", 6, 3))),
    "gelu by erf": (
        (np.float32(np.sqrt(0.5)), ONE, HALF),
        (("mul", 0, 1), ("erf", 4), ("add", 5, 2), ("mul", 6, 0), ("mul", 7, 3)),
    ),
    "gelu by tanh": (
        (CUBIC, FACTOR, ONE, HALF),
        (("mul", 0, 0), ("mul", 5, 0), ("mul", 6, 1), ("add", 0, 7), ("mul", 8, 2), ("tanh", 9), ("add", 10, 3),
         ("mul", 0, 11), ("mul", 12, 4)),
    ),
    "12 steps": ((HALF,), tuple(("sub" if index % 2 else "mul", index + 1 if index else 0, 1) for index in range(12))),
}  # fmt: skip


def programs(columns: int) -> dict[str, tuple[Chain, float]]:
    """Chains of ``fused_elementwise``, like ``cases``."""

    def computed(name: str) -> Callable[[Value], Value]:
        inputs, steps = PROGRAMS[name]
        return lambda x: df.ops.fused_elementwise(x, *inputs, program=program(*steps))

    ones = np.ones(columns, np.float32)
    bias, masked = program(("add", 0, 1), ("add", 3, 2)), program(("relu_grad", 0, 1), ("mul", 3, 2))
    found: dict[str, tuple[Chain, float]] = {
        "program, bias and residual": (added(lambda y, x: df.ops.fused_elementwise(y, ones, x, program=bias)), 3),
        "program, slope and scale": (added(lambda y, x: df.ops.fused_elementwise(y, x, ones, program=masked)), 3),
        "program, sum of squares of rows": (summed, 1),
    }
    return {**found, **{f"program, {name}": (repeated(computed(name)), 2.0) for name in PROGRAMS}}


def summed(g: df.GraphBuilder, x: Value, count: int) -> Value:
    """Programs with a reduction over rows of one value side by side; their sum is small work."""
    squares = program(("sub", 0, 1), ("mul", 2, 2), ("reduce_sum", 3))
    sums = [df.ops.fused_elementwise(x, HALF, program=squares, trailing=1, keepdims=True) for _ in range(count)]
    total = sums[0]
    for one in sums[1:]:
        total = df.ops.add(total, one)
    return total


def cases(rows: int, columns: int) -> dict[str, tuple[Chain, float]]:
    """Chains, and how many times the operand's bytes one link moves."""
    shape = (columns,)
    ones, zeros = np.ones(shape, np.float32), np.zeros(shape, np.float32)

    def normed(x: Value) -> Value:
        return df.ops.layer_norm(x, ones, zeros, axis=-1, epsilon=1e-5)

    return {
        "relu": (repeated(df.ops.relu), 2),
        "exp": (repeated(lambda x: df.ops.exp(df.ops.neg(x))), 4),
        "add": (added(df.ops.add), 3),
        "add a row": (repeated(lambda x: df.ops.add(x, ones)), 2),
        "transpose": (repeated(lambda x: df.ops.copy(df.ops.transpose(x, perm=(1, 0)))), 2),
        "reduce rows": (reduced((1,)), 1),
        "reduce columns": (reduced((0,)), 1),
        "softmax": (repeated(lambda x: df.ops.softmax(x, axis=-1)), 2),
        "layer norm": (repeated(normed), 2),
        "layer norm's gradient, and a row added": (sloped(rows, columns), 5),
        "cross entropy": (lost(rows, columns), 1),
        "adamw": (stepped, 7),
        **programs(columns),
    }


def seconds(session: df.Session, feeds: dict[str, np.ndarray], rounds: int) -> float:
    """The median time of a run; the first two launch and capture."""
    for _ in range(3):
        session.run(feeds)
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        session.run(feeds)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def per_link(chain: Chain, shape: tuple[int, ...], rounds: int, few: int = 4, many: int = 20) -> float:
    """Seconds of one link of a chain over data that is made on the card."""
    found = []
    for count in (few, many):
        g = df.GraphBuilder()
        key = g.input("key", df.uint64, (2,))
        y = chain(g, df.ops.random_uniform(key, shape=shape), count)
        while y.type.elements > 1:  # only a number comes back
            y = df.ops.reduce_max(y, axes=tuple(range(len(y.type.shape))), keepdims=False)
        g.output("y", y)
        session = df.Session(df.Model(g.build()), devices=["cuda", "cpu"], fold=False, fuse=False)
        found.append(seconds(session, {"key": np.array([1, 2], np.uint64)}, rounds))
    return (found[1] - found[0]) / (many - few)


def bandwidths(megabytes: int, rounds: int) -> list[dict[str, object]]:
    columns = 4096
    rows = max(1, megabytes * (1 << 20) // 4 // columns)
    size = rows * columns * 4
    plain = per_link(repeated(df.ops.copy), (rows, columns), rounds)
    found: list[dict[str, object]] = [{"what": "copy", "GB_s": 2 * size / plain / 1e9}]
    for name, (chain, moved) in cases(rows, columns).items():
        time_ = per_link(chain, (rows, columns), rounds)
        share = moved * size / time_ / (2 * size / plain)
        # as a ratio of times, so that less is better, like everywhere
        found.append({"what": name, "GB_s": moved * size / time_ / 1e9, "share": share, "ratio": 1 / share,
                      "goal": 1 / GOAL})  # fmt: skip
    return found


def chain_of_nodes(rounds: int) -> dict[str, object]:
    unary = (df.ops.abs, df.ops.tanh, df.ops.sigmoid, df.ops.neg, df.ops.relu, df.ops.sin, df.ops.cos, df.ops.erf)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (16,))
    for index in range(NODES):
        x = unary[index % len(unary)](x)
    g.output("y", x)
    session = df.Session(df.Model(g.build()), devices=["cuda", "cpu"], fold=False, fuse=False)
    each = seconds(session, {"x": np.linspace(-1, 1, 16, dtype=np.float32)}, rounds) / NODES * 1e6
    return {"what": f"chain of {NODES} nodes, captured, us per node", "us": each, "ratio": each, "goal": 2.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=256, help="of an operand")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if default_registry().devices["cuda"].unavailable:
        raise SystemExit(f"no card: {default_registry().devices['cuda'].unavailable}")
    found = [*bandwidths(options.megabytes, options.rounds), chain_of_nodes(options.rounds)]
    write("gpu_kernels", found, card=card())


def card() -> str:
    """Name and driver of the card, as the driver says."""
    import subprocess

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return Path("/proc/driver/nvidia/version").name + ": not known"


if __name__ == "__main__":
    main()
