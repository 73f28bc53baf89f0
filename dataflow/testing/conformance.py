"""The conformance kit: run every sample on a device, and compare with the reference in float64."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import get_args

from ..errors import ModelError
from ..host.garbage_collection import collection_paused
from ..ir.kernel import Kernel, has_work
from ..ir.types import DType
from ..lower.placement import Pins
from ..lower.select import select
from ..plugin.device import Precision
from ..plugin.registry import Registry, default_registry
from .claims import missing
from .copies import COPYING, copies_task, uncopied
from .device_memory import memory_task
from .expected import expected_of
from .isolation import run_isolated
from .layouts import AxisLayout, Layouts, Variant, combinations, every, uniform
from .outcome import Outcome, Report, Task, selected
from .process_state import ProcessState
from .records import in_place, repeated
from .refusals import REFUSED, refusal_task
from .sample import Sample, with_special_values
from .samples import SAMPLES
from .trial import Declined, Target, Trial, raised

VARIANTS: tuple[Variant, ...] = get_args(Variant)
REPLACED = frozenset({"deferred"})  # stands for a graph that is made for its inputs, before anything runs
BASIC: tuple[Variant, ...] = VARIANTS[:5]  # of every sample, one trial each; the others need strided operands


def check_device(
    device: str,
    *,
    registry: Registry | None = None,
    samples: Sequence[Sample] | None = None,
    complete: bool = True,
    precision: Precision = "float32",
    variants: Collection[Variant] = VARIANTS,
    select: str | None = None,
    limit: float | None = None,
) -> Iterator[Outcome]:
    """An outcome for each sample and variant; if ``complete``, also ``untested`` for claims without a sample.

    A device claims a node when one of its kernels accepts it; each such kernel runs. Each trial checks values, writes
    and reads outside of operands, changed operands, results that depend on what was in memory before, and, for every
    algorithm that the kernel has for the node:

    - ``plain``: contiguous operands;
    - ``strided``: gaps between the elements, and the order of the axes reversed;
    - ``transposed``: the order of the axes reversed;
    - ``unaligned``: operands at addresses of every alignment of their elements, right before a page of nobody;
    - ``constant``: every operand but the first is constant, so that a kernel may prepack it;
    - ``broadcast``, ``reversed``, ``padded_rows``, ``mixed``: of operands that the device takes with any strides (see
      ``combinations``);
    - ``special``: of elementwise ops, NaN, infinities and zeros of both signs among the operands;
    - ``in_place``: of a kernel's pairs, a result over its operand;
    - ``repeated``: for each kernel many runs, two at once, and one after a node of other sizes: the same bits, nothing
      left behind, also of what prepares it;
    - ``refused`` (if ``complete``): an index out of range is an error;
    - ``memory`` (if ``complete``): of a device with memory of its own, alignment and copies.

    After each sample ``process`` says what its kernels changed of the process, if anything. Values lie apart but for
    ``repeated``, so that a kernel is seen that writes or reads beside them.

    Args:
        device: its name.
        registry: of plugins; None: of those that are installed.
        samples: those to run, and if ``complete``, the registry's; None: this project's, ``testing.samples.SAMPLES``.
        complete: report claimed ops without a sample, and make samples of claimed dtypes that none has.
        precision: of products.
        variants: those to run.
        select: the name of an op, or the begin of the names of samples: what else there is isn't run.
        limit: seconds that a trial may take; it then runs in a child process, whose end is an outcome. None: all run in
            this process, and a kernel that crashes ends it.

    Raises:
        InputError: there is no such device, or nothing of the name that is selected.
        DeviceError: it is unavailable.
    """

    def make() -> list[Task]:
        tasks = tasks_of(
            device, registry=registry, samples=samples, complete=complete, precision=precision, variants=variants
        )
        return selected(tasks, select)

    yield from run_tasks(device, make, limit)


def run_tasks(device: str, make: Callable[[], list[Task]], limit: float | None) -> Iterator[Outcome]:
    """The outcomes of the tasks that are made, in children of this process where a trial has a limit of seconds."""
    if limit is None:
        for task in make():
            # The collector would close files that others have left open, as if a kernel had closed them.
            yield from collection_paused(lambda: [*task.run(lambda stage: None)])  # noqa: B023
        return
    yield from run_isolated(device, make, limit)


def tasks_of(
    device: str,
    *,
    registry: Registry | None = None,
    samples: Sequence[Sample] | None = None,
    complete: bool = True,
    precision: Precision = "float32",
    variants: Collection[Variant] = VARIANTS,
    only: Collection[Kernel] | None = None,
) -> list[Task]:
    """What ``check_device`` does, task by task; see there.

    ``only``: the kernels of which the device shall have no others.
    """
    registry = registry or default_registry()
    registry.device(device)
    kernels = registry.kernels[device]
    if only is not None:  # other ops keep theirs, e.g. copies
        chosen, kernels = {**kernels, **_by_op(only)}, _by_op(only)
        registry = dataclasses.replace(registry, kernels={**registry.kernels, device: chosen})
    target = Target(device, registry, precision)
    given = [*(SAMPLES if samples is None else samples), *(registry.samples if complete else ())]
    found: list[Task] = []
    reached: dict[Kernel, list[Sample]] = {}
    by_op: dict[str, list[Sample]] = {}
    tested: set[str] = set()
    tied: dict[tuple[Kernel, Kernel], Sample] = {}
    lacking: set[DType] = set()
    for sample in given:
        by_op.setdefault(sample.op.name, []).append(sample)
        taken = _takers(sample, target)
        if taken is not None and (None in taken or has_work(sample.node)):
            tested.add(sample.op.name)
        for kernel in taken or ():
            if kernel is not None and has_work(sample.node):
                reached.setdefault(kernel, []).append(sample)
        those = uncopied(sample, taken, target)
        found.append(_sample_task(sample, target, taken, [v for v in variants if not those or v not in COPYING]))
        lacking |= those
        for pair in _ties(sample, taken or ()):
            tied.setdefault(pair, sample)
    if lacking and not COPYING.isdisjoint(variants):
        found.append(copies_task(lacking, target))
    found += [_tied(device, sample, *pair) for pair, sample in tied.items()]
    untested = sorted(kernels.keys() - tested - REPLACED) if complete else []
    found += [_untested(device, op, op, _why_untested(kernels[op][0], by_op.get(op, ()), registry)) for op in untested]
    claimed = [kernel for op in sorted(kernels.keys() & tested) for kernel in kernels[op]] if complete else []
    for kernel, claim, made in missing(claimed, by_op):
        if made is None:
            text = f"{kernel.name} claims {claim}, and no sample shows that it is right"
            found.append(_untested(device, kernel.op, f"{kernel.op}, {claim}", text))
        else:
            reached.setdefault(kernel, []).append(made)
            found.append(_sample_task(made, target, [kernel], [v for v in BASIC if v in variants]))
    if complete:
        refused = [s for s in REFUSED if "refused" in variants and _takers(s, target) is not None]
        found += [refusal_task(sample, target) for sample in refused if sample.op.name in by_op]
        if not target.on_host and "memory" in variants:
            found.append(memory_task(target))
    found += [_record_task(kernel, samples, target, variants) for kernel, samples in reached.items()]
    return found


def _by_op(kernels: Collection[Kernel]) -> dict[str, tuple[Kernel, ...]]:
    return {op: tuple(kernel for kernel in kernels if kernel.op == op) for op in {kernel.op for kernel in kernels}}


def _untested(device: str, op: str, name: str, text: str) -> Task:
    return Task(op, name, lambda report: iter([Outcome(device, op, name, "plain", "untested", text)]))


def _ties(sample: Sample, taken: Sequence[Kernel | None]) -> list[tuple[Kernel, Kernel]]:
    """Pairs of kernels that take the node of a sample, of one plugin with one priority: no session could choose."""
    found = [kernel for kernel in taken if kernel is not None] if has_work(sample.node) else []
    return [
        (one, other)
        for one, other in itertools.pairwise(found)
        if (one.priority, one.plugin) == (other.priority, other.plugin)
    ]


def _tied(device: str, sample: Sample, one: Kernel, other: Kernel) -> Task:
    both = f"{one.name!r} and {other.name!r} of plugin {one.plugin}"
    text = f"kernels {both} both take the node with priority {one.priority}; give one of them a higher one"
    outcome = Outcome(device, sample.op.name, sample.name, "tied", "failed", text)
    return Task(sample.op.name, sample.name, lambda report: iter([outcome]))


def _why_untested(kernel: Kernel, samples: Sequence[Sample], registry: Registry) -> str:
    """Why nothing shows that a kernel is right, of an op of which no sample is taken."""
    if kernel.op not in registry.ops:
        near = difflib.get_close_matches(kernel.op, registry.ops, 3)
        return f"{kernel.name} is for an op that nobody declares" + (f"; near: {', '.join(near)}" if near else "")
    if not samples:
        return "the device claims it, and no sample shows that it is right"
    node = samples[0].node
    return f"none of the op's {len(samples)} samples is taken, e.g. not {samples[0].name}: {kernel.refuses(node)}"


def _takers(sample: Sample, target: Target) -> list[Kernel | None] | None:
    """The kernels of the device that accept the node; [None]: it needs none; None: the device doesn't claim it."""
    node = sample.node
    if node.bodies and target.registry.devices[target.device].bodies and _runs_bodies(sample, target):
        return [None]
    found = target.registry.kernels[target.device].get(sample.op.name, ())
    return [kernel for kernel in found if kernel.refuses(node) is None] or None


