"""A segment as the tables of the C contract: steps, operands, arenas, and bodies in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._runtime import ffi
from .abi import BODY_KINDS, CData, Tables

if TYPE_CHECKING:
    from ..ir.plan import Body, Step


@dataclass(frozen=True, slots=True)
class FilledSteps:
    """The steps of a segment or of a body, and their tables: ``df_step[]`` and ``df_operand[]``."""

    planned: Sequence[Step]
    steps: CData
    operands: CData


class SegmentTables:
    """A ``df_segment`` with all that it points to.

    Args:
        planned: its steps.
        arenas: per arena of the plan: buffer or None, bytes, number of the slot or -1.
        threads: the session's.
        tables: makes lists and operands.

    Attributes:
        native: the ``df_segment *``.
        arenas: its ``df_arena[]``.
        filled: its steps, then those of each body.
    """

    def __init__(
        self,
        planned: Sequence[Step],
        arenas: Sequence[tuple[Any, int, int]],
        threads: int,
        tables: Tables | None = None,
    ) -> None:
        self._tables = Tables() if tables is None else tables
        self._threads, self._count = threads, len(arenas)
        self.arenas = ffi.new("df_arena[]", max(len(arenas), 1))
        for entry, (buffer, size, slot) in zip(self.arenas, arenas, strict=False):
            entry.bytes, entry.slot = size, slot
            entry.base = ffi.NULL if buffer is None else buffer.base
        self._keep: list[Any] = [b for b, _, _ in arenas]
        self.filled: list[FilledSteps] = []
        self.native = ffi.new("df_segment *")
        self._fill(self.native, planned)

    def _fill(self, into: CData, planned: Sequence[Step]) -> list[tuple[int, int]]:
        """Fills a ``df_segment`` with steps; returns index and stride of each double-buffered operand."""
        steps = ffi.new("df_step[]", max(len(planned), 1))
        listed = [o for step in planned for o in (*step.inputs, *step.outputs, step.workspace, *step.prepacks)]
        operands = self._tables.operands(listed)
        self._keep += [steps, listed]
        self.filled.append(FilledSteps(planned, steps, operands))
        at = 0
        for entry, step in zip(steps, planned, strict=False):
            entry.first_operand = at
            entry.n_inputs, entry.n_outputs = len(step.inputs), len(step.outputs)
            if step.body is not None:
                entry.body = self._body(step.body)
            else:
                assert step.kernel is not None
                entry.kernel, entry.state = step.kernel.code, step.prepared.state
                entry.attributes, entry.n_attributes = self._tables.attributes(step.node.attributes)
                entry.n_prepacks = len(step.prepacks)
            at += len(step.inputs) + len(step.outputs) + 1 + len(step.prepacks)
        buffer_strides = [
            (index, o.buffer_stride) for index, o in enumerate(listed) if o is not None and o.buffer_stride
        ]
        into.struct_size, into.n_steps, into.n_operands = ffi.sizeof("df_segment"), len(planned), at
        into.n_arenas, into.steps, into.operands, into.arenas = self._count, steps, operands, self.arenas
        into.threads = self._threads
        return buffer_strides

    def _body(self, body: Body) -> CData:
        native = ffi.new("df_body *")
        buffer_strides = self._fill(ffi.addressof(native, "segment"), body.steps)
        moved = ffi.new("df_buffer_stride[]", max(len(buffer_strides), 1))
        for entry, (operand, distance) in zip(moved, buffer_strides, strict=False):
            entry.operand, entry.distance = operand, distance
        native.iterations, native.n_buffer_strides, native.buffer_strides = body.iterations, len(buffer_strides), moved
        native.kind, native.when = BODY_KINDS[body.kind], body.when
        self._keep += [native, moved]
        return native
