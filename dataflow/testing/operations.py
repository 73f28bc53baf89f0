"""Checks of ops themselves, on the reference in float64: gradients, and decompositions beside kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from ..ir.graph import Graph
from ..ir.types import Array, float32, float64
from ..passes.autodiff import vjp_graph
from ..plugin.registry import Registry
from .expected import decomposed, evaluated, expected_of
from .outcome import Outcome, Report, Task
from .sample import Sample
from .trial import raised

_STEP = 1e-6
_LIMIT = 1e-5  # of the error of a derivative by central differences, relative


def op_tasks(plugin: str, samples: Sequence[Sample], registry: Registry) -> list[Task]:
    """For each sample the gradient with respect to the inputs that it names, and the decomposition beside the kernel.

    Args:
        plugin: whose ops they are.
        samples: of ops of one plugin.
        registry: has the reference.
    """
    tasks = []
    for sample in samples:
        if sample.gradient:
            tasks.append(_task(plugin, sample, "gradient", registry))
        if sample.op.decompose is not None and sample.op.name in registry.reference_kernels and not sample.bodies:
            tasks.append(_task(plugin, sample, "decomposition", registry))
    return tasks


def _task(plugin: str, sample: Sample, variant: str, registry: Registry) -> Task:
    check = gradient_problem if variant == "gradient" else decomposition_problem

    def run(report: Report) -> Iterator[Outcome]:
        report(variant)
        found: list[str | None] = []
        text = raised(lambda: found.append(check(sample, registry))) or found[0] or ""
        yield Outcome(plugin, sample.op.name, sample.name, variant, "failed" if text else "passed", text)

    return Task(sample.op.name, sample.name, run)


def decomposition_problem(sample: Sample, registry: Registry) -> str | None:
    """Where the decomposition gives other results than the reference's kernel, or None."""
    node = sample.node
    arrays = [a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in sample.arrays()]
    expected = expected_of(sample, registry)
    for index, (value, result) in enumerate(zip(node.outputs, decomposed(node, arrays, registry), strict=False)):
        if value is None or result is None:
            continue
        found, known = np.asarray(result, np.float64), np.asarray(expected[f"y{index}"], np.float64)
        close = np.isclose(found, known, rtol=1e-4, atol=1e-4 * float(np.abs(known).max(initial=0)), equal_nan=True)
        if found.shape != known.shape or not close.all():
            return f"y{index}: the decomposition gives other results than the kernel of the reference"
    return None


def gradient_problem(sample: Sample, registry: Registry) -> str | None:
    """How the derivative by the op's rule differs from a central difference, in random directions, or None."""
    sample = _in_float64(sample)
    graph = sample.build()
    graph = dataclasses.replace(graph, outputs={n: v for n, v in graph.outputs.items() if not _is_extra(graph, n)})
    wrt = [value for value in graph.inputs if int(value.name[1:]) in sample.gradient]
    feeds = sample.feeds()
    joint = vjp_graph(graph, wrt)
    outputs = {name: value for name, value in graph.outputs.items() if value.type.dtype.is_float}
    random = np.random.default_rng(sample.seed)
    for _ in range(2):
        u = {name: random.standard_normal(value.type.sizes) for name, value in outputs.items()}
        v = {value.name: random.standard_normal(value.type.sizes) for value in wrt}
        found = evaluated(joint, {**feeds, **{f"grad.{name}": array for name, array in u.items()}}, registry)
        along = sum(float((v[name] * found[f"grad.{name}"]).sum()) for name in v)
        up, down = (_moved(graph, feeds, v, sign * _STEP, registry) for sign in (1, -1))
        expected = sum(float((u[name] * (up[name] - down[name])).sum()) / (2 * _STEP) for name in outputs)
        if not abs(along - expected) <= _LIMIT * max(abs(expected), abs(along), 1e-3):
            names = ", ".join(v)
            return f"the gradient by {names} is {along:.9g} along a direction, by central differences {expected:.9g}"
    return None


def _moved(
    graph: Graph, feeds: dict[str, Array], direction: dict[str, Array], step: float, registry: Registry
) -> dict[str, Array]:
    at = {name: a + step * direction[name] if name in direction else a for name, a in feeds.items()}
    return evaluated(graph, at, registry)


def _in_float64(sample: Sample) -> Sample:
    """The sample with float64 for float32."""
    operands = tuple(
        dataclasses.replace(o, dtype=float64) if o is not None and o.dtype == float32 else o for o in sample.inputs
    )
    attributes = {key: float64 if value == float32 else value for key, value in sample.attributes.items()}
    return dataclasses.replace(sample, inputs=operands, attributes=attributes)


def _is_extra(graph: Graph, name: str) -> bool:
    """Whether an output is for the gradient alone, and has none."""
    (node,) = graph.nodes
    return node.op.output_names(node)[int(name[1:])].startswith("+")
