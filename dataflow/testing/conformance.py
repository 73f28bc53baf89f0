"""The conformance kit: run every sample on a device, and compare with the reference in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ..errors import DataflowError
from ..execute.python_device import call_kernel
from ..ir.graph import Graph, Initializer
from ..ir.types import Array, float32, float64
from ..planning.algorithms import Algorithms
from ..planning.offsets import values_apart
from ..plugin.device import Precision
from ..plugin.registry import Registry, default_registry
from ..session import Session
from .layouts import AxisLayout, Layouts, Variant, combinations, every, uniform
from .sample import Sample
from .samples import SAMPLES

Status = Literal["passed", "failed", "not claimed", "untested"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
BASIC: tuple[Variant, ...] = VARIANTS[:5]  # of every sample, one trial each; the others need strided operands
TOLERANCES = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-12}
SHARING: frozenset[Variant] = frozenset({"plain", "constant"})  # values share memory, as they do for users
_GUARD = 64  # bytes before and behind each output that no kernel may write


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one sample, in one variant, on a device."""

    device: str
    op: str
    sample: str
    variant: str
    status: Status
    text: str = ""

    def __str__(self) -> str:
        command = f"  again: dataflow plugin test {self.device} --sample '{self.sample}'"
        return f"{self.status}: {self.sample} ({self.variant}) {self.text}{command if self.status == 'failed' else ''}"


def check_device(
    device: str,
    *,
    registry: Registry | None = None,
    samples: Iterable[Sample] = SAMPLES,
    complete: bool = True,
    precision: Precision = "float32",
    variants: Collection[Variant] = VARIANTS,
) -> Iterator[Outcome]:
    """An outcome for each sample and variant; if ``complete``, also ``untested`` for claimed ops without a sample.

    A device claims a node when one of its kernels accepts it. Each variant checks values and writes outside the
    outputs, for every algorithm that the kernel has for the node:

    - ``plain``: contiguous operands;
    - ``strided``: gaps between the elements, and the order of the axes reversed;
    - ``transposed``: the order of the axes reversed;
    - ``unaligned``: operands one element behind an aligned address;
    - ``constant``: every operand but the first is constant, so that a kernel may prepack it;
    - ``broadcast``, ``reversed``, ``padded_rows``, ``mixed``: of operands that the device takes with any strides (see
      ``combinations``).

    Values of all variants but ``plain`` and ``constant`` lie apart, so that a kernel is seen that writes beside them.

    Args:
        device: its name.
        registry: of plugins; None: of those that are installed.
        samples: those to run; if ``complete``, the registry's too.
        complete: report claimed ops without a sample.
        precision: of products.
        variants: those to run.
    """
    registry = registry or default_registry()
    registry.device(device)
    samples = [*samples, *registry.samples] if complete else samples
    claimed = set(registry.kernels[device])
    tested: set[str] = set()
    for sample in samples:
        strided = _takes_any_strides(sample, device, registry)
        if strided is None:
            yield Outcome(device, sample.op.name, sample.name, "plain", "not claimed")
            continue
        tested.add(sample.op.name)
        found: dict[Variant, str] = {}
        plain = _expected(sample, registry)
        for variant, layouts in trials(sample, strided):
            if variant not in variants or found.get(variant):
                continue
            broadcast = any(layout is not None and layout.broadcasts for layout in layouts)
            expected = _expected(sample, registry, layouts) if broadcast else plain
            trial = _Trial(sample, device, registry, precision, variant, layouts, expected, plain)
            found[variant] = trial.difference() or ""
        for variant, text in found.items():
            yield Outcome(device, sample.op.name, sample.name, variant, "failed" if text else "passed", text)
    for op in sorted(claimed - tested) if complete else ():
        yield Outcome(device, op, op, "plain", "untested", "the device claims it, and no sample shows that it is right")


def _takes_any_strides(sample: Sample, device: str, registry: Registry) -> list[bool] | None:
    """For each operand, whether a kernel of the device takes any strides; None: the device doesn't claim the node."""
    (node,) = sample.build().nodes
    if node.bodies and registry.devices[device].bodies and sample.op.name == "scan":
        return [True] * len(node.inputs)
    kernels = [kernel for kernel in registry.kernels[device].get(sample.op.name, ()) if kernel.refuses(node) is None]
    if not kernels:
        return None
    return [any(kernel.input_spec(index).strided for kernel in kernels) for index in range(len(node.inputs))]


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


