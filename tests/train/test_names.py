"""Losses, optimizers, metrics, schedules and callbacks by name, from plugins and from modules."""

import re

import numpy as np
import pytest

import dataflow as df
from dataflow import ops
from dataflow.plugin import hookimpl
from dataflow.plugin.hookspecs import Named
from dataflow.plugin.registry import load
from dataflow.train.losses import Target
from dataflow.train.names import CORE_ONLY, Names


class Absolute:
    """|output - label|."""

    skips = ()
    metrics = ("largest",)

    def target(self, output, labels):
        return Target(output, labels)

    def elements(self, target, output, labels):
        difference = ops.abs(ops.sub(output, labels))
        return difference, ops.add(ops.mul(difference, 0.0), 1.0)


class Largest:
    """The mean of the batches' largest outputs."""

    name = "largest"
    fraction = False

    def sums(self, target, output, labels):
        largest = ops.reduce_max(output, axes=(0, 1), keepdims=0)
        return largest, ops.add(ops.mul(largest, 0.0), 1.0)


class Halving(df.optim.SGD):
    pass


def first_step(step):
    return 1.0 if step == 0 else 0.0


events = []


class Plugin:
    @hookimpl
    def dataflow_losses(self):
        return [Named("absolute", Absolute)]

    @hookimpl
    def dataflow_optimizers(self):
        return [Named("halving", Halving), Named("fixed", Halving(lr=0.25))]

    @hookimpl
    def dataflow_metrics(self):
        return [Named("largest", Largest())]

    @hookimpl
    def dataflow_schedules(self):
        return [Named("first", first_step)]

    @hookimpl
    def dataflow_callbacks(self):
        return [Named("keep", events.append)]


X = np.array([[1.0], [2.0]], np.float32)
BATCH = {"x": X, "labels": 5 * X}


def trainer(loss="absolute", optimizer="halving", **options):
    """A trainer of y = w x from w = 3, in an environment with the plugin."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("B", 1))
    g.output("y", ops.matmul(x, g.parameter("w", np.array([[3.0]], np.float32))))
    return df.Trainer(df.Model(g.build()), loss, optimizer, devices=["numpy"], registry=load([Plugin()]), **options)


def test_names_of_plugins_are_what_they_stand_for():
    made = trainer(metrics=["largest", "mae"])
    assert made.step(BATCH) == pytest.approx(3.0)  # the mean of |3 x - 5 x|
    assert made.model.parameters["w"].array == pytest.approx(3 + 1e-2 * 1.5)
    assert made.evaluate(BATCH)["largest"] == pytest.approx(2 * (3 + 1e-2 * 1.5))


def test_a_loss_of_a_plugin_brings_its_metrics():
    assert set(trainer().evaluate(BATCH)) >= {"loss", "largest"}


def test_a_schedule_and_callbacks_by_name():
    events.clear()
    made = trainer(optimizer=df.optim.SGD(lr=1.0, schedule="first"))
    made.fit(BATCH, epochs=2, batch_size=2, callbacks=["keep"], progress=False)
    assert [event.metrics["lr"] for event in events if event.kind == "step"] == [1.0, 0.0]


def test_a_name_may_stand_for_an_object_that_is_made_already():
    assert trainer(optimizer="fixed").optimizer.lr == 0.25
    names = Names(load([Plugin()]).named)
    assert names.optimizer("halving", lr=0.5).lr == 0.5
    with pytest.raises(df.InputError, match="optimizer 'fixed' is an object already: lr can't be set"):
        names.optimizer("fixed", lr=0.5)
    with pytest.raises(df.InputError, match=r"optimizer 'halving' can't be made with \{'speed': 1\}: .*'speed'"):
        names.optimizer("halving", speed=1)


def test_settings_stand_behind_any_name():
    names = Names(load([Plugin()]).named)
    assert names.loss("cross_entropy:label_smoothing=0.1,class_weights=[1,2]").class_weights == (1.0, 2.0)
    assert names.optimizer("adamw:betas=(0.5,0.9)", lr=0.5) == df.optim.AdamW(lr=0.5, betas=(0.5, 0.9))
    assert names.optimizer("dataflow:optim.SGD:momentum=0.5") == df.optim.SGD(momentum=0.5)
    assert names.schedule("cosine:warmup=3,final=0.1") == df.schedules.Cosine(warmup=3, final=0.1)
    with pytest.raises(df.InputError, match="optimizer 'sgd:lr=1': lr is set beside it too"):
        names.optimizer("sgd:lr=1", lr=0.5)
    with pytest.raises(df.InputError, match="optimizer 'fixed:lr=1' is an object already: lr can't be set"):
        names.optimizer("fixed:lr=1")
    with pytest.raises(df.InputError, match="metric 'largest' is an object already: k can't be set"):
        names.metric("largest:k=1")
    with pytest.raises(df.InputError, match=r"loss 'mse' can't be made with \{'k': 1\}: .*'k'; its settings: weights"):
        names.loss("mse:k=1")
    with pytest.raises(df.InputError, match="it needs the setting 'every'; its settings: every, factor, warmup"):
        names.schedule("step")


def test_objects_of_modules():
    here = "dataflow.losses"
    assert CORE_ONLY.loss(f"{here}:CrossEntropy") == df.losses.CrossEntropy()
    assert CORE_ONLY.optimizer("dataflow:optim.SGD", lr=0.5) == df.optim.SGD(lr=0.5)
    assert trainer(f"{here}:MSE", "dataflow.optim:AdamW").optimizer == df.optim.AdamW()
    with pytest.raises(df.InputError, match="loss 'nowhere:Loss': nowhere can't be imported: ModuleNotFoundError"):
        trainer("nowhere:Loss")
    with pytest.raises(df.InputError, match=r"loss 'dataflow.losses:Foggy': dataflow.losses has no 'Foggy'"):
        trainer(f"{here}:Foggy")
    with pytest.raises(df.InputError, match=r"optimizer is .*MSE.*; expected one of df.optim"):
        trainer(optimizer=f"{here}:MSE")


def test_names_that_are_none_say_what_there_is():
    for option, known in (("loss", "distill, absolute"), ("optimizer", "schedule_free_sgd, halving, fixed")):
        with pytest.raises(df.InputError, match=f"there is no {option} 'x'; known: .*{known}, 'module:object'"):
            trainer(**{option: "x"})
    with pytest.raises(df.InputError, match=r"there is no metric 'x'; known: accuracy, .*, wer, largest"):
        trainer(metrics=["x"])
    with pytest.raises(df.InputError, match="there is no callback 'x'; known: keep, 'module:object'"):
        trainer().fit(BATCH, callbacks=["x"])


def test_a_name_that_two_offer_names_both(caplog):
    class Other:
        @hookimpl
        def dataflow_losses(self):
            return [Named("absolute", Absolute)]

    class Same(Other):
        @hookimpl
        def dataflow_losses(self):
            return [Named("mse", Absolute)]

    registry = load([Plugin(), Other()])
    assert re.match(r"loss 'absolute' is offered twice: by .*Plugin.* and by .*Other", registry.plugins[-1].problem)
    assert Names(registry.named).loss("absolute") is not None
    assert Names(load([Same()]).named).loss("mse") == df.losses.MSE()
    assert "the loss 'mse' of the plugin" in caplog.text
