"""Cross entropy and its gradient become one op, where that reads nothing that comes of the loss."""

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.passes.training.loss_gradients import join_loss_gradients
from dataflow_numpy.evaluate import evaluate
from tests.passes.test_round_products import normal
from tests.support import targets_of

APART = ("softmax_cross_entropy", "softmax_cross_entropy_grad")
JOINED = "softmax_cross_entropy_with_grad"
FEEDS = {"x": normal(6, 5), "labels": np.array([0, 4, -100, 2, 1, 3]), "scale": normal(6)}


def graph(factor="given", *, read=(), smoothing=0.0, stages=False):
    """A loss over 5 classes and its gradient.

    Args:
        factor: of the gradient: "given", or what comes of the "loss" itself.
        read: what else reads the logits: before the "loss", "behind" it, or the "gradient" of something.
        smoothing: of labels.
        stages: loss and gradient are those of two programs.
    """
    g = df.GraphBuilder()
    x, labels, scale = (
        g.input("x", df.float32, (6, 5)),
        g.input("labels", df.int64, (6,)),
        g.input("scale", df.float32, (6,)),
    )
    logits = ops.tanh(x)
    how = {"axis": 1, "ignore_index": -100, "label_smoothing": smoothing, "classes": 0}
    loss, *sums = g.add(ops.softmax_cross_entropy, (logits, labels), how).outputs
    g.output("loss", ops.reduce_sum(loss, axes=(0,), keepdims=False))
    if "view" in read:
        g.output("best", ops.argmax(ops.reshape(logits, shape=(3, 2, 5)), axis=2, keepdims=False))
    if "loss" in read:
        g.output("later", ops.mul(logits, ops.reshape(loss, shape=(6, 1))))
    forward = frozenset(g.outputs())
    if "gradient" in read:
        g.output("dx", ops.exp(logits))
    dloss = ops.mul(scale if factor == "given" else loss, 0.5)
    dlogits = ops.softmax_cross_entropy_grad(dloss, logits, labels, *sums, **how)
    g.output("dlogits", ops.neg(dlogits))
    backward = frozenset(g.outputs()) - forward
    return g.build({"forward": forward, "backward": backward} if stages else {})


@pytest.mark.parametrize(
    "how", [{}, {"read": ("view",)}, {"smoothing": 0.1}, {"stages": True, "read": ("view",)}], ids=str
)
def test_both_are_one_op(how):
    before = graph(**how)
    made = join_loss_gradients(before, targets_of(*APART, JOINED))
    made.check()
    found = [node.op.name for node in made.nodes]
    assert JOINED in found and not {*APART} & {*found}
    if "view" in how.get("read", ()):
        assert found.index("argmax") < found.index(JOINED)  # the gradient may lie over the logits
    expected, results = evaluate(before, FEEDS), evaluate(made, FEEDS)
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array, err_msg=name)


@pytest.mark.parametrize(
    "how",
    [{"factor": "loss"}, {"read": ("loss",)}, {"stages": True, "read": ("gradient",)}],
    ids=["factor of the loss", "logits that are read with the loss", "logits that are read by another program"],
)
def test_others_stay_apart(how):
    before = graph(**how)
    assert join_loss_gradients(before, targets_of(*APART, JOINED)) is before


def test_devices_without_a_kernel_keep_both():
    before = graph()
    assert join_loss_gradients(before, targets_of(*APART)) is before
