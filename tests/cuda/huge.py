"""Tensors of more than 2^31 elements over the stand-in, of which the blocks at both ends run, and some between.

``python -m tests.cuda.huge [CASE ...]`` with ``STANDIN_BLOCKS=edges`` in the environment: memory that nothing touches
takes none. Each case computes rows, along axis 0, one by one: the last ones of a huge operand, behind zeros, are those
of a small one, which NumPy computes.
"""

from __future__ import annotations

import sys
from math import prod

import numpy as np

import dataflow as df
from dataflow import ops
from dataflow.plugin.registry import load

LAST = 2  # rows that are compared
LINE, ROWS, IMAGES, HEADS = (512,), (8, 1024), (8, 16, 16, 16), (8, 2, 32, 64)
WINDOW = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1)}


def filled(g, *shape):
    return g.constant(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32))


def first(g, op, *inputs, **attributes):
    """The first result of an op of several."""
    return g.add(op, inputs, attributes).outputs[0]


def repeated(g, x, array):
    """``array``, a row, in each row that x has."""
    return ops.broadcast_to(g.constant(array), shape=(x.type.shape[0], *array.shape))


def columns(x):
    """The first half of each row, read where it lies."""
    rows, size = x.type.shape
    return ops.slice(x, starts=(0, 0), stops=(rows, size // 2), steps=(1, 1))


def copied(x):
    """In rows of a number per element: what was transposed is written."""
    return ops.reshape(x, shape=(x.type.shape[0], prod(x.type.shape[1:])))


def order(n):
    """Each number below n once."""
    return (np.arange(n) * 7 % n).astype(np.int64)


CASES = {
    "map": (LINE, lambda g, x: ops.relu(x)),
    "map of rows": (ROWS, lambda g, x: ops.relu(columns(x))),
    "map over a row": (ROWS, lambda g, x: ops.maximum(x, filled(g, 1024))),
    "cast": (LINE, lambda g, x: ops.cast(ops.cast(x, to=df.float16), to=df.float32)),
    "choice": (LINE, lambda g, x: ops.where(ops.greater(x, ops.neg(x)), x, ops.neg(x))),
    "fused": (LINE, lambda g, x: ops.add(ops.exp(x), ops.sin(x))),
    "fused over a row": (ROWS, lambda g, x: ops.mul(ops.exp(x), ops.add(x, filled(g, 1024)))),
    "sum": (ROWS, lambda g, x: ops.reduce_sum(x, axes=(1,), keepdims=True)),
    "fused sum": (ROWS, lambda g, x: ops.reduce_sum(ops.exp(ops.sin(x)), axes=(1,), keepdims=True)),
    "sum of a middle axis": (IMAGES, lambda g, x: ops.reduce_sum(x, axes=(1,), keepdims=True)),
    "argmax": (ROWS, lambda g, x: ops.argmax(x, axis=1)),
    "cumsum": (ROWS, lambda g, x: ops.cumsum(x, axis=1)),
    "softmax": (ROWS, lambda g, x: ops.softmax(x, axis=1)),
    "softmax of columns": (IMAGES, lambda g, x: ops.softmax(x, axis=1)),
    "layer norm": (ROWS, lambda g, x: first(g, ops.layer_norm, x, axis=1)),
    "loss": (ROWS, lambda g, x: ops.softmax_cross_entropy(x, repeated(g, x, np.array(5)), axis=1)),
    "transpose": ((8, 32, 32), lambda g, x: copied(ops.transpose(x, perm=(0, 2, 1)))),
    "permutation": (HEADS, lambda g, x: copied(ops.transpose(x, perm=(0, 2, 1, 3)))),
    "concat": (ROWS, lambda g, x: ops.concat(x, ops.neg(x), axis=1)),
    "pad": (ROWS, lambda g, x: ops.pad(x, 1.0, pads=(0, 3, 0, 5))),
    "gather": (ROWS, lambda g, x: ops.gather(x, g.constant(order(1024)), axis=1)),
    "gather rows": (ROWS, lambda g, x: ops.gather(x, g.constant(x.type.shape[0] - 1 - np.arange(5)), axis=0)),
    "gather elements": (ROWS, lambda g, x: ops.gather_elements(x, repeated(g, x, order(1024)), axis=1)),
    "one hot": (ROWS, lambda g, x: ops.one_hot(ops.argmax(x, axis=1), depth=1024)),
    "max pool": (IMAGES, lambda g, x: first(g, ops.max_pool, x, kernel=(3, 3), **WINDOW)),
    "avg pool": (IMAGES, lambda g, x: ops.avg_pool(x, kernel=(3, 3), **WINDOW)),
    "batch norm": (IMAGES, lambda g, x: ops.batch_norm(x, *(ops.exp(filled(g, 16)) for _ in range(4)))),
    "lrn": (IMAGES, lambda g, x: first(g, ops.lrn, x, size=5)),
    "conv": (IMAGES, lambda g, x: ops.conv(x, filled(g, 8, 16, 3, 3), filled(g, 8), groups=1, **WINDOW)),
    "product of long rows": (ROWS, lambda g, x: ops.matmul(x, filled(g, 1024, 8))),
    "product of short rows": ((8, 8), lambda g, x: ops.matmul(x, filled(g, 8, 1024))),
    "products": (HEADS, lambda g, x: ops.matmul(x, ops.transpose(x, perm=(0, 1, 3, 2)))),
    "attention": (HEADS, lambda g, x: first(g, ops.attention, x, ops.transpose(x, perm=(0, 1, 3, 2)), x, scale=0.125)),
}  # fmt: skip


def computed(case, x, rows, devices, registry):
    """The last rows of what the case gives of so many rows, x at their end."""
    g = df.GraphBuilder()
    small = g.input("x", df.float32, x.shape)
    before = rows - x.shape[0]
    y = case(g, ops.pad(small, 0.0, pads=(before,) + (0,) * (2 * x.ndim - 1)) if before else small)
    shape = y.type.shape
    starts = (shape[0] - LAST,) + (0,) * (len(shape) - 1)
    last = ops.slice(y, starts=starts, stops=shape, steps=(1,) * len(shape))
    g.output("y", ops.cast(last, to=df.float32) if y.type.dtype != df.float32 else ops.abs(last))
    return df.Session(df.Model(g.build()), devices=devices, registry=registry).run(x)["y"]


def main(names):
    registry = load()
    for name in names or CASES:
        shape, case = CASES[name]
        x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
        row = prod(shape[1:])
        if name.endswith("short rows"):
            row = 1024  # of the result
        rows = (2**31 + 2**20) // row
        found = computed(case, x, rows, ["cuda"], registry)
        expected = computed(case, x, shape[0], ["numpy"], registry)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5, err_msg=name)
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
