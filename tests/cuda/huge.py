"""Tensors of more than 2^31 elements over the stand-in, of which the blocks at both ends run, and some between.

``python -m tests.cuda.huge [CASE ...]`` with ``STANDIN_BLOCKS=edges`` in the environment: memory that nothing touches
takes none. Each case computes rows, along axis 0, one by one: the last ones of a huge operand, behind zeros, are those
of a small one, which NumPy computes, or below float32 the same kernels. No case sums over rows: blocks that don't
run leave no partial sums. ``FAMILIES`` take more than a moment: ``DATAFLOW_EVERY_VARIANT=1`` asks for them too.
"""

from __future__ import annotations

import sys
from math import prod

import numpy as np

import dataflow as df
from dataflow import ops
from dataflow.plugin.registry import load
from dataflow_numpy.random import philox

LAST = 2  # rows that are compared
RANDOM = "random numbers"
LINE, ROWS, IMAGES, HEADS = (512,), (8, 1024), (8, 16, 16, 16), (8, 2, 32, 64)
FEW, LONG, PLANES = (8, 2), (8, 8192), (8, 1, 88, 88)
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
    "attention": (HEADS, lambda g, x: attention(g, x)[0]),
}  # fmt: skip


def result(g, number, op, *inputs, **attributes):
    return g.add(op, inputs, attributes).outputs[number]


def per_row(g, x, number):
    """``number`` for each row."""
    return ops.reshape(repeated(g, x, np.array([number], np.float32)), shape=x.type.shape[:1])


def softmax_grad(g, x):
    return first(g, ops.softmax_grad, ops.neg(x), ops.softmax(x, axis=1), axis=1)


def batch_norm_grad(g, x):
    return first(g, ops.batch_norm_grad, ops.neg(x), x, *(ops.exp(filled(g, 16)) for _ in range(3)))


def attention(g, x):
    return g.add(ops.attention, (x, ops.transpose(x, perm=(0, 1, 3, 2)), x), {"scale": 0.125}).outputs


def attention_grad(g, x, number):
    kt = ops.transpose(x, perm=(0, 1, 3, 2))
    return result(g, number, ops.attention_grad, ops.neg(x), *attention(g, x), x, kt, x, scale=0.125)


def recurrent(g, x, op, gates, number=0):
    """A step of a layer from a state, x the sums of its gates, of 256 units."""
    rows = x.type.shape[0]
    state = ops.slice(x, starts=(0, 0), stops=(rows, 256), steps=(1, 1))
    weight = ops.mul(filled(g, gates * 256, 256), np.float32(0.05))
    more = {ops.lstm: (state, state), ops.gru: (filled(g, 768), state), ops.rnn: (state,)}[op]
    y = result(g, number, op, ops.reshape(x, shape=(1, rows, gates * 256)), weight, *more)
    return ops.reshape(y, shape=(rows, y.type.shape[-1]))


def recurrent_grad(g, x, op, gates, number=0):
    """The gradient of that, from gates and states that are sines."""
    rows = x.type.shape[0]
    kept = ops.reshape(ops.sin(x), shape=(1, rows, 1024))
    state = ops.slice(x, starts=(0, 0), stops=(rows, 256), steps=(1, 1))
    step = ops.reshape(state, shape=(1, rows, 256))
    weight = ops.mul(filled(g, gates * 256, 256), np.float32(0.05))
    operands = {
        ops.lstm_grad: (weight, kept, ops.sin(step), step, state, state, state),
        ops.gru_grad: (weight, kept, ops.sin(step), step, state, state),
        ops.rnn_grad: (weight, ops.sin(step), step, state),
    }[op]
    y = result(g, number, op, *operands)
    return ops.reshape(y, shape=(rows, y.type.shape[-1]))


