"""Sums of the gradients of attention over batch and rows are computed with these, and others stay."""

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.training.attention_sums import sum_with_attention_gradients
from tests.support import graph_of, targets_of

ops = df.ops
BATCH, HEADS, ROWS, SIZE = 2, 3, 5, 4
SUMMING = targets_of("attention_grad", "attention_grad_sums", "reduce_sum", "concat", "mul")
OPERANDS = [
    np.random.default_rng(seed).standard_normal((BATCH, HEADS, ROWS, SIZE)).astype(np.float32) for seed in range(3)
]


def results(build):
    """The ops after the pass, once the results were compared with those of the graph before it."""

    def gradients(g, q, k, v):
        logsum = np.full((BATCH, HEADS, ROWS), 2, np.float32)
        return build(*ops.attention_grad(v, q, logsum, q, ops.transpose(k, perm=(0, 1, 3, 2)), v, scale=0.5))

    graph, feeds = graph_of(gradients, *OPERANDS)
    made = sum_with_attention_gradients(graph, SUMMING)
    after, before = (df.Session(df.Model(g), devices=["numpy"], fold=False, fuse=False) for g in (made, graph))
    np.testing.assert_allclose(after.run(feeds)["y"], before.run(feeds)["y"], rtol=1e-5, atol=1e-5)
    return [node.op.name for node in made.nodes]


def rows_first(value):
    return ops.transpose(value, perm=(0, 2, 1, 3))


def flat(value):
    return ops.reshape(rows_first(value), shape=(BATCH, ROWS, HEADS * SIZE))


def joint(dq, dk, dv):
    """As exporters of one product for all three leave it."""
    columns = [ops.reshape(rows_first(one), shape=(BATCH, ROWS, 1, HEADS, SIZE)) for one in (dq, dk, dv)]
    return ops.reshape(ops.concat(*columns, axis=2), shape=(BATCH, ROWS, 3 * HEADS * SIZE))


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("of", [joint, lambda dq, dk, dv: ops.concat(flat(dv), flat(dq), axis=-1)])
def test_sums_of_joined_results(of, keepdims):
    found = results(lambda *three: ops.reduce_sum(of(*three), axes=(0, 1), keepdims=keepdims))
    assert found.count("attention_grad_sums") == 1
    assert not {"reduce_sum", "attention_grad"} & {*found}


def test_sums_of_each():
    def build(dq, dk, dv):
        sums = [ops.reduce_sum(flat(value), axes=(-2, 0), keepdims=0) for value in (dq, dk)]
        return ops.mul(ops.mul(*sums), ops.reduce_sum(flat(dv), axes=(0, 1), keepdims=1))

    found = results(build)
    assert found.count("attention_grad_sums") == 1
    assert "reduce_sum" not in found


@pytest.mark.parametrize(
    "build",
    [
        lambda dq, dk, dv: ops.reduce_sum(joint(dq, dk, dv), axes=(1,), keepdims=0),  # the batch is left
        lambda dq, dk, dv: ops.reduce_sum(dq, axes=(0, 1), keepdims=0),  # over heads
        lambda dq, dk, dv: ops.reduce_sum(dq, axes=(0, 2), keepdims=0),  # its axes are not the first
        lambda dq, dk, dv: ops.reduce_sum(ops.concat(dk, dv, axis=0), axes=(0, 1), keepdims=0),  # along a summed axis
        lambda dq, dk, dv: ops.reduce_sum(ops.mul(flat(dq), flat(dk)), axes=(0, 1), keepdims=0),  # of a product
        lambda dq, dk, dv: ops.reduce_sum(  # size before heads
            ops.transpose(dq, perm=(0, 2, 3, 1)), axes=(0, 1), keepdims=0
        ),
        lambda dq, dk, dv: ops.reduce_sum(  # a reshape that mixes rows and heads
            ops.reshape(dq, shape=(BATCH, ROWS, HEADS * SIZE)), axes=(0, 1), keepdims=0
        ),
    ],
)
def test_what_does_not_fit_stays(build):
    assert "attention_grad_sums" not in results(build)
