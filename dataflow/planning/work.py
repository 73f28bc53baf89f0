"""What the items of a lowered graph read, write and cost, as plain numbers: what a schedule is searched with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..ir.graph import Node
from ..ir.lowered import BaseTensor, Loop, Lowered, LoweredItem, LoweredNode, Move, Storage
from ..ir.types import bfloat16, float16
from ..ir.value import Value

# A call of a kernel takes as long as moving so many bytes: those of its operands, those that its operations take
# and those of the call itself. Of measured steps on a CPU with AVX-512 (415 Gflop/s of products, 40 GB/s of
# elementwise kernels) and of an H100's data sheet (67 Tflop/s, 3.35 TB/s): ten to twenty operations per byte.
FLOPS_PER_BYTE = 10
HALVES_FLOPS_PER_BYTE = 200  # of products of 16 bits, by an H100's tensor cores (600 of 989 Tflop/s were measured)
CALL = 10_000
BUS = 50  # bytes of a card's memory that are moved in the time of one over the bus to it
ALIGNMENT = 64


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Tables by the index of an item or of a base tensor.

    A base tensor counts here if it has an offset in an arena: no input, result or state that is kept from run to run.

    Attributes:
        bases: those that count.
        sizes: bytes of each, as they are laid out.
        uses: the items that read or write each, in order.
        makers: the items that write each.
        reads, writes: base tensors of each item.
        again: of each item what it reads when it is computed again; None where it can't be.
        same: base tensors of each item that it alone writes, and with the same bits when it is computed again.
        until: the last item before which each may be computed again: that item changes what it reads.
        shared: of each item the pairs (result, operand) whose bytes may be shared.
        costs: of each item, in bytes moved.
        extra: bytes that the plan has at each item beside base tensors: workspace, bodies of loops.
    """

    bases: tuple[BaseTensor, ...]
    sizes: tuple[int, ...]
    uses: tuple[tuple[int, ...], ...]
    makers: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    again: tuple[tuple[int, ...] | None, ...]
    same: tuple[tuple[int, ...], ...]
    until: tuple[int, ...]
    shared: tuple[tuple[tuple[int, int], ...], ...]
    costs: tuple[int, ...]
    extra: tuple[int, ...]

    @property
    def cost(self) -> int:
        """Of all items once."""
        return sum(self.costs)


def alike(one: Work, other: Work) -> bool:
    """Whether a schedule of one is a schedule of the other: they differ at most in bytes and costs."""
    return (
        one.reads == other.reads
        and one.writes == other.writes
        and one.again == other.again
        and one.until == other.until
    )


