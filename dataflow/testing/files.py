"""What the kit checks of formats of files and of exporters."""

from __future__ import annotations

import difflib
import functools
import inspect
import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import ops
from ..errors import DataflowError, PluginError
from ..ir.builder import GraphBuilder
from ..ir.graph import Graph
from ..ir.types import Array, float32
from ..model import Model
from ..model_files import load, save
from ..plugin.hookspecs import Exporter, Format
from ..plugin.registry import Registry
from .expected import evaluated
from .outcome import Outcome, Report, Status, Task
from .sample import Sample
from .trial import raised

_TOLERANCE = 1e-4  # of a model that was written and read: a format may have weights in text


def file_tasks(plugin: str, offered: Mapping[str, Sequence[Any]], registry: Registry) -> Iterator[Task]:
    """A task for each format and each exporter of a plugin."""

    def task(kind: str, name: str, check: Callable[[], tuple[Status, str]]) -> Task:
        def run(report: Report) -> Iterator[Outcome]:
            report("file")
            status, text = check()
            yield Outcome(plugin, kind, f"{kind} {name}", "file", status, text)

        return Task(kind, f"{kind} {name}", run)

    for form in offered.get("dataflow_formats", ()):
        yield task("format", form.suffix, functools.partial(_format_checked, form, registry))
    for exporter in offered.get("onnx_exporters", ()):
        yield task("exporter", exporter.op, functools.partial(_exporter_checked, exporter, registry))


def _exporter_checked(exporter: Exporter, registry: Registry) -> tuple[Status, str]:
    """Whether there is the op that it writes, and each sample of it is what it was when it is written and read.

    Where no plugin has a converter of its operator samples are only written: others may read them.
    """
    if exporter.op not in registry.ops:
        near = difflib.get_close_matches(exporter.op, registry.ops, 3)
        return "failed", "it is for an op that nobody declares" + (f"; near: {', '.join(near)}" if near else "")
    forms = [form for form in registry.formats.values() if form.exports and form.converts and form.save and form.load]
    operator = exporter.domain, exporter.operator
    is_read = operator in {(converter.domain, converter.operator) for converter in registry.converters}
    for form, sample in itertools.product(forms, registry.samples):
        if sample.op.name == exporter.op and sample.op.effects == "none" and not sample.bodies:
            text = _changed(form, sample, is_read, registry)
            if text:
                return "failed", f"{sample.name} as {form.suffix}: {text}"
    return "passed", ""


def _changed(form: Format, sample: Sample, is_read: bool, registry: Registry) -> str | None:
    """What fails when a sample is written and read, or differs of its results after that; None: nothing."""
    found: list[str | None] = []
    return raised(lambda: found.append(_difference(form, sample, is_read, registry))) or found[0]


def _difference(form: Format, sample: Sample, is_read: bool, registry: Registry) -> str | None:
    graph = sample.build()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / f"sample{form.suffix}")
        save(Model(graph), path, registry=registry)
        if not is_read:
            return None
        read = load(path, registry=registry).graph_with_data()
    feeds = sample.feeds()
    expected = evaluated(graph, feeds, registry)
    for name, found in evaluated(read, feeds, registry).items():
        known, declared = expected[name], graph.outputs[name].type.dtype
        if read.outputs[name].type.dtype != declared:
            return f"{name} is {read.outputs[name].type.dtype} after it was written and read, and was {declared}"
        if found.shape != known.shape:
            return f"{name} is {list(found.shape)} after it was written and read, and was {list(known.shape)}"
        if found.dtype.kind in "fc" and not np.allclose(found, known, _TOLERANCE, _TOLERANCE, equal_nan=True):
            return f"{name} has other values after it was written and read"
        if found.dtype.kind not in "fc" and not np.array_equal(found, known):
            return f"{name} has other values after it was written and read"
    return None


def _format_checked(form: Format, registry: Registry) -> tuple[Status, str]:
    """Whether its functions take what they are given, and a small model stays what it is when it is written and read.

    A model that it refuses says nothing about it.
    """
    given: dict[str, dict[str, Any]] = {
        "load": {"converters": ()} if form.converts else {},
        "save": ({"exporters": {}} if form.exports else {}) | ({"overwrite": True} if form.replaces else {}),
    }
    for name, function, arguments in (("load", form.load, 1), ("save", form.save, 2)):
        if function is None:
            continue
        problem = _unfit(function, arguments, given[name])
        if problem is not None:
            return "failed", f"{name} can't be called as {name}({_shown(arguments, given[name])}, **options): {problem}"
    if form.save is None or form.load is None:
        return "passed", ""
    model = Model(_small())
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder) / f"small{form.suffix}")
            save(model, path, registry=registry)
            found = _computed(load(path, registry=registry).graph_with_data(), registry)
    except PluginError as error:
        return "failed", str(error)
    except DataflowError as error:
        return "not claimed", f"a small model of two layers: {error}"
    expected = _computed(model.graph, registry)
    if found.shape != expected.shape or not np.allclose(found, expected, _TOLERANCE, _TOLERANCE):
        return "failed", "a small model of two layers gives something else after it was written and read"
    return "passed", ""


def _shown(arguments: int, given: Mapping[str, Any]) -> str:
    return ", ".join([*("model", "path")[2 - arguments :], *(f"{name}={name}" for name in given)])


def _unfit(function: Callable[..., Any], arguments: int, given: Mapping[str, Any]) -> str | None:
    """Why a function can't be called with so many arguments and these options, or None."""
    try:
        inspect.signature(function).bind(*range(arguments), **given)
    except TypeError as error:
        return str(error)
    except ValueError:  # in C
        return None
    return None


def _small() -> Graph:
    """Two layers with ReLU between."""
    random = np.random.default_rng(7)
    g = GraphBuilder("small")
    value = g.input("x", float32, ("batch", 3))
    for index, (rows, columns) in enumerate(((3, 4), (4, 2))):
        value = ops.relu(value) if index else value
        w = g.parameter(f"w{index}", random.normal(size=(rows, columns)).astype(np.float32))
        value = ops.add(ops.matmul(value, w), g.parameter(f"b{index}", np.arange(columns, dtype=np.float32)))
    g.output("y", value)
    return g.build()


def _computed(graph: Graph, registry: Registry) -> Array:
    """The first result of the small model's input on the reference."""
    (name,) = [value.name for value in graph.inputs]
    data = np.random.default_rng(8).normal(size=(5, 3)).astype(np.float32)
    return next(iter(evaluated(graph, {name: data}, registry).values()))
