"""Loops: a scan's body on one device, with rows as operands that move from iteration to iteration.

Carried values are double-buffered: even iterations read the first half and write the second, odd iterations swap
them. Row t of a stacked value is an operand with an iteration stride. In a loop of unknown length a carried value
has one buffer, into which the end of an iteration copies the new one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..ir.graph import Node
from ..ir.lowered import Loop, LoweredNode, Storage
from ..ir.operand import BodyKind, is_contiguous
from ..ir.types import TensorType, contiguous_strides
from ..ir.value import Value


@dataclass(frozen=True, slots=True)
class Scan:
    """The operands of a scan node by kind.

    Attributes:
        carries, xs, captures: indices of inputs.
        finals, ys, saved: indices of outputs.
    """

    carries: range
    xs: range
    captures: range
    finals: range
    ys: range
    saved: range
    iterations: int
    reverse: bool

    @staticmethod
    def of(node: Node) -> Scan:
        """Those of ``node``; see the op's declaration."""
        carries, xs = int(node.attributes["n_carries"]), int(node.attributes["n_xs"])
        rows = len(node.bodies[0].outputs) - carries
        first = next(v for v in [*node.inputs[carries : carries + xs], *node.outputs[carries:]] if v is not None)
        return Scan(
            range(carries),
            range(carries, carries + xs),
            range(carries + xs, len(node.inputs)),
            range(carries),
            range(carries, carries + rows),
            range(carries + rows, len(node.outputs)),
            int(first.type.shape[0]),
            bool(node.attributes["reverse"]),
        )


def row(stacked: Storage, scan: Scan) -> Storage:
    """Row t of a stacked value in iteration t; from the last one back when the scan is reversed."""
    step = stacked.strides[0] * stacked.type.dtype.nbytes(1)
    # Below the offset in a flipped view.
    begin = (scan.iterations - 1) * step if scan.reverse and scan.iterations else 0
    return Storage(
        stacked.base,
        stacked.offset + begin,
        stacked.strides[1:],
        TensorType(stacked.type.dtype, stacked.type.shape[1:]),
        -step if scan.reverse else step,
    )


def halves(buffer: Storage) -> tuple[Storage, Storage]:
    """What an iteration reads and what it writes of a carried value; ``buffer`` has both halves on its first axis."""
    type_ = TensorType(buffer.type.dtype, buffer.type.shape[1:])
    strides, size = contiguous_strides(type_.sizes), type_.nbytes
    return (
        Storage(buffer.base, buffer.offset, strides, type_, 0, size),
        Storage(buffer.base, buffer.offset + size, strides, type_, 0, -size),
    )


def half(buffer: Storage, index: int) -> Storage:
    """One half of a carried value's double buffer, outside the loop."""
    read, _ = halves(buffer)
    return Storage(buffer.base, buffer.offset + index * read.type.nbytes, read.strides, read.type)


def make_loop(
    node: Node,
    device: str,
    items: list[LoweredNode | Loop],
    iterations: int,
    outer: Callable[[Storage], bool],
    kind: BodyKind = "repeat",
    when: bool = True,
    control: tuple[Storage, ...] = (),
    counts: tuple[Storage, ...] = (),
) -> Loop:
    """The loop of a lowered body; ``outer`` tells storage that outlives an iteration from the body's own."""
    reads = [s for item in items for s in item.inputs if s is not None and outer(s)]
    writes = [s for item in items for s in item.outputs if s is not None and outer(s)]
    inputs, outputs = (tuple(dict.fromkeys(found)) for found in ((*control, *reads), (*counts, *writes)))
    return Loop(node, device, tuple(items), iterations, inputs, outputs, kind, when, control, counts)


def placeable(value: Value, storage: Storage) -> bool:
    """True when a kernel can write ``value`` straight into ``storage``."""
    return is_contiguous(value.type.sizes, storage.strides) and value.type == storage.type
