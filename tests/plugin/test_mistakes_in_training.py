"""Metrics, schedules, optimizers and settings that are wrong are named by what is said of them."""

import logging
import re
import sys

import numpy as np
import pytest

import dataflow as df
from dataflow.errors import InputError, PluginError
from dataflow.plugin import Named
from dataflow.plugin.registry import load
from tests.plugin.plugins import plugin

DATA = {"x": np.ones((8, 3), np.float32), "labels": np.zeros((8, 3), np.float32)}


def model():
    g = df.GraphBuilder()
    x = g.input("x", df.float32, ("n", 3))
    g.output("y", df.ops.mul(x, g.parameter("w", np.ones(3, np.float32))))
    return df.Model(g.build())


class Given:
    """A metric with a given result."""

    name = "given"

    def __init__(self, result):
        self.found = result

    def update(self, output, labels):
        pass

    def result(self):
        return self.found() if callable(self.found) else self.found


def fitted(**options):
    with df.Trainer(model(), "mse", **{"optimizer": "sgd", **options}) as trainer:
        return trainer.fit(DATA, epochs=2, batch_size=4, val_split=0.5, progress=False)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ("text", "gave 'text'; expected a number or an array of some"),
        (None, "gave None; expected a number or an array of some"),
        ({"a": 1}, "gave {'a': 1}; expected a number or an array of some"),
        (lambda: 1 / 0, "failed: ZeroDivisionError: division by zero"),
        ([[1], [1, 2]], "failed: ValueError: setting an array element with a sequence"),
    ],
)
def test_a_metric_whose_result_is_no_number_is_named(result, text):
    with pytest.raises(PluginError, match=re.escape(f"metric 'given': result() {text}")):
        fitted(metrics=[Given(result)])


class Summed:
    """A metric whose sums are made by a function."""

    name = "summed"
    fraction = False

    def __init__(self, made):
        self.made = made

    def sums(self, target, output, labels):
        return self.made(output)


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (lambda output: None, "gave None; expected a sum and a count of rank 0"),
        (lambda output: "ab", "gave 'ab'; expected a sum and a count of rank 0"),
        (lambda output: (output, output), "gave .*; expected a sum and a count of rank 0"),
        (lambda output: 1 / 0, "failed at test_mistakes_in_training.py:.*: ZeroDivisionError: division by zero"),
        (lambda output: sys.exit(3), "failed at test_mistakes_in_training.py:.*: SystemExit: 3"),
    ],
)
def test_a_metric_whose_sums_are_none_is_named(made, text):
    with pytest.raises(InputError, match=rf"sums\(\) of the metric 'summed' {text}"):
        fitted(metrics=[Summed(made)])


def test_a_metric_whose_result_is_an_array_says_that_the_history_has_none(caplog):
    caplog.set_level(logging.WARNING, "dataflow")
    assert "val_given" not in fitted(metrics=[Given(np.ones(3))])
    said = "given: an array, which the history of fit doesn't keep; evaluate gives it"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_a_schedule_that_fails_is_named():
    def falling(step):
        return 1 / step

    text = r"the schedule .*falling after 0 optimizer steps failed: ZeroDivisionError: division by zero"
    with pytest.raises(PluginError, match=text):
        fitted(optimizer=df.optim.SGD(lr=0.1, schedule=falling))


class Plain:
    """Gradient descent."""

    lr, schedule, slots, hyper_size = 0.1, None, ("m",), 1

    def hyper(self, step, lr):
        return np.array([lr], np.float32)

    def build(self, builder, parameter, gradient, slots, hyper, scale):
        return df.ops.sub(parameter, gradient), *slots


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda p, m: (df.ops.reduce_sum(p, axes=(0,)), m), "gave float32[1] for 'w' as the new parameter; expected f"),
        (
            lambda p, m: (p, df.ops.cast(m, to=df.float64)),
            "gave float64[3] for 'w' as the new optimizer/m/w; expected float32[3]",
        ),
        (lambda p, m: (p, 3.0), "gave 3.0 for 'w' as the new optimizer/m/w; expected float32[3]"),
    ],
)
def test_an_optimizer_that_changes_a_type_is_named(build, text):
    changing = type("Changing", (Plain,), {"build": lambda self, b, p, g, slots, h, scale: build(p, slots[0])})
    with pytest.raises(PluginError, match=re.escape(f"optimizer Changing: build() {text}")):
        fitted(optimizer=changing())


def test_two_slots_of_one_name_are_refused():
    twice = type("Twice", (Plain,), {"slots": ("m", "v", "m")})
    with pytest.raises(PluginError, match="optimizer Twice: two of its slots are called 'm'; give each a name"):
        fitted(optimizer=twice())


def test_what_fails_while_it_is_made_of_settings_is_named():
    def heavy(momentum=0.5, **settings):
        return {"x": Plain()}[momentum + 1]

    def empty(momentum=0.5, **settings):
        return {}[momentum]

    registry = load([plugin(dataflow_optimizers=lambda: [Named("heavy", heavy), Named("empty", empty)])])
    for choice, text in (
        ("heavy:momentum=x", "optimizer 'heavy' can't be made with {'momentum': 'x'}: can only concatenate str"),
        ("empty:momentum=x", "optimizer 'empty' can't be made with {'momentum': 'x'}: KeyError: 'x'"),
    ):
        with pytest.raises(InputError, match=re.escape(text)):
            fitted(optimizer=choice, registry=registry)
