"""Edited graphs: random values of random graphs replaced, frozen, appended, cut and renamed, then run and saved.

What an edited model must give is computed from the graph as it was, with the readers of a value given another.
"""

from __future__ import annotations

import dataclasses
import random as standard
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import dataflow as df
from dataflow.ir.graph import Graph

from .comparing import evaluate_noisy, wrong
from .findings import Outcome, different, ended_by
from .graphs import of_graph
from .making import Array, Made, ops

Expected = tuple[Graph, dict[str, Array]]  # what gives the results, and its inputs
FUNCTIONS: tuple[Callable[[df.Value], df.Value], ...] = (
    lambda v: ops.mul(v, 0.5), ops.tanh, lambda v: ops.add(ops.sin(v), v), ops.neg,
)  # fmt: skip


@of_graph
def target(given: Made, random: standard.Random) -> Outcome:
    """An edit of the graph of a case; see ``campaign.Target``."""
    graph = given.graph
    if any(node.op.name in ("keyed", "dropout") for node in graph.nodes):
        return Outcome("refused")  # results that are no arrays, and a file is of inference
    edit = random.choice((_replaced, _other, _frozen, _appended, _reduced, _renamed))
    label = edit.__name__[1:]
    try:
        model = df.Model(graph)
        if random.random() < 0.4:
            model = _read_again(model) or model
        found = edit(model, given, random)
        if found is None:
            return Outcome("nothing")
        edited, (expected, feeds) = found
        text = _compared(edited, expected, feeds, random)
    except Exception as error:
        return ended_by(error, label)
    return different(label, graph, f"{label}: {text}") if text else Outcome("ran")


def _compared(edited: df.Model, expected: Graph, feeds: dict[str, Array], random: standard.Random) -> str:
    """How an edited model differs, or what is read from its file."""
    device = random.choice(("cpu", "cpu", "numpy"))
    if set(edited.outputs) != set(expected.outputs):
        return f"outputs {list(edited.outputs)} instead of {list(expected.outputs)}"
    own = {name: feeds[name] for name in edited.inputs}
    text = wrong(expected, feeds, df.Session(edited, devices=[device], threads=1).run(own))
    if not text and (again := _read_again(edited)) is not None:
        own = {name: feeds[name] for name in again.inputs}
        text = wrong(expected, feeds, df.Session(again, devices=[device], threads=1).run(own))
        text = text and f"from its file: {text}"
    return text


def _read_again(model: df.Model) -> df.Model | None:
    """The model from a file of it; None where it has no form."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        try:
            df.save(model, path)
            return df.load(path)
        except df.DataflowError:
            return None


def _inner(graph: Graph, random: standard.Random) -> df.Value | None:
    """A value of float32 that some node computes."""
    found = [v for n in graph.nodes for v in n.outputs if v is not None and v.type.dtype == df.float32]
    return random.choice(found) if found else None


def _with(graph: Graph, feeds: dict[str, Array], value: df.Value, array: Array, results: bool = True) -> Expected:
    """The graph whose readers of a value, and maybe its outputs, get an array."""
    stand = df.Value("stands.for.it", value.type)
    swap = {value: stand}
    nodes = tuple(
        dataclasses.replace(n, inputs=tuple(v if v is None else swap.get(v, v) for v in n.inputs)) for n in graph.nodes
    )
    outputs = {name: swap.get(v, v) if results else v for name, v in graph.outputs.items()}
    given = np.asarray(array, value.type.dtype.numpy)
    changed = dataclasses.replace(graph, inputs=(*graph.inputs, stand), nodes=nodes, outputs=outputs)
    return changed, {**feeds, stand.name: given}


def _exact(graph: Graph, feeds: dict[str, Array], value: df.Value) -> Array:
    random = np.random.default_rng(0)
    return evaluate_noisy(dataclasses.replace(graph, outputs={"it": value}), feeds, random, 0.0)["it"]


def _replaced(model: df.Model, given: Made, random: standard.Random) -> tuple[df.Model, Expected] | None:
    """A function of a value in its stead."""
    graph = model.graph_with_data()
    if (value := _inner(graph, random)) is None:
        return None
    function = random.choice(FUNCTIONS)
    g = df.GraphBuilder("function")
    new = g.adopt(graph)
    made_ = function(new[value])
    g.output("it", made_)
    array = evaluate_noisy(g.build(), given.feeds, np.random.default_rng(0), 0.0)["it"]
    return model.replace(value.name, function), _with(graph, given.feeds, value, array)


def _other(model: df.Model, given: Made, random: standard.Random) -> tuple[df.Model, Expected] | None:
    """Another value of its type, computed before."""
    graph = model.graph_with_data()
    if (value := _inner(graph, random)) is None:
        return None
    maker = next(i for i, n in enumerate(graph.nodes) if value in n.outputs)
    before = [*graph.inputs, *(v for n in graph.nodes[:maker] for v in n.outputs if v is not None)]
    same = [v for v in before if v.type == value.type]
    if not same:
        return None
    other = random.choice(same)
    return model.replace(value.name, other.name), _with(graph, given.feeds, value, _exact(graph, given.feeds, other))


def _frozen(model: df.Model, given: Made, random: standard.Random) -> tuple[df.Model, Expected] | None:
    """An array for an inner value or an input."""
    graph = model.graph_with_data()
    inputs = [v for v in graph.inputs if v.type.dtype == df.float32]
    value = random.choice(inputs) if inputs and random.random() < 0.5 else _inner(graph, random)
    if value is None:
        return None
    noise = np.random.default_rng(random.getrandbits(32)).standard_normal(value.type.sizes)
    array = np.asarray(noise, np.float32)
    if random.random() < 0.5:
        return model.freeze({value.name: array}), _with(graph, given.feeds, value, array)
    return model.replace(value.name, array), _with(graph, given.feeds, value, array)


def _appended(model: df.Model, given: Made, random: standard.Random) -> tuple[df.Model, Expected] | None:
    """One more output, beside what there is."""
    graph = model.graph_with_data()
    if (value := _inner(graph, random)) is None:
        return None
    function = random.choice((*FUNCTIONS, lambda v: v))
    g = df.GraphBuilder("appended")
    new = g.adopt(graph)
    for name, output in graph.outputs.items():
        g.output(name, new[output])
    g.output("more", ops.copy(function(new[value])))
    return model.append("more", function, of=value.name), (g.build(), given.feeds)


def _reduced(model: df.Model, given: Made, random: standard.Random) -> tuple[df.Model, Expected] | None:
    """Other outputs, inner ones too."""
    graph = model.graph_with_data()
    own = {v.name: v for n in graph.nodes for v in n.outputs if v is not None} | dict(graph.outputs)
    chosen = random.sample(sorted(own), min(len(own), random.randint(1, 3)))
    if not chosen:
        return None
    outputs = {name: own[name] for name in chosen}
    return model.with_outputs(chosen), (dataclasses.replace(graph, outputs=outputs), given.feeds)


def _renamed(model: df.Model, given: Made, random: standard.Random) -> tuple[df.Model, Expected] | None:
    """Other names for inputs, outputs and inner values; what is fed has both."""
    graph = model.graph_with_data()
    known = sorted({v.name for v in graph.values()} | set(graph.outputs))
    names = {old: f"new.{i}" for i, old in enumerate(random.sample(known, min(len(known), random.randint(1, 4))))}
    outputs = {names.get(name, name): v for name, v in graph.outputs.items()}
    feeds = given.feeds | {names[n]: a for n, a in given.feeds.items() if n in names}
    return model.rename(names), (dataclasses.replace(graph, outputs=outputs), feeds)
