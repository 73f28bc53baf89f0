"""Adapters: models of random layers and the random graphs, adapted, merged, saved and differentiated.

The adapted graph in float64 judges everything: devices, the merged model, files with adapters as nodes (read again and
by onnxruntime) and folders of adapters. Gradients of adapters are compared with differences.
"""

from __future__ import annotations

import dataclasses
import functools
import random as standard
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import dataflow as df
from dataflow.adapters.merge import can_merge
from dataflow.ir.graph import Initializer
from dataflow.layers.layers import layers_of
from dataflow.passes.autodiff import vjp_graph
from dataflow.quantization.blocks import can_quantize

from .comparing import evaluate_noisy, wrong
from .findings import Outcome, different, ended_by
from .gradients import differences, unlike
from .graphs import too_large
from .layered import Layered, layered
from .making import Array, Made, make_graph
from .referee import Referee

WEIGHTS = {"matmul": 1, "conv": 1, "gather": 0}  # where nodes read what can be adapted


def target(seed: int, case: int) -> Outcome:
    """A model of a case with adapters; see ``campaign.Target``."""
    random = standard.Random(f"{seed}:{case}")
    try:
        model, feeds = _model(random)
    except Exception as error:
        return ended_by(error, "building")
    if too_large(model.graph):
        return Outcome("large")
    if any(node.op.name == "keyed" for node in model.graph.nodes):
        return Outcome("maps")  # results that are no arrays
    options = options_of(random)
    label = " ".join(f"{k}={v}" for k, v in options.items())
    try:
        before = model.graph_with_data()
        if random.random() < 0.25 and any(map(can_quantize, layers_of(before, {}))):
            bits, block = random.choice((4, 8)), random.choice((16, 32))
            model = df.quantize(model, bits, block, symmetric=random.random() < 0.5)
            label = f"quantized {bits} {block} {label}"
            before = model.graph_with_data()
        adapted = df.lora(model, **options)
    except Exception as error:
        return ended_by(error, label)
    try:
        for kind, text in faults(model, adapted, feeds, random):
            return different(kind, before, f"{label}: {text}")
    except Exception as error:
        return ended_by(error, label)
    return Outcome("ran")


def options_of(random: standard.Random) -> dict[str, Any]:
    """Those of ``df.lora``."""
    return {
        "rank": random.choice((1, 1, 2, 3, 8, 40)),
        "alpha": random.choice((16, 1, 0.5, 8.0)),
        "targets": "*",
        "dropout": random.choice((0.0, 0.0, 0.1)),
        "rank_stabilized": random.random() < 0.3,
        "dora": random.random() < 0.3,
        "seed": random.randrange(1000),
    }


def _model(random: standard.Random) -> tuple[df.Model, dict[str, Array]]:
    """A model that may come from a file, and its inputs."""
    if random.random() < 0.5:
        made: Layered = layered(random)
        return _loaded(made.model), made.feeds
    for _ in range(6):
        graph = with_weights(make_graph(random), random)
        if layers_of(graph.graph, {}):
            break
    model = df.Model(graph.graph)
    if random.random() < 0.5:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / "model.onnx")
            try:
                df.save(model, path)
                model = df.load(path)
            except df.DataflowError:  # it has no form
                return model, graph.feeds
    return model, graph.feeds


def _loaded(data: bytes) -> df.Model:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(data)
        return df.load(str(path))


def with_weights(made: Made, random: standard.Random) -> Made:
    """The graph with most of the inputs that nodes read as weights as parameters."""
    inputs = set(made.graph.inputs)
    read = {n.inputs[WEIGHTS[n.op.name]] for n in made.graph.nodes if n.op.name in WEIGHTS}
    opened = {v for v in read if v in inputs and v.type.dtype == df.float32 and random.random() < 0.8}
    stored = {v: Initializer(made.feeds[v.name], "parameter", True) for v in made.graph.inputs if v in opened}
    graph = dataclasses.replace(
        made.graph,
        inputs=tuple(v for v in made.graph.inputs if v not in opened),
        initializers={**made.graph.initializers, **stored},
    )
    return Made(graph, {v.name: made.feeds[v.name] for v in graph.inputs}, made.operands)


def moved(adapted: Any, arrays: np.random.Generator) -> None:
    """Gives the tensors of adapters random numbers, as if trained."""
    for adapter in adapted.adapters:
        for name in adapter.tensors:
            parameter = adapted.parameters[name]
            noise = 0.3 * arrays.standard_normal(parameter.array.shape)
            parameter.set((parameter.array + noise).astype(np.float32))