def loss_grad(g, x, number):
    labels = ops.reshape(repeated(g, x, np.array([x.type.shape[1] // 2])), shape=x.type.shape[:1])
    return result(g, number, ops.softmax_cross_entropy_with_grad, per_row(g, x, 0.5), x, labels, axis=1)


def max_pool_grad(g, x, n, **window):
    y, indices = g.add(ops.max_pool, (x,), {"kernel": (n, n), **window}).outputs
    return first(g, ops.max_pool_grad, ops.sin(y), indices, input_shape=x.type.shape)


def avg_pool_grad(g, x):
    return first(g, ops.avg_pool_grad, x, input_shape=x.type.shape, kernel=(3, 3), **WINDOW)


def conv_grad(g, x):
    shape = (x.type.shape[0], 8, 16, 16)
    return first(g, ops.conv_grad_input, x, filled(g, 16, 8, 3, 3), input_shape=shape, **WINDOW)


def slice_grad(g, x):
    rows = x.type.shape[0]
    return first(g, ops.slice_grad, x, shape=(rows, 1030), starts=(0, 3), stops=(rows, 1027), steps=(1, 1))


def windows(n):
    """The table of a resampling of ``n`` elements by two."""
    at = np.arange(2 * n)
    return np.stack([at // 2, np.minimum(at // 2 + 1, n - 1)], 1), np.tile(np.float32([0.75, 0.25]), (2 * n, 1))


def resampled(g, x, axis):
    index, weight = windows(x.type.shape[axis])
    return ops.resample(x, g.constant(index), g.constant(weight), axis=axis)


def resample_grad(g, x, axis):
    n = x.type.shape[axis] // 2
    index, weight = windows(n)
    return first(g, ops.resample_grad, x, g.constant(index), g.constant(weight), axis=axis, size=n)


def optimizer(g, x, op, number, moments, hyper):
    return result(g, number, op, x, ops.neg(x), *(ops.mul(x, x) for _ in range(moments)), g.constant(np.float32(hyper)),
                  g.constant(np.float32(0.5)))  # fmt: skip


def last_rows(g, x):
    """Their numbers, one twice."""
    return g.constant(x.type.shape[0] - 1 - np.array([[0], [1], [0]]))


def scattered(g, x, **how):
    index = ops.broadcast_to(last_rows(g, x), shape=(3, 1024))
    return ops.scatter_elements(x, index, filled(g, 3, 1024), axis=0, **how)


def scattered_within_rows(g, x):
    return ops.scatter_elements(x, repeated(g, x, order(1024)), ops.sin(x), axis=1)


def scattered_rows(g, x, **how):
    return ops.scatter_nd(x, last_rows(g, x), filled(g, 3, 1024), **how)


def index_add(g, x):
    index = ops.reshape(last_rows(g, x), shape=(3,))
    return ops.index_add(index, filled(g, 3, 1024), x, size=x.type.shape[0])


FAMILIES = {
    "softmax gradient": (ROWS, softmax_grad),
    "softmax of few": (FEW, lambda g, x: ops.softmax(x, axis=1)),
    "layer norm of few": (FEW, lambda g, x: first(g, ops.layer_norm, x, axis=1)),
    "batch norm gradient": (IMAGES, batch_norm_grad),
    "lrn gradient": (IMAGES, lambda g, x: first(g, ops.lrn_grad, ops.neg(x), x, x, ops.exp(x), size=5)),
    "loss of few": (FEW, lambda g, x: loss_grad(g, x, 0)),
    "loss with gradient": (ROWS, lambda g, x: loss_grad(g, x, 1)),
    "gelu gradient": (ROWS, lambda g, x: first(g, ops.gelu_grad_sums, x, ops.sin(x), keepdims=True)),
    "sum over rows": (ROWS, lambda g, x: ops.reduce_sum(x, axes=(0,), keepdims=False)),
    "fused sum of few": (FEW, lambda g, x: ops.reduce_sum(ops.exp(ops.sin(x)), axes=(1,), keepdims=True)),
    "argmax of few": (FEW, lambda g, x: ops.argmax(x, axis=1)),
    "cumsum of few": (FEW, lambda g, x: ops.cumsum(x, axis=1)),
    "max pool gradient": (IMAGES, lambda g, x: max_pool_grad(g, x, 3, **WINDOW)),
    "max pool gradient of planes": (PLANES, lambda g, x: max_pool_grad(g, x, 2, **{**WINDOW, "strides": (2, 2)})),
    "avg pool gradient": (IMAGES, avg_pool_grad),
    "resample": (IMAGES, lambda g, x: resampled(g, x, 2)),
    "resample of rows": (ROWS, lambda g, x: resampled(g, x, 1)),
    "resample gradient": (IMAGES, lambda g, x: resample_grad(g, x, 2)),
    "conv gradient": (IMAGES, conv_grad),
    "attention of long rows": ((8, 1, 128, 64), lambda g, x: attention(g, x)[0]),
    "attention gradient of q": (HEADS, lambda g, x: attention_grad(g, x, 0)),
    "attention gradient of k": (HEADS, lambda g, x: attention_grad(g, x, 1)),
    "attention gradient of v": (HEADS, lambda g, x: attention_grad(g, x, 2)),
    "attention in bf16": (HEADS, lambda g, x: attention(g, x)[0], "bf16"),
    "attention in tf32": (HEADS, lambda g, x: attention(g, x)[0], "tf32"),
    "attention gradient of q in bf16": (HEADS, lambda g, x: attention_grad(g, x, 0), "bf16"),
    "attention gradient of k in bf16": (HEADS, lambda g, x: attention_grad(g, x, 1), "bf16"),
    "attention gradient of v in tf32": (HEADS, lambda g, x: attention_grad(g, x, 2), "tf32"),
    "sgd": (ROWS, lambda g, x: optimizer(g, x, ops.sgd_step, 0, 1, [0.1, 0.01])),
    "velocity of sgd": (ROWS, lambda g, x: optimizer(g, x, ops.sgd_step, 1, 1, [0.1, 0.01])),
    "adamw": (ROWS, lambda g, x: optimizer(g, x, ops.adamw_step, 0, 2, [0.1, 0.01, 0.9, 0.8])),
    "dropout of nothing": (ROWS, lambda g, x: ops.dropout(x, g.constant(np.uint64([3, 4])), ratio=0.0)),
    "lstm": (ROWS, lambda g, x: recurrent(g, x, ops.lstm, 4)),
    "gates of lstm": (ROWS, lambda g, x: recurrent(g, x, ops.lstm, 4, 3)),
    "gru": ((8, 768), lambda g, x: recurrent(g, x, ops.gru, 3)),
    "lstm gradient": (ROWS, lambda g, x: recurrent_grad(g, x, ops.lstm_grad, 4)),
    "gru gradient": (ROWS, lambda g, x: recurrent_grad(g, x, ops.gru_grad, 3)),
    "rnn gradient": (ROWS, lambda g, x: recurrent_grad(g, x, ops.rnn_grad, 1)),
    "topk": (ROWS, lambda g, x: first(g, ops.topk, x, k=5, axis=1)),
    "indices of topk": (ROWS, lambda g, x: result(g, 1, ops.topk, x, k=5, axis=1)),
    "topk of columns": ((8, 16, 4, 4), lambda g, x: first(g, ops.topk, x, k=3, axis=1)),
    "sort": (LONG, lambda g, x: first(g, ops.topk, x, k=5000, axis=1)),
    "slice gradient": (ROWS, slice_grad),
    "scatter": (ROWS, scattered),
    "scatter that adds": (ROWS, lambda g, x: scattered(g, x, reduction="add")),
    "scatter within rows": (ROWS, scattered_within_rows),
    "scatter of rows": (ROWS, scattered_rows),
    "scatter of rows that adds": (ROWS, lambda g, x: scattered_rows(g, x, reduction="add")),
    "gather by coordinates": (ROWS, lambda g, x: ops.gather_nd(x, last_rows(g, x))),
    "index add": (ROWS, index_add),
}  # fmt: skip


def computed(case, x, rows, devices, registry, precision="float32"):
    """The last rows of what the case gives of so many rows, x at their end."""
    g = df.GraphBuilder()
    small = g.input("x", df.float32, x.shape)
    before = rows - x.shape[0]
    y = case(g, ops.pad(small, 0.0, pads=(before,) + (0,) * (2 * x.ndim - 1)) if before else small)
    shape = y.type.shape
    starts = (shape[0] - LAST,) + (0,) * (len(shape) - 1)
    last = ops.slice(y, starts=starts, stops=shape, steps=(1,) * len(shape))
    g.output("y", ops.cast(last, to=df.float32) if y.type.dtype != df.float32 else ops.abs(last))
    session = df.Session(df.Model(g.build()), devices=devices, registry=registry, precision=precision)
    return session.run(x)["y"]


def random_numbers(registry):
    """The last ones of so many that their counter takes more than 32 bits, and what they should be."""
    rows, key = 2**24 + LAST, np.array([2**33 + 5, 7], np.uint64)
    g = df.GraphBuilder()
    y = ops.random_uniform(g.constant(key), shape=(rows, 1024), stream=3)
    g.output("y", ops.slice(y, starts=(rows - LAST, 0), stops=(rows, 1024), steps=(1, 1)))
    blocks = np.arange((rows - LAST) * 256, rows * 256, dtype=np.uint64)
    counter = np.stack([blocks & 0xFFFFFFFF, blocks >> 32, np.full_like(blocks, 3), np.full_like(blocks, 7)], 1)
    words = philox(counter.astype(np.uint32), (5, 2)).reshape(LAST, 1024)
    return df.Session(df.Model(g.build()), devices=["cuda"], registry=registry).run({})["y"], (words >> 8) * 2.0**-24


def main(names):
    registry = load()
    for name in names or CASES:
        if name == RANDOM:
            np.testing.assert_array_equal(*random_numbers(registry))
            sys.stdout.write(f"{name}\n")
            continue
        shape, case, *rounded = {**CASES, **FAMILIES}[name]
        x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
        row = prod(shape[1:])
        if name.endswith("short rows"):
            row = 1024  # of the result
        elif len(shape) == 2 and row <= 2:
            row = 1  # more rows than a grid has blocks
        rows = (2**31 + 2**20) // row
        found = computed(case, x, rows, ["cuda"], registry, *rounded)
        expected = computed(case, x, shape[0], ["cuda" if rounded else "numpy"], registry, *rounded)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5, err_msg=name)
        sys.stdout.write(f"{name}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