def _runs_bodies(sample: Sample, target: Target) -> bool:
    """Whether the device runs the bodies of the node itself."""
    try:
        select(sample.build(), Pins((target.device,)), target.registry)
    except ModelError:
        return False
    return True


def _sample_task(
    sample: Sample, target: Target, kernels: Sequence[Kernel | None] | None, variants: Collection[Variant]
) -> Task:
    """All trials of a sample by each of these kernels."""
    device, op, name = target.device, sample.op.name, sample.name

    def run(report: Report) -> Iterator[Outcome]:
        if kernels is None:
            yield Outcome(device, op, name, "plain", "not claimed")
            return
        before = ProcessState.now()
        found: dict[Variant, str] = {}
        declined: list[str] = []
        for kernel in kernels:
            alone = target if len(target.registry.kernels[device].get(op, ())) < 2 else target.only(kernel)
            note = f" by {kernel.name}" if kernel is not None and len(kernels) > 1 else ""
            try:
                for variant, text in _trials(sample, alone, kernel, variants, report):
                    found[variant] = found.get(variant) or (f"{text}{note}" if text else "")
            except Declined as reason:
                declined.append(f"{reason}{note}")
        if declined and not found:
            yield Outcome(device, op, name, "plain", "not claimed", "; ".join(declined))
        for variant, text in found.items():
            yield Outcome(device, op, name, variant, "failed" if text else "passed", text)
        if text := ProcessState.now().changed(before) or "":
            yield Outcome(device, op, name, "process", "failed", text)

    return Task(op, name, run)


