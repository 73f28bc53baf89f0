"""Kernels that read bfloat16, and round what they write, give the bits of casts around them."""

from __future__ import annotations

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from tests.support import ops_of

BF16 = df.bfloat16


def rows_of(x):
    return np.linspace(-1, 2, x.type.sizes[-1], dtype=np.float32)


def norm(g, x, dy):
    node = g.add(ops.layer_norm, (x, rows_of(x), rows_of(x)[::-1].copy()), {"axis": -1})
    return [("y", node.outputs[0])]


def norm_grad(g, x, dy):
    rows = x.type.sizes[:-1]
    mean, inverse = (np.linspace(low, 2, int(np.prod(rows)), dtype=np.float32).reshape(rows) for low in (-1, 1))
    node = g.add(ops.layer_norm_grad, (dy, x, rows_of(x), mean, inverse), {"axis": -1})
    return [(name, value) for name, value in zip(("+dx", "dscale", "dbias"), node.outputs, strict=True)]


def gelu(g, x, dy):
    return [("y", ops.gelu(x, approximate="tanh" if x.type.sizes[-1] % 2 else "none"))]


def gelu_sums(g, x, dy):
    dx, sums = ops.gelu_grad_sums(dy, x)
    return [("dx", dx), ("+sums", sums)]


def sliced(x, axis, start, stop):
    starts, stops = [0] * x.type.rank, [*x.type.sizes]
    starts[axis], stops[axis] = start, stop
    return ops.slice(x, starts=tuple(starts), stops=tuple(stops), steps=(1,) * x.type.rank)


def sums(g, x, dy):
    axes = {"+rows": (-1,), "+columns": tuple(range(x.type.rank - 1)), "+all": tuple(range(x.type.rank))}
    swapped = ops.transpose(x, perm=(*range(x.type.rank)[::-1],))
    found = [(name, ops.reduce_sum(x, axes=over, keepdims=False)) for name, over in axes.items()]
    return [*found, ("+swapped", ops.reduce_sum(swapped, axes=(0,), keepdims=True))]


def attention_of(x, rows):
    """Operands that are slices of one value."""
    batch, n, _, heads, size = x.type.sizes
    q, k, v = (
        ops.transpose(ops.reshape(one, shape=(batch, n, heads, size)), perm=(0, 2, 1, 3))
        for one in (sliced(x, 2, i, i + 1) for i in range(3))
    )
    q = sliced(q, 2, 0, rows)
    mask = np.where(np.tri(rows, n, dtype=bool), 0, -np.inf).astype(np.float32)
    return q, ops.transpose(k, perm=(0, 1, 3, 2)), v, mask


def attention(g, x, dy, rows=40, **how):
    node = g.add(ops.attention, attention_of(x, rows), {"scale": 0.3, **how})
    return [("y", node.outputs[0]), ("+logsum", node.outputs[1])]


def few_rows(g, x, dy):
    return attention(g, x, dy, rows=3)


def transposed(g, x, dy):
    return attention(g, x, dy, transposed=True)


def cleared(g, x, dy):
    q, kt, v, mask = attention_of(x, 40)
    mask[5:9] = -np.inf
    return [("y", g.add(ops.attention, (q, kt, v, mask), {"scale": 0.3, "safe": True}).outputs[0])]


def attention_grad(g, x, dy):
    batch, n, _, heads, size = x.type.sizes
    operands = attention_of(x, n)
    y = ops.cast(g.input("before", BF16, (batch, heads, n, size)), to=df.float32)
    logsum = np.full((batch, heads, n), 3, np.float32)
    found = ops.attention_grad(dy, y, logsum, *operands, scale=0.3)
    rows_first = [ops.transpose(v, perm=(0, 2, 1, 3)) for v in found]
    columns = [ops.reshape(v, shape=(batch, n, 1, heads, size)) for v in rows_first]
    return [("dx", ops.concat(*columns, axis=2))]


