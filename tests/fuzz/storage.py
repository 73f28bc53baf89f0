"""Training with 16 bits: random graphs whose values wait, and whose parameters are stored, in float16 or bfloat16.

What a step makes of masters, or of parameters of float32, is compared with gradients in float64 within what roundings
of that type explain; parameters are their masters rounded, and files keep their type.
"""

from __future__ import annotations

import dataclasses
import random as standard
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import dataflow as df
from dataflow.ir.graph import Initializer, Node
from dataflow.passes.autodiff import vjp_graph
from dataflow.train.nonfinite import NonFiniteLoss

from .comparing import wrong
from .findings import Outcome, different, ended_by, finding_of
from .graphs import of_graph
from .making import Array, Made, ops
from .training import RATE, with_loss

ROUNDING = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # bfloat16 twice: what is stored may be rounded on either side
HALF = ".half"  # behind the name of a parameter of 16 bits


@of_graph
def target(graph: Made, random: standard.Random) -> Outcome:
    """A step over the graph of a case with 16 bits; see ``campaign.Target``."""
    trained = with_loss(graph.graph, graph.feeds)
    if trained is None:
        return Outcome("no gradient")
    dtype = random.choice((df.bfloat16, df.float16))
    plain = trained
    if random.random() < 0.5:
        trained, plain = halved(trained, dtype, random)
    wrt = [v for v, data in plain.initializers.items() if data.trainable]
    try:
        expected = vjp_graph(plain, wrt)
    except df.GradientError:
        return Outcome("no gradient")
    except Exception as error:
        return Outcome("failed", (finding_of(error, "differentiating"),))
    return check(trained, expected, dtype, options(random, dtype))


def options(random: standard.Random, dtype: df.DType) -> dict[str, Any]:
    """Those of a trainer that leave the result of a step as it is but for roundings."""
    return {
        "devices": [random.choice(("cpu", "cpu", "cpu", "numpy"))],
        "threads": random.choice((1, 2)),
        "fuse": random.random() < 0.8,
        "storage": random.choice((None, str(dtype), str(dtype), str(dtype))),
        "memory": random.choice((None, None, None, "1x", "0.9x")),
        "accumulate": random.choice((1, 1, 2)),
        "loss_scale": random.choice((None, None, "dynamic", 1, 1024.0, 0.25)),
    }


def halved(graph: df.Graph, dtype: df.DType, random: standard.Random) -> tuple[df.Graph, df.Graph]:
    """The graph with most of its parameters stored in 16 bits, and with these numbers in float32."""
    stored: dict[df.Value, Initializer] = {}
    rounded: dict[df.Value, Initializer] = {}
    casts: list[Node] = []
    for value, data in graph.initializers.items():
        if not data.trainable or random.random() < 0.2:
            stored[value] = rounded[value] = data
            continue
        rounded[value] = dataclasses.replace(data, array=data.array.astype(dtype.numpy).astype(np.float32))
        g = df.GraphBuilder("one")
        half = g.parameter(value.name + HALF, data.array.astype(dtype.numpy))
        g.output("y", ops.cast(half, to=df.float32))
        made = g.build()
        stored |= made.initializers
        casts.append(dataclasses.replace(made.nodes[0], name=f"{value.name}.float32", outputs=(value,)))
    half = dataclasses.replace(graph, initializers=stored, nodes=(*casts, *graph.nodes))
    return half, dataclasses.replace(graph, initializers=rounded)


def check(graph: df.Graph, expected: df.Graph, dtype: df.DType, given: dict[str, Any]) -> Outcome:
    """What comes of one logical batch; ``expected`` is the graph with its gradients."""
    label = f"{dtype} " + " ".join(f"{k}={v}" for k, v in given.items())
    model = df.Model(graph)
    trainable = [name for name, p in model.parameters.items() if p.trainable]
    before = {name: model.parameters[name].array.astype(np.float32) for name in trainable}
    try:
        with df.Trainer(
            model, df.losses.output("loss"), df.optim.SGD(lr=RATE), trainable=trainable, tie=False, **given
        ) as trainer:
            for _ in range(given["accumulate"]):
                trainer.step({"one": np.ones(1, np.float32)})
            if not trainer.steps:
                return Outcome("beyond the type")  # a gradient overflowed: nothing changes
            state = trainer.programs.state()
    except NonFiniteLoss:
        return Outcome("beyond the type")
    except Exception as error:
        return ended_by(error, label)
    after = {name: np.array(model.parameters[name].array) for name in trainable}
    masters = {name: state.get(f"optimizer/master/{name}", after[name]) for name in trainable}
    for name, array in after.items():
        if array.tobytes() != masters[name].astype(array.dtype).tobytes():
            text = f"{label}: {name!r} is not its master rounded: {array.ravel()[:4]}, {masters[name].ravel()[:4]}"
            return different("master", graph, text)
    moved = {
        f"grad.{n.removesuffix(HALF)}": (before[n] - masters[n].astype(np.float32)) / np.float32(RATE)
        for n in trainable
    }
    gradients = dataclasses.replace(expected, outputs={name: expected.outputs[name] for name in moved})
    feeds = {v.name: np.ones(v.type.sizes, np.float32) for v in expected.inputs}
    text = wrong(gradients, feeds, moved, ROUNDING[str(dtype)])
    if text:
        return different(given["devices"][0], graph, f"{label}: {text}")
    if text := _saved(model, after):
        return different("saved", graph, f"{label}: {text}")
    return Outcome("ran")


def _saved(model: df.Model, arrays: dict[str, Array]) -> str:
    """What a file doesn't keep of parameters."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        try:
            df.save(model, path)
            again = df.load(path).arrays()
        except df.DataflowError:  # it has no form
            return ""
    for name, array in arrays.items():
        if name in again and (again[name].dtype != array.dtype or again[name].tobytes() != array.tobytes()):
            return f"{name!r} is {again[name].dtype} {again[name].ravel()[:4]} in the file, {array.dtype}"
    return ""
