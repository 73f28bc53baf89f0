"""The copies that a device with a memory of its own must make: of operands that its kernels take only contiguous."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..ir.graph import Node
from ..ir.kernel import Kernel
from ..ir.types import DType, TensorType
from ..ir.value import Value
from ..ops.arithmetic import copy
from .layouts import Variant
from .outcome import Outcome, Report, Task
from .sample import Sample
from .trial import Target

COPYING: frozenset[Variant] = frozenset({"strided", "transposed"})  # lay out all operands, not those alone that a
# kernel takes so


def uncopied(sample: Sample, kernels: Sequence[Kernel | None] | None, target: Target) -> set[DType]:
    """The dtypes of a sample's operands that must be copied before a kernel takes them, and can't be."""
    if target.on_host:  # the last resort copies there
        return set()
    needed = {
        operand.dtype
        for kernel in kernels or ()
        for index, operand in enumerate(sample.inputs)
        if kernel is not None and operand is not None and not kernel.input_spec(index).strided
    }
    return {dtype for dtype in needed if not _copies(dtype, target)}


def _copies(dtype: DType, target: Target) -> bool:
    """Whether the device has a kernel of ``copy`` that takes operands of a dtype with any strides."""
    value = Value("x", TensorType(dtype, (2, 3)))
    node = Node(copy, "copy", (value,), (Value("y", value.type),), {})
    kernels = target.registry.kernels[target.device].get("copy", ())
    return any(kernel.input_spec(0).strided and kernel.refuses(node) is None for kernel in kernels)


def copies_task(dtypes: set[DType], target: Target) -> Task:
    """Says which copies are missing."""
    names = sorted(dtype.short for dtype in dtypes)

    def run(report: Report) -> Iterator[Outcome]:
        text = (
            f"no kernel of the device copies {', '.join(names)} with any strides, which a device with a memory of its "
            "own needs for operands that its kernels take only contiguous: models with views, e.g. slices and "
            f'transposes, fail. Offer one of the op copy, in C with operands = "~{"|".join(names)}->'
            f'{"|".join(names)}"; until then {" and ".join(sorted(COPYING))} operands are not tried'
        )
        yield Outcome(target.device, "copy", "copies", "strided", "failed", text)

    return Task("copy", "copies", run, always=True)