@dataclass(frozen=True, slots=True)
class _Trial:
    """A sample on a device, in one variant.

    Attributes:
        expected: the results.
        plain: the results of the ``plain`` variant; their magnitude is that of intermediate values, which the few
            distinct results of broadcast operands don't show.
    """

    sample: Sample
    device: str
    registry: Registry
    precision: Precision
    variant: Variant
    layouts: Layouts
    expected: Mapping[str, Array]
    plain: Mapping[str, Array]

    def difference(self) -> str | None:
        """The first difference over all algorithms of the device's kernel, or None."""
        avoided: set[str] = set()
        while True:
            algorithms = Algorithms(avoid=avoided)
            text = self.difference_by(algorithms)
            used = {*algorithms.used.values()}
            if text:
                notes = [str(self)] * any(self.layouts) + [f"algorithm {', '.join(sorted(used))}"] * bool(used)
                return text + (f" ({'; '.join(notes)})" if notes else "")
            if used <= avoided:
                return None
            avoided |= used

    def difference_by(self, algorithms: Algorithms) -> str | None:
        """The first difference with the algorithm that ``algorithms`` leaves, or None."""
        with nullcontext() if self.variant in SHARING else values_apart():
            return self.compared(algorithms)

    def compared(self, algorithms: Algorithms) -> str | None:
        """The first difference of what a session computes that is made now, or None."""
        graph, feeds = self.sample.build(self.layouts), self.sample.feeds(self.layouts)
        if self.variant == "constant":
            graph, feeds = _with_constants(graph, feeds)
        session = Session(
            graph,
            [self.device],
            registry=self.registry,
            threads=2,
            fold=False,
            precision=self.precision,
            algorithms=algorithms,
        )
        if self.variant == "unaligned":
            feeds = {name: _unaligned(array) for name, array in feeds.items()}
        guarded = {name: _guarded(array) for name, array in self.expected.items()}
        try:
            session.run(feeds, out={name: array for name, (array, _) in guarded.items()})
        except DataflowError as error:
            return f"raised {type(error).__name__}: {error}"
        if len(graph.nodes) == 1 and any(a.size for a in self.expected.values()):
            shapes = {name: array.shape for name, array in feeds.items()}
            devices = {p.device for p in session.placement(shapes) if p.op == self.sample.op.name}
            if devices and devices != {self.device}:
                return f"the node ran on {', '.join(devices)}"
        for program in () if self.variant in SHARING else session._loaded().engine.programs.values():
            for bound in program.bounds:
                if text := bound.damage():
                    return text
        for name, (array, memory) in guarded.items():
            if (memory[:_GUARD] != _CANARY).any() or (memory[_GUARD + array.nbytes :] != _CANARY).any():
                return f"{name}: bytes outside the output were written"
            text = _mismatch(array, self.expected[name], self.sample.tolerance, _largest(self.plain[name]))
            if text:
                return f"{name}: {text}"
        return None

    def __str__(self) -> str:
        return ", ".join(f"x{i}{layout}" for i, layout in enumerate(self.layouts) if layout is not None)


def _expected(sample: Sample, registry: Registry, layouts: Layouts = ()) -> dict[str, Array]:
    """The outputs of the reference's kernel, computed in float64 and rounded to the declared dtypes."""
    (node,) = sample.build().nodes
    arrays = [_as_float64(array) for array in sample.arrays(layouts)]
    attributes = {key: float64 if value == float32 else value for key, value in node.attributes.items()}
    results = call_kernel(registry.reference_kernels[sample.op.name][0].code, node, arrays, attributes)
    return {
        f"y{index}": np.asarray(result).astype(value.type.dtype.numpy)
        for index, (value, result) in enumerate(zip(node.outputs, results, strict=False))
        if value is not None
    }


def _with_constants(graph: Graph, feeds: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """The graph with every input but the first as an initializer, and the data of the first."""
    first, *others = graph.inputs
    stored = {**graph.initializers, **{value: Initializer(feeds[value.name]) for value in others}}
    return dataclasses.replace(graph, inputs=(first,), initializers=stored), {first.name: feeds[first.name]}


def _as_float64(array: Array | None) -> Array | None:
    return array.astype(np.float64) if array is not None and array.dtype == np.float32 else array


_CANARY = 0xA5


def _guarded(like: Array) -> tuple[Array, Array]:
    """An array of the shape and dtype between guard bytes, and the memory of both, filled with the canary.

    Strings lie between none: no kernel sees the memory of their arrays.
    """
    if like.dtype.hasobject:
        return np.empty_like(like), np.full(2 * _GUARD, _CANARY, np.uint8)
    memory = np.full(like.nbytes + 2 * _GUARD, _CANARY, np.uint8)
    array = np.ndarray(like.shape, like.dtype, memory, _GUARD)
    return array, memory


def _unaligned(array: Array) -> Array:
    """A copy whose first element lies one element behind a 64-byte boundary."""
    if array.dtype.hasobject:
        return array.copy()
    size = array.itemsize
    memory = np.empty(array.nbytes + 128 + size, np.uint8)
    begin = -memory.ctypes.data % 64 + size
    found = np.ndarray(array.shape, array.dtype, memory, begin)
    found[...] = array
    return found


def _largest(array: Array) -> float:
    """The largest magnitude of finite elements; 0 without any, and of strings."""
    if array.dtype.hasobject:
        return 0.0
    sizes = np.abs(array.astype(np.float64))
    return float(sizes[np.isfinite(sizes)].max(initial=0.0))


def _mismatch(found: Array, expected: Array, tolerance: float | None, scale: float) -> str | None:
    """The first element whose error exceeds rounding of values as large as ``scale``, or None."""
    if found.dtype.kind not in "fV":
        wrong = found != expected
    else:
        limit = tolerance or TOLERANCES.get(found.dtype.name, 2e-2)
        a, b = found.astype(np.float64), expected.astype(np.float64)
        largest = max(_largest(expected), scale)
        close = np.abs(a - b) <= limit * np.maximum(np.abs(b), 0.1 * largest)
        wrong = ~(close | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = int(wrong.sum())
    return f"{count} of {wrong.size} elements differ, first at {list(at)}: {found[at]} instead of {expected[at]}"


def selected(pattern: str | None) -> tuple[Sample, ...]:
    """The samples whose name begins with ``pattern``; all without one."""
    return tuple(s for s in SAMPLES if not pattern or s.name.startswith(pattern))
