"""Steps of training over random graphs, whose inputs become parameters: what a step makes of these against float64.

The options are random too: a budget of memory, several micro-batches, the order of updates, fusion. All but the
dtype of the sums leave a step's result as it is.
"""

from __future__ import annotations

import dataclasses
import random as standard
from collections.abc import Mapping
from typing import Any

import numpy as np

import dataflow as df
from dataflow.ir.graph import Initializer
from dataflow.passes.autodiff import vjp_graph

from .comparing import wrong
from .findings import Outcome, different, ended_by, finding_of
from .gradients import unlike
from .graphs import of_graph
from .making import Array, Made, ops

RATE = 4096.0  # so large that what a step adds to a parameter isn't lost in its rounding


@of_graph
def target(graph: Made, random: standard.Random) -> Outcome:
    """A step over the graph of a case; see ``campaign.Target``."""
    trained = with_loss(graph.graph, graph.feeds)
    if trained is None:
        return Outcome("no gradient")
    wrt = [v for v, data in trained.initializers.items() if data.trainable]
    try:
        expected = vjp_graph(trained, wrt)
    except df.GradientError:
        return Outcome("no gradient")
    except Exception as error:
        return Outcome("failed", (finding_of(error, "differentiating"),))
    return check(trained, expected, options(random))


def options(random: standard.Random) -> dict[str, Any]:
    """Those of a trainer that leave the result of a step as it is."""
    found: dict[str, Any] = {
        "devices": [random.choice(("cpu", "cpu", "cpu", "numpy"))],
        "threads": random.choice((1, 2)),
        "fuse": random.random() < 0.8,
        "memory": random.choice((None, None, "1x", "0.9x", "0.8x", "0.6x")),
        "accumulate": random.choice((1, 1, 2)),
    }
    if found["accumulate"] == 1 and random.random() < 0.5:
        found["update"] = "as_ready"
    return found


def with_loss(graph: df.Graph, feeds: Mapping[str, Array]) -> df.Graph | None:
    """The graph with its inputs as parameters and constants, and a loss of its results; None where either lacks."""
    results = [v for v in graph.outputs.values() if v.type.dtype == df.float32 and v.type.elements]
    numbers = [feeds[v.name] for v in graph.inputs if v.type.dtype == df.float32]
    numbers += [data.array for data in graph.initializers.values() if data.trainable and data.array.dtype == np.float32]
    if not results or any(map(unlike, graph.nodes)) or not all(np.isfinite(a).all() for a in numbers):
        return None
    stored = {
        value: dataclasses.replace(data, trainable=data.trainable and value.type.dtype == df.float32)
        for value, data in graph.initializers.items()
    }
    for value in graph.inputs:
        trainable = value.type.dtype == df.float32 and value.type.elements > 0
        stored[value] = Initializer(np.asarray(feeds[value.name]), "parameter" if trainable else "constant", trainable)
    if not any(data.trainable for data in stored.values()):
        return None
    g = df.GraphBuilder("trained")
    new = g.adopt(dataclasses.replace(graph, inputs=(), initializers=stored, outputs={}))
    one = g.input("one", df.float32, (1,))
    loss = ops.reduce_mean(one, axes=(0,), keepdims=False)
    for value in results:
        bounded = ops.sin(new[value])
        axes = tuple(range(value.type.rank))
        loss = ops.add(loss, ops.reduce_mean(bounded, axes=axes, keepdims=False) if axes else bounded)
    g.output("loss", loss)
    return g.build()


def check(graph: df.Graph, expected: df.Graph, given: Mapping[str, Any]) -> Outcome:
    """What comes of one logical batch; ``expected`` is the graph with its gradients."""
    label = " ".join(f"{k}={v}" for k, v in given.items())
    model = df.Model(graph)
    before = {name: np.array(p.array) for name, p in model.parameters.items() if p.trainable}
    try:
        with df.Trainer(
            model, df.losses.output("loss"), df.optim.SGD(lr=RATE), trainable=list(before), tie=False, **given
        ) as trainer:
            for _ in range(given["accumulate"]):
                trainer.step({"one": np.ones(1, np.float32)})
    except Exception as error:
        if isinstance(error, df.InputError) and str(error).startswith("memory: "):  # fewer bytes than are possible
            return check(graph, expected, {**given, "memory": None})
        return ended_by(error, label)
    after = {name: np.array(model.parameters[name].array) for name in before}
    moved = {f"grad.{name}": (before[name] - after[name]) / np.float32(RATE) for name in before}
    gradients = dataclasses.replace(expected, outputs={name: expected.outputs[name] for name in moved})
    feeds = {v.name: np.ones(v.type.sizes, np.float32) for v in expected.inputs}
    text = wrong(gradients, feeds, moved)
    return different(f"training {given['devices'][0]}", graph, f"{label}: {text}") if text else Outcome("ran")
