"""An odd number of classes on a card: columns that its products have beyond them are none of the loss."""

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.passes.rounding import products
from tests.cuda.test_products import vendor as vendor

CLASSES, ROWS = 13, 16


@pytest.fixture(autouse=True)
def smallest(monkeypatch):
    monkeypatch.setattr(products, "_LEAST_WORK", 1)
    monkeypatch.setattr(products, "_LEAST_SIDE", 1)


def trainer(devices, **options):
    random = np.random.default_rng(2)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (ROWS, 8))
    v, w = (g.parameter(n, random.standard_normal((m, 8)).astype(np.float32)) for n, m in (("v", 8), ("w", CLASSES)))
    hidden = ops.tanh(ops.matmul(x, ops.transpose(v, perm=(1, 0))))
    g.output("y", ops.matmul(hidden, ops.transpose(w, perm=(1, 0))))
    loss = df.losses.CrossEntropy(label_smoothing=0.1)
    return df.Trainer(df.Model(g.build()), loss, optimizer=df.optim.SGD(lr=0.1), devices=devices, **options)


def batch(labels=CLASSES):
    random = np.random.default_rng(3)
    return {"x": random.standard_normal((ROWS, 8)).astype(np.float32), "labels": random.integers(0, labels, ROWS)}


@pytest.mark.parametrize(("precision", "near"), [("tf32", 2e-3), ("bf16", 2e-2)])
def test_training_is_that_of_the_classes_that_there_are(precision, near, vendor):
    registry, _ = vendor
    with trainer(["cpu"]) as exact, trainer(["cuda", "cpu"], registry=registry, precision=precision) as padded:
        expected = [float(exact.step(batch())) for _ in range(4)]
        np.testing.assert_allclose([float(padded.step(batch())) for _ in range(4)], expected, rtol=near)
        steps = [step for plan in padded.plans().values() for segment in plan.segments for step in segment.steps]
        given = [step.inputs[1].type.sizes for step in steps if step.node.op is ops.softmax_cross_entropy_with_grad]
        assert given == [(ROWS, 16)]
        for name, array in exact.programs.state().items():
            np.testing.assert_allclose(padded.programs.state()[name], array, atol=near, err_msg=name)


def test_a_label_behind_the_classes_is_refused_by_their_number(vendor):
    registry, _ = vendor
    given = batch()
    given["labels"][5] = CLASSES
    with (
        trainer(["cuda", "cpu"], registry=registry, precision="bf16") as padded,
        pytest.raises(df.InputError, match=rf"softmax_cross_entropy.*\b{CLASSES}\b.*\b{CLASSES}\b"),
    ):
        padded.step(given)
