"""Checks of ops themselves, on the reference in float64: gradients, and decompositions beside kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..errors import DataflowError, GradientError, InputError
from ..ir.graph import Graph
from ..ir.op import AnyOp
from ..ir.types import Array, float32, float64
from ..ir.value import Value
from ..passes.autodiff import vjp_graph
from ..plugin.registry import Registry
from .claims import node_of
from .expected import decomposed, evaluated, expected_of
from .outcome import Outcome, Report, Task
from .sample import Sample
from .trial import raised

_STEP = 1e-6
_LIMIT = 1e-5  # of the error of a derivative by central differences, relative


def op_tasks(plugin: str, samples: Sequence[Sample], registry: Registry) -> list[Task]:
    """For each sample the gradient with respect to the inputs that it names, and the decomposition beside the kernel.

    The gradient of that gradient too, where each op in it has one. What a rule gives for an input by which no sample
    differentiates is untested.

    Args:
        plugin: whose ops they are.
        samples: of ops of one plugin.
        registry: has the reference.
    """
    tasks = []
    for sample in samples:
        if sample.gradient:
            tasks += [_task(plugin, sample, variant, registry) for variant in ("gradient", "second")]
        if sample.op.decompose is not None and sample.op.name in registry.reference_kernels and not sample.bodies:
            tasks.append(_task(plugin, sample, "decomposition", registry))
    for op in dict.fromkeys(sample.op for sample in samples if sample.op.gradient is not None):
        tasks.append(_untested_task(plugin, op, [sample for sample in samples if sample.op is op]))
    return tasks


def _task(plugin: str, sample: Sample, variant: str, registry: Registry) -> Task:
    check = {"gradient": gradient_problem, "second": second_problem, "decomposition": decomposition_problem}[variant]

    def run(report: Report) -> Iterator[Outcome]:
        report(variant)
        found: list[str | None] = []
        if variant != "decomposition" and node_of(in_float64(sample)) is None:
            yield Outcome(plugin, sample.op.name, sample.name, variant, "not claimed", "the op takes no float64")
            return
        text = raised(lambda: found.append(check(sample, registry))) or found[0] or ""
        yield Outcome(plugin, sample.op.name, sample.name, variant, "failed" if text else "passed", text)

    return Task(sample.op.name, sample.name, run)


def _untested_task(plugin: str, op: AnyOp, samples: Sequence[Sample]) -> Task:
    """Says by which inputs no sample differentiates, of those for which the rule of the op gives something."""

    def run(report: Report) -> Iterator[Outcome]:
        report("gradient")
        tested = {op.inputs[min(i, len(op.inputs) - 1)] for sample in samples for i in sample.gradient}
        found: dict[str, Sample] = {}
        for sample in samples:
            graph = sample.build()
            for value in graph.inputs:
                name = op.inputs[min(int(value.name[1:]), len(op.inputs) - 1)]
                if name not in tested and name not in found and _differentiates(graph, value):
                    found[name] = sample
        for name, sample in found.items():
            text = f"its rule gives a gradient by {name.rstrip('?*')}, and no sample of the op differentiates by it"
            yield Outcome(plugin, op.name, sample.name, "gradient", "untested", text)

    return Task(op.name, op.name, run)


def _differentiates(graph: Graph, value: Value) -> bool:
    """Whether a rule gives something else than zeros for an input, or fails."""
    if not value.type.dtype.is_float:
        return False
    try:
        joint = vjp_graph(_declared(graph), [value])
    except DataflowError:
        return True
    gradient = joint.outputs[f"grad.{value.name}"]
    return next((node.op.name for node in joint.nodes if gradient in node.outputs), "") != "full"


def decomposition_problem(sample: Sample, registry: Registry) -> str | None:
    """Where the decomposition gives other results than the reference's kernel, or None."""
    node = sample.node
    expected = expected_of(sample, registry)
    for index, (value, result) in enumerate(zip(node.outputs, _decomposed(sample, registry), strict=False)):
        if value is None or result is None:
            continue
        found, known = np.asarray(result, np.float64), np.asarray(expected[f"y{index}"], np.float64)
        close = np.isclose(found, known, rtol=1e-4, atol=1e-4 * float(np.abs(known).max(initial=0)), equal_nan=True)
        if found.shape != known.shape or not close.all():
            return f"y{index}: the decomposition gives other results than the kernel of the reference"
    return None


def _decomposed(sample: Sample, registry: Registry) -> Sequence[Array | None]:
    """The results of a sample by its op's decomposition, in float64 where that takes it."""
    arrays = sample.arrays()
    doubled = [a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in arrays]
    try:
        return decomposed(sample.node, doubled, registry)
    except InputError:
        return decomposed(sample.node, arrays, registry)


def gradient_problem(sample: Sample, registry: Registry) -> str | None:
    """How the derivative by the op's rule differs from a central difference, in random directions, or None.

    Raises:
        GradientError: the rule gives other types than the operands have, of the sample's own or in float64.
    """
    vjp_graph(*_by(sample))
    sample = in_float64(sample)
    graph, wrt = _by(sample)
    return _problem(graph, wrt, sample.feeds(), sample.seed, registry)


def _by(sample: Sample) -> tuple[Graph, list[Value]]:
    """The graph of a sample, and the inputs by which it is differentiated."""
    graph = _declared(sample.build())
    return graph, [value for value in graph.inputs if int(value.name[1:]) in sample.gradient]


def second_problem(sample: Sample, registry: Registry) -> str | None:
    """Likewise of the derivative of the gradient, with cotangents of the results as they are.

    An op in the gradient that has none of its own is no problem.
    """
    sample = in_float64(sample)
    graph = _declared(sample.build())
    names = [value.name for value in graph.inputs if int(value.name[1:]) in sample.gradient]
    joint = vjp_graph(graph, [value for value in graph.inputs if value.name in names])
    gradients = {f"first.{name}": joint.outputs[f"grad.{name}"] for name in names}
    joint = dataclasses.replace(joint, outputs=gradients)
    random = np.random.default_rng(sample.seed)
    feeds = sample.feeds()
    for value in joint.inputs:
        if value.name not in feeds:
            feeds[value.name] = random.standard_normal(value.type.sizes)
    wrt = [value for value in joint.inputs if value.name in names]
    try:
        return _problem(joint, wrt, feeds, sample.seed, registry)
    except GradientError as error:
        if "this op has no gradient" in str(error):
            return None
        raise


def _problem(
    graph: Graph, wrt: Sequence[Value], feeds: Mapping[str, Array], seed: int, registry: Registry
) -> str | None:
    """How a derivative of a graph differs from a central difference, in random directions, or None."""
    joint = vjp_graph(graph, wrt)
    outputs = {name: value for name, value in graph.outputs.items() if value.type.dtype.is_float}
    random = np.random.default_rng(seed)
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


def _declared(graph: Graph) -> Graph:
    """The graph of a sample without outputs that its node keeps for the gradient."""
    return dataclasses.replace(graph, outputs={n: v for n, v in graph.outputs.items() if not _is_extra(graph, n)})


def _moved(
    graph: Graph, feeds: Mapping[str, Array], direction: dict[str, Array], step: float, registry: Registry
) -> dict[str, Array]:
    at = {name: a + step * direction[name] if name in direction else a for name, a in feeds.items()}
    return evaluated(graph, at, registry)


def in_float64(sample: Sample) -> Sample:
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
