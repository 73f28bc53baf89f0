"""Reshape, transpose and reshape that only move the last axes are one transpose; others stay."""

from __future__ import annotations

import numpy as np
import pytest

import dataflow as df
from dataflow.passes.merged_transpose import transpose_without_merging

ops = df.ops
X = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)


def graph_of(merged: tuple[int, ...], perm: tuple[int, ...], split: tuple[int, ...], both: bool = False) -> df.Graph:
    g = df.GraphBuilder("keys")
    x = ops.neg(g.input("x", df.float32, X.shape))
    inner = ops.transpose(ops.reshape(x, shape=merged), perm=perm)
    g.output("y", ops.exp(ops.reshape(inner, shape=split)))
    if both:
        g.output("z", ops.exp(inner))
    return g.build()


@pytest.mark.parametrize(
    ("merged", "perm", "split", "ops_after"),
    [
        ((6, 4, 5), (0, 2, 1), (2, 3, 5, 4), ["neg", "transpose", "exp"]),
        ((24, 5), (0, 1), (2, 3, 4, 5), ["neg", "transpose", "exp"]),
        ((6, 4, 5), (0, 2, 1), (3, 2, 5, 4), None),  # split otherwise
        ((6, 4, 5), (1, 0, 2), (4, 2, 3, 5), None),  # they don't lead behind it
        ((2, 3, 20), (0, 2, 1), (2, 4, 5, 3), None),  # others are merged
        ((2, 3, 4, 5), (0, 1, 3, 2), (2, 3, 5, 4), None),  # nothing is merged
    ],
)
def test_merged_axes_that_are_split_alike(
    merged: tuple[int, ...], perm: tuple[int, ...], split: tuple[int, ...], ops_after: list[str] | None
) -> None:
    graph = graph_of(merged, perm, split)
    made = transpose_without_merging(graph)
    assert [node.op.name for node in made.nodes] == (ops_after or [node.op.name for node in graph.nodes])
    expected = np.exp((-X).reshape(merged).transpose(perm).reshape(split))
    np.testing.assert_array_equal(df.Session(made, devices=["numpy"]).run({"x": X})["y"], expected)


def test_what_else_is_read_of_it_stays() -> None:
    made = transpose_without_merging(graph_of((6, 4, 5), (0, 2, 1), (2, 3, 5, 4), both=True))
    found = df.Session(made, devices=["numpy"]).run({"x": X})
    inner = (-X).reshape(6, 4, 5).transpose(0, 2, 1)
    np.testing.assert_array_equal(found["z"], np.exp(inner))
    np.testing.assert_array_equal(found["y"], np.exp(inner.reshape(2, 3, 5, 4)))


def test_keys_aren_t_copied_before_attention() -> None:
    """As PyTorch exports it: queries, keys and values are views of one product."""
    random = np.random.default_rng(0)
    g = df.GraphBuilder("attention")
    x = g.input("x", df.float32, (2, 6, 16))
    w = g.parameter("w", random.standard_normal((16, 48)).astype(np.float32))
    qkv = ops.transpose(ops.reshape(ops.matmul(x, w), shape=(2, 6, 3, 4, 4)), perm=(2, 0, 3, 1, 4))
    q, k, v = (
        ops.reshape(
            ops.slice(qkv, starts=(i, 0, 0, 0, 0), stops=(i + 1, 2, 4, 6, 4), steps=(1,) * 5), shape=(2, 4, 6, 4)
        )
        for i in range(3)
    )
    k = ops.reshape(ops.transpose(ops.reshape(k, shape=(8, 6, 4)), perm=(0, 2, 1)), shape=(2, 4, 4, 6))
    y = ops.matmul(ops.softmax(ops.mul(ops.matmul(q, k), 0.5), axis=-1), v)
    g.output("y", ops.reshape(ops.transpose(y, perm=(0, 2, 1, 3)), shape=(2, 6, 16)))
    model = df.Model(g.build())
    batch = {"x": random.standard_normal((2, 6, 16)).astype(np.float32)}
    batch["labels"] = random.standard_normal((2, 6, 16)).astype(np.float32)
    losses = {}
    for fuse in (True, False):
        with df.Trainer(model.copy(), "mse", fuse=fuse, devices=["cpu"]) as trainer:
            losses[fuse] = [trainer.step(batch) for _ in range(3)]
            plan = trainer.plans()["step"]
        names = [step.node.op.name for segment in plan.segments for step in segment.steps]
        if fuse:
            assert {"attention", "attention_grad"} <= {*names}
            assert "copy" not in names[: names.index("attention")]
    np.testing.assert_allclose(losses[True], losses[False], rtol=1e-5)
