"""Batch norms in training and relus behind them: one op wherever nothing else reads what is between."""

from typing import Any

import numpy as np
import pytest

import dataflow as df
from dataflow import ops


def network(read: str = "") -> df.Model:
    """Two convolutions, each with a batch norm and a relu; ``read``: what else reads the first norm."""
    random = np.random.default_rng(0)
    g = df.GraphBuilder("network")
    h = g.input("x", df.float32, (8, 3, 9, 9))
    for layer, width in enumerate((3, 6)):
        kernel = g.parameter(f"kernel{layer}", random.standard_normal((6, width, 3, 3)).astype(np.float32) / 3)
        h = ops.conv(h, kernel, None, strides=(1, 1), pads=(1, 1, 1, 1), dilations=(1, 1), groups=1)
        scale, shift = (g.parameter(f"{n}{layer}", random.standard_normal(6).astype(np.float32)) for n in "st")
        running = [
            g.initializer(f"{n}{layer}", np.ones(6, np.float32) + i, role="statistic") for i, n in enumerate("mv")
        ]
        normal = ops.batch_norm(h, scale, shift, *running, epsilon=1e-5)
        h = ops.relu(normal)
        if layer == 0 and read == "node":
            h = ops.add(h, ops.tanh(normal))
        elif layer == 0 and read == "output":
            g.output("between", normal)
    g.output("y", ops.reduce_mean(h, axes=(2, 3), keepdims=False))
    return df.Model(g.build())


def trained(read: str = "", **options: Any) -> tuple[list[float], dict[str, np.ndarray], list[str], int]:
    """Losses, what changed, the ops of a step and the bytes that backward reads of forward."""
    random = np.random.default_rng(1)
    batch = {"x": random.standard_normal((8, 3, 9, 9)).astype(np.float32), "labels": random.integers(0, 6, 8)}
    options = {"output": "y", "batch_norm": "update", "memory": "1x", "devices": ["cpu"], **options}
    with df.Trainer(network(read), **options) as trainer:
        losses = [trainer.step(batch) for _ in range(3)]
        plan = trainer.plans()["step"]
        names = [step.node.op.name for segment in plan.segments for step in segment.steps]
        return losses, trainer.programs.state(), names, plan.ranges["forward"].alive_bytes


def test_relus_behind_batch_norms_train_as_by_themselves_and_need_less_memory() -> None:
    losses, state, names, kept = trained()
    assert names.count("batch_norm_train_relu") == names.count("batch_norm_train_relu_grad") == 2
    assert "relu" not in names and "relu_grad" not in names
    apart, expected, found, taken = trained(fuse=False)
    assert "batch_norm_train_relu" not in found and found.count("relu") == 2
    np.testing.assert_allclose(losses, apart, rtol=1e-5)
    assert state.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(state[name], array, rtol=2e-3, atol=2e-5, err_msg=name)
    # The last relu's result was read by its gradient alone; labels, largest logits and logarithms by that of the loss.
    assert kept == taken - 8 * 6 * 81 * 4 - 8 * (8 + 2 * 4)


@pytest.mark.parametrize("read", ["node", "output"])
def test_a_batch_norm_that_others_read_keeps_its_result(read: str) -> None:
    names = trained(read)[2]
    assert names.count("batch_norm_train") == names.count("batch_norm_train_relu") == 1