def faults(
    model: df.Model, adapted: Any, feeds: dict[str, Array], random: standard.Random
) -> Iterator[tuple[str, str]]:
    """What is wrong, by where."""
    arrays = np.random.default_rng(random.getrandbits(32))
    if not _finite(model.graph_with_data(), feeds):
        return  # an infinity times what an adapter begins with, 0, is none
    if text := wrong(model.graph_with_data(), feeds, _results(adapted, feeds)):
        yield "at first", text
    moved(adapted, arrays)
    graph = adapted.graph_with_data()
    device = random.choice(("cpu", "cpu", "numpy"))
    results = _results(adapted, feeds, device)
    if text := wrong(graph, feeds, results):
        yield f"adapted {device}", text
        return
    if can_merge(adapted):
        merged = df.merge_lora(adapted)
        if text := wrong(graph, feeds, _results(merged, feeds, device)):
            yield "merged", text
        again = _results(df.unmerge_lora(merged), feeds, device)
        if not all(_same(again[name], array) for name, array in results.items()):
            yield "unmerged", "other bits"
        yield from _saved("merged and saved", merged, graph, feeds, random.random() < 0.5)
    yield from _saved("saved as nodes", adapted, graph, feeds, True)
    with tempfile.TemporaryDirectory() as folder:
        df.save_adapters(adapted, folder)
        again = _results(df.load_adapters(model, folder), feeds, device)
    if not all(_same(again[name], array) for name, array in results.items()):
        yield "from a folder", "other bits"
    if text := _gradients(graph, {n for a in adapted.adapters for n in a.tensors}, feeds, arrays):
        yield "gradients", text


def _finite(graph: df.Graph, feeds: dict[str, Array]) -> bool:
    """Whether all that a graph computes is."""
    values = {f"v{i}": v for i, v in enumerate(graph.values()) if v.type.dtype == df.float32}
    found = evaluate_noisy(dataclasses.replace(graph, outputs=values), feeds, np.random.default_rng(0), 0.0)
    return all(np.isfinite(array).all() for array in found.values())


def _results(model: df.Model, feeds: dict[str, Array], device: str = "cpu") -> dict[str, Array]:
    with df.Session(model, devices=[device], threads=1) as session:
        return session.run({n: a.copy() for n, a in feeds.items()})


def _same(a: Array, b: Array) -> bool:
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def _saved(
    what: str, model: df.Model, graph: df.Graph, feeds: dict[str, Array], judged: bool
) -> Iterator[tuple[str, str]]:
    """The file of a model, read again and run by onnxruntime."""
    if any(node.op.name == "dropout" and len(node.inputs) > 1 and node.inputs[1] is not None for node in graph.nodes):
        return  # with a key it drops here; a file is of inference
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            df.save(model, str(path))
        except df.DataflowError:  # it has no form
            return
        data = path.read_bytes()
        try:
            text = wrong(graph, feeds, _results(df.load(str(path)), feeds))
        except df.DataflowError as error:
            if "expected a stored tensor" in str(error):
                return  # a random graph computes blocks or zero points
            text = f"{type(error).__name__}: {error}"
    if text:
        yield what, text
    theirs = _referee().results(data, feeds) if judged and not text else None
    floats = {name: v for name, v in graph.outputs.items() if v.type.dtype == df.float32}  # integers may overflow
    if theirs is not None and (text := wrong(dataclasses.replace(graph, outputs=floats), feeds, theirs)):
        yield f"{what}, by onnxruntime", text


def _gradients(graph: df.Graph, trained: set[str], feeds: dict[str, Array], arrays: np.random.Generator) -> str:
    """How gradients of adapters differ from differences; norms of DoRA, through which none goes, are held."""
    results = {name: v for name, v in graph.outputs.items() if v.type.dtype == df.float32}
    stops = [n for n in graph.nodes if n.op.name == "stop_gradient"]
    if not results or any(unlike(n) for n in graph.nodes if n not in stops):
        return ""
    opened = tuple(v for v in graph.initializers if v.name in trained)
    given = {v.name: np.asarray(graph.initializers[v].array) for v in opened}
    free = dataclasses.replace(
        graph,
        inputs=(*graph.inputs, *opened),
        initializers={v: data for v, data in graph.initializers.items() if v not in opened},
        outputs=results,
    )
    feeds = {**feeds, **given}
    try:
        joint = vjp_graph(free, list(opened))
    except df.GradientError:
        return ""
    held = free
    if stops:
        names = {f"held{i}": n.outputs[0] for i, n in enumerate(stops)}
        exact = evaluate_noisy(dataclasses.replace(free, outputs=names), feeds, arrays, 0.0)
        stored = {v: Initializer(exact[name], "constant", False) for name, v in names.items()}
        held = dataclasses.replace(
            free,
            nodes=tuple(n for n in free.nodes if n not in stops),
            initializers={**free.initializers, **stored},
        )
    seeds = {f"grad.{n}": arrays.standard_normal(v.type.sizes).astype(np.float32) for n, v in results.items()}
    return differences(held, joint, feeds, seeds, arrays, [v.name for v in opened])


@functools.cache
def _referee() -> Referee:
    return Referee()