def work_of(lowered: Lowered) -> Work:
    """The tables of a lowered graph; ``extra`` is zeros."""
    fixed = {s.base for s in (*lowered.inputs.values(), *lowered.outputs.values())}
    fixed |= {stored.storage.base for stored in lowered.stored.values()}
    passing = lowered.passing()
    fixed |= {base for pair in lowered.states if pair[0] not in passing for base in pair}
    changed = {after for after, _ in lowered.states}
    changes = _changes(lowered)
    count = len(lowered.items)
    number: dict[BaseTensor, int] = {}
    uses: list[list[int]] = []
    makers: list[list[int]] = []

    def numbers(storages: Sequence[Storage | None]) -> tuple[int, ...]:
        bases = [s.base for s in storages if s is not None and s.base not in fixed]
        return tuple(dict.fromkeys(number.setdefault(base, len(number)) for base in bases))

    reads, writes, again, until, shared, costs = [], [], [], [], [], []
    for index, item in enumerate(lowered.items):
        inputs, outputs = operands_of(item)
        reads.append(numbers(inputs))
        writes.append(numbers(outputs))
        for base in (*reads[-1], *writes[-1]):
            if base == len(uses):
                uses.append([])
                makers.append([])
            if not uses[base] or uses[base][-1] != index:
                uses[base].append(index)
        if isinstance(item, Loop):  # a body may read back what it has written itself: rows of a result
            reads[-1] = tuple(base for base in reads[-1] if makers[base] or base not in writes[-1])
        for base in writes[-1]:
            makers[base].append(index)
        repeated = read_again(item)
        until.append(min((changes.get(s.base, count) for s in repeated or () if s is not None), default=count))
        stays = any(s is not None and s.base in passing for s in outputs)  # to the end
        fixed_inputs = until[-1] > index and not any(s is not None and s.base in changed for s in repeated or ())
        again.append(numbers(repeated) if repeated is not None and fixed_inputs and not stays else None)
        shared.append(_shared(item, number))
        costs.append(_cost(item))
    kept = tuple(number[base] for base in passing if base in number)
    if reads:
        reads[-1] = tuple(dict.fromkeys((*reads[-1], *kept)))
    for base in kept:
        if uses[base][-1] != count - 1:
            uses[base].append(count - 1)
    sizes = [-(-base.type.nbytes // ALIGNMENT) * ALIGNMENT for base in number]
    return Work(
        tuple(number),
        tuple(sizes),
        tuple(map(tuple, uses)),
        tuple(map(tuple, makers)),
        tuple(reads),
        tuple(writes),
        tuple(again),
        tuple(_same(item, written, makers) for item, written in zip(lowered.items, writes, strict=True)),
        tuple(until),
        tuple(shared),
        tuple(costs),
        (0,) * len(costs),
    )


def _same(item: LoweredItem, written: Sequence[int], makers: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """See ``Work.same``; an op that reads something else when it is computed again says so of its first result only."""
    if not isinstance(item, LoweredNode) or item.node.op.again:
        return ()
    return tuple(base for base in written if len(makers[base]) == 1)


def _changes(lowered: Lowered) -> dict[BaseTensor, int]:
    """The first item that writes over each stored base tensor that changes."""
    before = dict(lowered.states)
    found: dict[BaseTensor, int] = {}
    for index, item in enumerate(lowered.items):
        for storage in operands_of(item)[1]:
            if storage is not None and storage.base in before:
                found.setdefault(before[storage.base], index)
    return found


def operands_of(item: LoweredItem) -> tuple[Sequence[Storage | None], Sequence[Storage | None]]:
    """What an item reads and what it writes."""
    return ([item.source], [item.target]) if isinstance(item, Move) else (item.inputs, item.outputs)


def read_again(item: LoweredItem) -> list[Storage | None] | None:
    """What an item reads when it is computed again; None where that isn't allowed."""
    if isinstance(item, Move):
        return [item.source]
    # What is random depends on its key alone: the gradient of a dropout draws its numbers a second time too.
    if isinstance(item, Loop) or _has_host_effects(item.node):
        return None
    inputs = [*item.inputs]
    for index, result in sorted(item.node.op.again):
        known = item.outputs[result] if result < len(item.outputs) else None
        if index < len(item.inputs):
            if known is None:
                return None
            inputs[index] = known
        elif index == len(inputs) and known is not None:
            inputs.append(known)
    return inputs if len(inputs) == len(item.inputs) or _takes(item, len(inputs)) else inputs[: len(item.inputs)]


def inputs_again(node: Node, count: int) -> tuple[Value | None, ...]:
    """The values of a node that reads ``count`` inputs when it is computed again."""
    more = (node.outputs[result] for index, result in sorted(node.op.again) if len(node.inputs) <= index < count)
    return (*node.inputs, *more)


def _takes(item: LoweredNode, count: int) -> bool:
    """Whether the kernel takes the optional inputs that its op has for what is known already."""
    return item.kernel.refuses(replace(item.node, inputs=inputs_again(item.node, count))) is None


def _has_host_effects(node: Node) -> bool:
    """Whether a node, or one of its bodies, must not run twice."""
    return node.op.effects == "host" or any(_has_host_effects(inner) for body in node.bodies for inner in body.nodes)


def _shared(item: LoweredItem, number: dict[BaseTensor, int]) -> tuple[tuple[int, int], ...]:
    """The pairs of base tensors (result, operand) that may lie in the same bytes."""
    if not isinstance(item, LoweredNode):
        return ()
    found = []
    for result, operand in item.kernel.inplace:
        if result < len(item.outputs) and operand < len(item.inputs):
            out, source = item.outputs[result], item.inputs[operand]
            if out is not None and source is not None and out.base in number and source.base in number:
                reading = sum(s is not None and s.base is source.base for s in item.inputs)
                if reading == 1 and out.base.type.nbytes == source.base.type.nbytes == source.type.nbytes:
                    found.append((number[out.base], number[source.base]))
    return tuple(found)


def _cost(item: LoweredItem) -> int:
    """Of one run of an item, in bytes moved."""
    if isinstance(item, Loop):
        return CALL + item.iterations * sum(_cost(inner) for inner in item.items)
    inputs, outputs = operands_of(item)
    moved = sum(s.type.nbytes for s in (*inputs, *outputs) if s is not None)
    if isinstance(item, Move):
        return CALL + moved * BUS
    flops = item.node.operations()
    halves = len(inputs) > 1 and all(s is not None and s.type.dtype in (bfloat16, float16) for s in inputs[:2])
    return CALL + moved + flops // (HALVES_FLOPS_PER_BYTE if halves else FLOPS_PER_BYTE)
