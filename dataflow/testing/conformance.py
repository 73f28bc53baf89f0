"""Runs the samples on a device and compares with the reference in double precision."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..algorithms import Algorithms
from ..device import Precision
from ..errors import DataflowError
from ..graph import Array, Graph, Initializer
from ..registry import LAST_RESORT, Registry, default_registry
from ..session import Session
from ..types import float32, float64
from .sample import Sample
from .samples import SAMPLES

Status = Literal["passed", "failed", "not claimed", "untested"]
Variant = Literal["plain", "strided", "turned", "odd", "constant"]
VARIANTS: tuple[Variant, ...] = ("plain", "strided", "turned", "odd", "constant")
_SPREAD = {"strided": 2, "turned": 1}
TOLERANCES = {"float16": 2e-3, "bfloat16": 2e-2, "float32": 2e-5, "float64": 1e-12}
_GUARD = 64  # bytes before and behind each output that must stay as they were


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one sample, in one variant, gave on a device."""

    device: str
    op: str
    sample: str
    variant: str
    status: Status
    text: str = ""

    def __str__(self) -> str:
        again = (
            f"  again: dataflow plugin test {self.device} --sample '{self.sample}'" if self.status == "failed" else ""
        )
        return f"{self.status}: {self.sample} ({self.variant}) {self.text}{again}"


def check_device(
    device: str,
    *,
    registry: Registry | None = None,
    samples: Iterable[Sample] = SAMPLES,
    complete: bool = True,
    precision: Precision = "float32",
) -> Iterator[Outcome]:
    """An outcome for each sample and variant; when ``complete``, ``untested`` for claimed ops without a sample.

    A kernel is ``claimed`` when the device has a record that takes the node. Checked are values, writes outside the
    outputs, operands with gaps between their elements, operands whose axes lie in reversed order, operands at odd
    addresses, and operands behind the first one that are constant, so that a kernel may keep packed copies of them; all
    of it by every algorithm that a kernel has for the node.
    """
    registry = registry or default_registry()
    registry.device(device)
    samples = [*samples, *registry.samples] if complete else samples
    claimed = set(registry.kernels[device])
    tested: set[str] = set()
    for sample in samples:
        graph = sample.build()
        (node,) = graph.nodes
        kernels = registry.kernels[device].get(sample.op.name, ())
        native_body = bool(node.bodies) and registry.devices[device].bodies and sample.op.name == "scan"
        if not native_body and all(kernel.refuses(node) is not None for kernel in kernels):
            yield Outcome(device, sample.op.name, sample.name, "plain", "not claimed")
            continue
        tested.add(sample.op.name)
        turns = any(len(v.type.shape) > 1 for v in graph.inputs)
        for variant in VARIANTS:
            if (variant == "constant" and len(graph.inputs) < 2) or (variant == "turned" and not turns):
                continue
            text = _difference(sample, device, variant, registry, precision)
            yield Outcome(device, sample.op.name, sample.name, variant, "failed" if text else "passed", text or "")
    for op in sorted(claimed - tested) if complete else ():
        yield Outcome(device, op, op, "plain", "untested", "the device claims it, and no sample shows that it is right")


def _difference(sample: Sample, device: str, variant: Variant, registry: Registry, precision: Precision) -> str | None:
    """What is wrong with the sample on a device, by any of its kernel's algorithms, or None."""
    avoided: set[str] = set()
    while True:
        algorithms = Algorithms(avoid=avoided)
        text = _difference_by(algorithms, sample, device, variant, registry, precision)
        used = {*algorithms.used.values()}
        if text:
            return text + (f" (by {', '.join(sorted(used))})" if used else "")
        if used <= avoided:
            return None
        avoided |= used


def _difference_by(
    algorithms: Algorithms, sample: Sample, device: str, variant: Variant, registry: Registry, precision: Precision
) -> str | None:
    spread = _SPREAD.get(variant, 0)
    graph, feeds = sample.build(spread), sample.feeds(spread)
    expected = _expected(sample, registry)
    if variant == "constant":
        graph, feeds = _with_constants(graph, feeds)
    session = Session(
        graph, [device], registry=registry, threads=2, fold=False, precision=precision, algorithms=algorithms
    )
    if variant == "odd":
        feeds = {name: _odd(array) for name, array in feeds.items()}
    guarded = {name: _guarded(array) for name, array in expected.items()}
    try:
        session.run(feeds, out={name: array for name, (array, _) in guarded.items()})
    except DataflowError as error:
        return f"raised {type(error).__name__}: {error}"
    if len(graph.nodes) == 1 and any(a.size for a in expected.values()):
        placed = {p.device for p in session.placement({n: a.shape for n, a in feeds.items()}) if p.op == sample.op.name}
        if placed and placed != {device}:
            return f"the node ran on {', '.join(placed)}"
    for name, (array, memory) in guarded.items():
        if (memory[:_GUARD] != _CANARY).any() or (memory[_GUARD + array.nbytes :] != _CANARY).any():
            return f"{name}: bytes outside the output were written"
        text = _far(array, expected[name], sample.tolerance)
        if text:
            return f"{name}: {text}"
    return None


def _expected(sample: Sample, registry: Registry) -> dict[str, Array]:
    """The outputs by the reference's kernel, in double precision, rounded to the declared dtypes."""
    (node,) = sample.build().nodes
    arrays = [_double(array) for array in sample.arrays()]
    attributes = {key: float64 if value == float32 else value for key, value in node.attributes.items()}
    extra = {"bodies": node.bodies} if node.op.bodies else {}
    with np.errstate(all="ignore"):
        found = registry.kernels[LAST_RESORT][sample.op.name][0].code(attributes, *arrays, **extra)
    results = found if isinstance(found, tuple) else (found,)
    return {
        f"y{index}": np.asarray(result).astype(value.type.dtype.numpy)
        for index, (value, result) in enumerate(zip(node.outputs, results, strict=False))
        if value is not None
    }


def _with_constants(graph: Graph, feeds: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """The graph with every input but the first as an initializer, and what is left to feed."""
    first, *others = graph.inputs
    stored = {**graph.initializers, **{value: Initializer(feeds[value.name]) for value in others}}
    return dataclasses.replace(graph, inputs=(first,), initializers=stored), {first.name: feeds[first.name]}


def _double(array: Array | None) -> Array | None:
    return array.astype(np.float64) if array is not None and array.dtype == np.float32 else array


_CANARY = 0xA5


def _guarded(like: Array) -> tuple[Array, Array]:
    """A poisoned array of the shape and dtype with guard bytes around it, and the whole memory."""
    memory = np.full(like.nbytes + 2 * _GUARD, _CANARY, np.uint8)
    array = np.ndarray(like.shape, like.dtype, memory, _GUARD)
    return array, memory


def _odd(array: Array) -> Array:
    """A copy whose first element lies one element behind a 64-byte boundary."""
    size = array.itemsize
    memory = np.empty(array.nbytes + 128 + size, np.uint8)
    begin = -memory.ctypes.data % 64 + size
    found = np.ndarray(array.shape, array.dtype, memory, begin)
    found[...] = array
    return found


def _far(found: Array, expected: Array, tolerance: float | None) -> str | None:
    """Where two results differ more than rounding explains, or None."""
    if found.dtype.kind not in "fV":
        wrong = found != expected
    else:
        limit = tolerance or TOLERANCES.get(found.dtype.name, 2e-2)
        a, b = found.astype(np.float64), expected.astype(np.float64)
        largest = np.abs(b[np.isfinite(b)]).max() if np.isfinite(b).any() else 0.0
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