def _trials(
    sample: Sample, target: Target, kernel: Kernel | None, variants: Collection[Variant], report: Report
) -> Iterator[tuple[Variant, str]]:
    """What is wrong in each trial of a sample by a kernel."""
    strided = [kernel is None or kernel.input_spec(index).strided for index in range(len(sample.inputs))]
    plain = expected_of(sample, target.registry)
    failed: set[Variant] = set()
    for variant, layouts in trials(sample, strided):
        if variant not in variants or variant in failed:
            continue
        report(variant)
        broadcast = any(layout is not None and layout.broadcasts for layout in layouts)
        expected = expected_of(sample, target.registry, layouts) if broadcast else plain
        text = Trial(sample, target, variant, layouts, expected, plain).difference()
        if text:
            failed.add(variant)
        yield variant, text or ""
    data = with_special_values(sample) if "special" in variants and sample.op.elementwise else None
    if data is not None:
        report("special")
        arrays = [data.get(f"x{index}") for index in range(len(sample.inputs))]
        expected = expected_of(sample, target.registry, arrays=arrays)
        yield "special", Trial(sample, target, "special", (), expected, expected, data).difference() or ""


def trials(sample: Sample, strided: Sequence[bool]) -> Iterator[tuple[Variant, Layouts]]:
    """The variants of a sample with the layouts of its operands; ``strided``: which operands may have any strides."""
    shapes = [None if operand is None else operand.shape for operand in sample.inputs]
    yield "plain", ()
    yield "strided", every(shapes, lambda shape: uniform(shape, AxisLayout(2), transposed=True))
    if any(shape and len(shape) > 1 for shape in shapes):
        yield "transposed", every(shapes, lambda shape: uniform(shape, AxisLayout(), transposed=True))
    yield "unaligned", ()
    if sum(shape is not None for shape in shapes) > 1:
        yield "constant", ()
    chosen = [shape if any_strides else None for shape, any_strides in zip(shapes, strided, strict=True)]
    fixed = {i for i, operand in enumerate(sample.inputs) if operand is not None and operand.value is not None}
    yield from combinations(chosen, sample.seed, fixed)


