"""Gradients of attention are computed where they lie in a concatenated result, rounded where only that is read."""

from __future__ import annotations

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.planning.verify import check_plan
from dataflow_numpy.evaluate import evaluate
from tests.support import ops_of

ERRORS = {"float32": 1e-5, "tf32": 2e-3, "bf16": 1.5e-2}  # relative to the largest of a result
PERMS = {
    "rows of heads": (0, 2, 1, 3),  # (batch, rows, heads, size)
    "heads": (0, 1, 2, 3),
    "columns": (0, 1, 3, 2),
}


def gradients(batch, heads, m, d):
    """A graph with the gradients of attention, and its inputs."""
    g = df.GraphBuilder()
    names = ("q", "k", "v", "dy")
    q, k, v, dy = (g.input(name, df.float32, (batch, heads, m, d)) for name in names)
    operands = (q, ops.transpose(k, perm=(0, 1, 3, 2)), v)
    y, logsum = g.add(ops.attention, operands, {"scale": 0.3}).outputs
    found = ops.attention_grad(dy, y, logsum, *operands, scale=0.3)
    random = np.random.default_rng(3)
    return g, found, {name: random.standard_normal((batch, heads, m, d)).astype(np.float32) for name in names}


def compared(g, feeds, precision, cuda, error):
    """The ops that ran, once the results were compared with those of float64."""
    graph = g.build()
    session = df.Session(graph, devices=["cuda"], registry=cuda, precision=precision)
    for _ in range(2):
        for name, array in session.run(feeds).items():
            expected = evaluate(graph, feeds, dtype=np.float64)[name].astype(np.float64)
            assert np.abs(array.astype(np.float64) - expected).max() <= error * np.abs(expected).max(), name
    check_plan(session.plan())
    return ops_of(session.plan())


@pytest.mark.parametrize("size", [8, 6, 7, 100])
@pytest.mark.parametrize("perm", PERMS.values(), ids=PERMS)
@pytest.mark.parametrize("precision", ERRORS)
def test_slices_of_one_result_are_written_without_a_copy(precision, perm, size, cuda):
    g, found, feeds = gradients(2, 3, 70, size)
    shown = [ops.transpose(v, perm=perm) for v in found]
    shape = shown[0].type.sizes
    columns = [ops.reshape(v, shape=(*shape[:2], 1, *shape[2:])) for v in shown]
    g.output("all", ops.concat(*columns, axis=2))
    copied = np.prod(shape[2:]) % 4 != 0  # slices that don't begin at 16 bytes
    assert ("concat" in compared(g, feeds, precision, cuda, ERRORS[precision])) == copied


def test_what_something_else_reads_is_copied(cuda):
    """It would have to be read with gaps, or moved before it is complete."""
    g, found, feeds = gradients(1, 2, 20, 8)
    g.output("all", ops.concat(*(ops.transpose(v, perm=(0, 2, 1, 3)) for v in found), axis=2))
    g.output("dk", ops.relu(found[1]))
    assert "concat" in compared(g, feeds, "float32", cuda, 1e-5)


@pytest.mark.parametrize("size", [8, 7])
@pytest.mark.parametrize("precision", ERRORS)
def test_what_is_only_rounded_is_stored_so(precision, size, cuda):
    g, found, feeds = gradients(2, 3, 70, size)
    for name, value in zip(("dq", "dk", "dv"), found, strict=True):
        g.output(name, ops.cast(value, to=df.bfloat16))
    assert "cast" not in compared(g, feeds, precision, cuda, max(4e-3, ERRORS[precision]))
