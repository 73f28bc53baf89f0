"""Logits of an odd number of classes are computed with more of them, which get no probability and no gradient."""

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.passes.rounding import products
from dataflow.passes.rounding.classes import pad_classes
from dataflow_numpy.evaluate import evaluate
from tests.passes.test_round_products import normal, targets


@pytest.fixture(autouse=True)
def smallest(monkeypatch):
    monkeypatch.setattr(products, "_LEAST_WORK", 1)
    monkeypatch.setattr(products, "_LEAST_SIDE", 1)


def head(classes=13, *, stored_transposed=True, smoothing=0.0, axis=2, ignored=-100):
    """The loss of a model over words, with its gradients by the weight and by what is multiplied."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, 3, 8))
    labels = g.input("labels", df.int64, (2, 3))
    stored = normal(classes, 8)
    w = g.parameter("w", stored if stored_transposed else stored.T.copy())
    given = ops.transpose(w, perm=(1, 0)) if stored_transposed else w
    logits = ops.matmul(x, given)
    how = {"axis": axis, "label_smoothing": smoothing, "ignore_index": ignored}
    loss, *sums = g.add(ops.softmax_cross_entropy, (logits, labels), how).outputs
    dlogits = ops.softmax_cross_entropy_grad(ops.mul(loss, 0.25), logits, labels, *sums, **how)
    flat, rows = ops.reshape(dlogits, shape=(6, classes)), ops.reshape(x, shape=(6, 8))
    g.output("loss", loss)
    g.output("best", ops.argmax(logits, axis=2, keepdims=False))
    g.output("dx", ops.matmul(dlogits, ops.transpose(given, perm=(1, 0))))
    if stored_transposed:
        g.output("dw", ops.matmul(ops.transpose(flat, perm=(1, 0)), rows))
    else:
        g.output("dw", ops.matmul(ops.transpose(rows, perm=(1, 0)), flat))
    return g.build()


@pytest.mark.parametrize(
    "how",
    [{}, {"stored_transposed": False}, {"smoothing": 0.1}, {"ignored": 14}],
    ids=["transposed", "as it is", "smoothed labels", "ignored behind"],
)
def test_all_results_are_those_of_the_classes_that_there_are(how):
    graph = head(**how)
    made = pad_classes(graph, targets())
    made.check()
    multiplied = [node for node in made.nodes if node.op in (ops.matmul, ops.matmul_bias)]
    assert len(multiplied) == 3
    for node in multiplied:
        assert not any(size == 13 for value in (*node.inputs, *node.outputs) for size in value.type.sizes)
    feeds = {"x": normal(2, 3, 8), "labels": np.array([[0, 12, 5], [how.get("ignored", -100), 7, 1]])}
    expected, found = evaluate(graph, feeds), evaluate(made, feeds)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)
        assert found[name].shape == array.shape


def test_the_label_of_a_padded_class_is_still_none():
    made = pad_classes(head(), targets())
    with pytest.raises(df.InputError, match=r"label 13 .* outside \[0, 13\)"):
        evaluate(made, {"x": normal(2, 3, 8), "labels": np.array([[0, 13, 5], [1, 7, 1]])})


def test_an_even_number_stays_as_it_is():
    graph = head(classes=16)
    assert pad_classes(graph, targets()) is graph


def test_a_device_without_products_of_rounded_operands_keeps_its_classes():
    graph = head()
    assert pad_classes(graph, targets(kernel=False)) is graph
    assert pad_classes(graph, targets("numpy", kernel=False)) is graph