_OVERWRITING = 4  # samples whose results lie over an operand, of each record


def _record_task(kernel: Kernel, samples: Sequence[Sample], target: Target, variants: Collection[Variant]) -> Task:
    """What is checked of a record, with samples that reach it."""
    device, op = target.device, kernel.op
    alone = target.only(kernel)
    several = [s for s in samples if any(o is not None and 0 not in o.shape for o in s.inputs)] or [*samples]
    typical = min(several, key=lambda s: abs(_elements(s) - _TYPICAL))

    other = min(several, key=lambda s: (s is typical, _sizes(s) == _sizes(typical), _elements(s)))

    def run(report: Report) -> Iterator[Outcome]:
        before = ProcessState.now()
        if "in_place" in variants and kernel.inplace:
            report("in_place")
            found: dict[tuple[int, int], str] = {}
            for sample in sorted(several, key=_elements)[-_OVERWRITING:] + several[:_OVERWRITING]:
                for pair, text in in_place(sample, alone, kernel):
                    found[pair] = found.get(pair) or (f"{kernel.name}, {sample.name}: {text}" if text else "")
            for text in found.values():
                yield Outcome(device, op, typical.name, "in_place", "failed" if text else "passed", text)
        if "repeated" in variants:
            report("repeated")
            problems: list[str | None] = []
            text = raised(lambda: problems.append(repeated(typical, other, alone, kernel))) or problems[0] or ""
            named = f"{kernel.name}: {text}" if text else ""
            yield Outcome(device, op, typical.name, "repeated", "failed" if text else "passed", named)
        if changed := ProcessState.now().changed(before):
            yield Outcome(device, op, typical.name, "process", "failed", f"{kernel.name}: {changed}")

    return Task(op, typical.name, run)


_TYPICAL = 20_000  # elements: enough for two runs to overlap, and few enough to be quick


def _sizes(sample: Sample) -> list[tuple[int, ...] | None]:
    return [None if operand is None else operand.shape for operand in sample.inputs]


def _elements(sample: Sample) -> int:
    node = sample.node
    return sum(value.type.elements for value in (*node.inputs, *node.outputs) if value is not None)
