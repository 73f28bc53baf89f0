"""A model of a card: what the steps of a plan take at least, from their bytes, their operations and published peaks.

A step takes the longer of two times: that of its bytes (each operand read once, each result written once) at the
memory's bandwidth, and that of its operations at the rate of the unit that does them; and what a node of a graph costs
beside its work. A kernel that needs fewer operations than its op declares, or that finds its operands in the cache, can
be faster; none that is well made is much slower. Peaks are those of the vendor's data sheets, without sparsity: A100
80 GB SXM (2021), H100 80 GB SXM (2023), H200 SXM (2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dataflow.execute.profile import work
from dataflow.ir.operand import Operand
from dataflow.ir.plan import Plan, Segment, Step

# By what tensor cores do; all else is float32 arithmetic.
PRODUCTS = ("matmul", "conv", "attention")
GATHERS = ("gather", "gather_nd", "gather_elements")  # read as much of the first operand as they write


@dataclass(frozen=True)
class Card:
    """Peaks.

    Attributes:
        bandwidth: of its memory, bytes per second.
        rates: operations per second of products by precision, and of everything else as ``float32``.
        node: seconds that a node of a graph costs beside its work.
    """

    name: str
    bandwidth: float
    rates: Mapping[str, float]
    node: float = 1e-6


HOPPER = {"bf16": 989e12, "tf32": 494e12, "float32": 67e12}
CARDS = (
    Card("A100", 2.039e12, {"bf16": 312e12, "tf32": 156e12, "float32": 19.5e12}),
    Card("H100", 3.35e12, HOPPER),
    Card("H200", 4.8e12, HOPPER),
)


def card_of(name: str) -> Card | None:
    """The peaks of the card that the driver calls ``name``, where they are known."""
    return next((card for card in CARDS if card.name in name), None)


@dataclass
class Predicted:
    """Of the steps of one op.

    Attributes:
        launches: nodes of a graph; steps that a kernel takes together are one.
        steps: how many there are.
        bytes: that they read and write.
        operations: that they do.
        seconds: that they take at least.
    """

    launches: int = 0
    steps: int = 0
    bytes: int = 0
    operations: int = 0
    seconds: float = 0.0


def operand_bytes(operand: Operand | None) -> int:
    """Of its elements; those that it repeats by a stride of 0 count once."""
    if operand is None:
        return 0
    sizes = (size for size, stride in zip(operand.type.sizes, operand.strides, strict=True) if stride or not size)
    return math.prod(sizes) * operand.type.dtype.bits // 8


def overwrites(before: Operand | None, after: Operand | None) -> bool:
    """Whether a result lies where an operand does."""
    return None not in (before, after) and (before.arena, before.offset) == (after.arena, after.offset)


def moved(step: Step) -> int:
    """Bytes that a step reads and writes; of a table to whose rows others are added where it lies, as many as those."""
    if step.node.op.name == "index_add" and len(step.inputs) > 2 and overwrites(step.inputs[2], step.outputs[0]):
        indices, rows = (operand_bytes(operand) for operand in step.inputs[:2])
        table = operand_bytes(step.outputs[0])
        assert step.inputs[1] is not None and step.outputs[0] is not None
        named = rows * step.outputs[0].type.dtype.bits // step.inputs[1].type.dtype.bits
        return indices + rows + 2 * min(named, table)
    written = sum(map(operand_bytes, step.outputs))
    read = {o: operand_bytes(o) for o in step.inputs if o is not None}
    if step.node.op.name in GATHERS and step.inputs[0] is not None:
        read[step.inputs[0]] = min(read[step.inputs[0]], written)
    return written + sum(read.values())


def joins(step: Step, before: Step | None) -> bool:
    """Whether a kernel takes a step and the one before it together."""
    same = before is not None and step.kernel is not None and step.kernel is before.kernel
    return same and bool(step.kernel is not None and step.kernel.code.run_many)


def steps_of(plans: Mapping[str, Plan], device: str) -> Iterator[tuple[Step, bool]]:
    """The steps on a device, in order, and whether a kernel takes each together with the one before it."""
    for plan in plans.values():
        for segment in (item for item in plan.items if isinstance(item, Segment) and item.device == device):
            before: Step | None = None
            for step in segment.steps:
                yield step, joins(step, before)
                before = step


def is_product(op: str) -> bool:
    """Whether tensor cores do it."""
    return op.startswith(PRODUCTS)


def predict(plans: Mapping[str, Plan], card: Card, precision: str, device: str = "cuda") -> dict[str, Predicted]:
    """What the steps of each op take at least, those that take longest first."""
    found: dict[str, Predicted] = {}
    for step, joined in steps_of(plans, device):
        op = step.node.op.name
        operations, size = work(step)[0], moved(step)
        row = found.setdefault(op, Predicted())
        rate = card.rates[precision if is_product(op) else "float32"]
        row.launches += not joined
        row.steps += 1
        row.bytes += size
        row.operations += operations
        row.seconds += max(size / card.bandwidth, operations / rate) + (0.0 if joined else card.node)
    return dict(sorted(found.items(), key=lambda item: -item[1].seconds))


def fallen_back(plans: Mapping[str, Plan], precision: str, device: str = "cuda") -> dict[str, float]:
    """Paths that are more exact than was asked for, or a kernel of ours in the library's stead, by name.

    Returns:
        The share of all operations of products that each has.
    """
    wanted = {"bf16": ("bf16", "tf32"), "tf32": ("tf32",), "float32": ("float32",)}[precision]
    shares: dict[str, float] = {}
    total = 0
    for step, _ in steps_of(plans, device):
        if not is_product(step.node.op.name):
            continue
        operations = work(step)[0]
        total += operations
        words = step.path.replace("#", " ").split()
        slow = {"own", "float32", "tf32", "bf16"} - {*wanted}
        if {*wanted} & {*step.prepared.algorithms}:  # it is there, and another one was chosen as the faster one
            continue
        if ("cublaslt" in words or "cudnn" in words) and slow & {*words}:
            shares[step.path] = shares.get(step.path, 0.0) + operations
    return {path: operations / total for path, operations in shares.items()}