def added_norm_grad(g, x, dy):
    rows = x.type.sizes[:-1]
    mean, inverse = (np.linspace(low, 2, int(np.prod(rows)), dtype=np.float32).reshape(rows) for low in (-1, 1))
    long = x.type.sizes[-1] > 8192  # to which nothing is added
    addend = None if long else ops.cast(g.input("addend", BF16, x.type.sizes), to=df.float32)
    node = g.add(ops.layer_norm_grad, (dy, x, rows_of(x), mean, inverse, addend), {"axis": -1})
    return [("dx", node.outputs[0]), *zip(("+dscale", "+dbias"), node.outputs[1:], strict=True)]


def norm_sums(g, x, dy):
    rows = x.type.sizes[:-1]
    mean, inverse = (np.linspace(low, 2, int(np.prod(rows)), dtype=np.float32).reshape(rows) for low in (-1, 1))
    addend = ops.cast(g.input("addend", BF16, x.type.sizes), to=df.float32)
    node = g.add(ops.layer_norm_grad_sums, (dy, x, rows_of(x), mean, inverse, addend), {"axis": -1})
    return [("dx", node.outputs[0]), *zip(("+sums", "+dscale", "+dbias"), node.outputs[1:], strict=True)]


def rows_added(g, x, dy):
    indices = np.arange(x.type.sizes[0]) % 4
    return [("+y", ops.index_add(indices, dy, size=7, axis=0))]


ROWS = [(6, 768), (40, 36), (5, 9), (3, 1030), (200, 1024), (2, 9000)]
HEADS = [(2, 70, 3, 3, 8), (1, 40, 3, 2, 7), (1, 66, 3, 1, 72)]
CASES = [(op, shape) for op in (norm, norm_grad, added_norm_grad, gelu, gelu_sums, sums, rows_added) for shape in ROWS]
CASES += [(norm_sums, shape) for shape in ROWS if shape[-1] < 4096]
CASES += [(op, shape) for op in (attention, few_rows, transposed, cleared, attention_grad) for shape in HEADS]


# Only attention has products, whose precision counts.
TRIED = [(op, shape, p) for op, shape in CASES for p in ("float32", "bf16") if p == "float32" or shape in HEADS]


# And of gradients those of which what they are gradients by is stored so too.
STORED = {
    gelu_sums: (True, False),
    attention_grad: (True, False),
    added_norm_grad: (True,),
    norm_sums: (True,),
    rows_added: (True,),
}
TRIED = [(*row, stored) for row in TRIED for stored in STORED.get(row[0], (False,))]


@pytest.mark.parametrize(
    ("op", "shape", "precision", "stored"),
    TRIED,
    ids=[f"{op.__name__}-{'x'.join(map(str, s))}-{p}{'-stored' * d}" for op, s, p, d in TRIED],
)
def test_the_bits_are_those_of_casts(op, shape, precision, stored, cuda):
    g = df.GraphBuilder()
    x = ops.cast(g.input("x", BF16, shape), to=df.float32)
    slopes = (shape[0], shape[3], shape[1], shape[4]) if shape in HEADS else shape
    dy = None
    if op in (norm_grad, *STORED):
        dy = g.input("dy", BF16 if stored else df.float32, slopes)
        dy = ops.cast(dy, to=df.float32) if stored else dy
    for name, value in op(g, x, dy):
        g.output(name.lstrip("+"), value if name[0] == "+" else ops.cast(value, to=BF16))
    graph, random = g.build(), np.random.default_rng(3)
    feeds = {v.name: random.standard_normal(v.type.sizes).astype(v.type.dtype.numpy) for v in graph.inputs}
    how = {"devices": ["cuda"], "registry": cuda, "precision": precision}
    fused, plain = df.Session(graph, **how), df.Session(graph, fuse=False, **how)
    expected = plain.run(feeds)
    assert "cast" in ops_of(plain.plan())
    for name, found in fused.run(feeds).items():
        assert found.tobytes() == expected[name].tobytes(), name
    left = ops_of(fused.plan()).count("cast")
    assert left == (2 if op is norm_grad else 0)  # of scale and bias
