"""A segment as the tables of the C contract: steps, operands, arenas, and bodies in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .._runtime import ffi, lib
from .abi import BODY_KINDS, CData, Tables, pointers

if TYPE_CHECKING:
    from ..ir.plan import Body, Segment, Step


@dataclass(frozen=True, slots=True)
class FilledSteps:
    """The steps of a segment or of a body, and their tables: ``df_step[]``, ``df_operand[]``, and pointers to these."""

    planned: Sequence[Step]
    steps: CData
    operands: CData
    pointers: CData


class SegmentTables:
    """A ``df_segment`` with all that it points to.

    Args:
        segment: what it is of.
        arenas: per arena of the plan: buffer or None, bytes, number of the slot or -1.
        threads: the session's.
        flags: ``DF_HANDLES`` of the device, or 0.
        precision: of products of float32.
        tables: makes lists and operands.

    Attributes:
        native: the ``df_segment *``.
        arenas: its ``df_arena[]``.
        filled: its steps, then those of each body.
    """

    def __init__(
        self,
        segment: Segment,
        arenas: Sequence[tuple[Any, int, int]],
        threads: int,
        flags: int,
        precision: int,
        tables: Tables | None = None,
    ) -> None:
        self._tables = Tables() if tables is None else tables
        self._threads, self._count, self._flags = threads, len(arenas), flags
        self.arenas = ffi.new("df_arena[]", max(len(arenas), 1))
        for entry, (buffer, size, slot) in zip(self.arenas, arenas, strict=False):
            entry.struct_size, entry.bytes, entry.slot = ffi.sizeof("df_arena"), size, slot
            entry.base = ffi.NULL if buffer is None else buffer.base
        kept, self._arenas = pointers(self.arenas, "df_arena", len(arenas))
        self._keep: list[Any] = [kept, *(b for b, _, _ in arenas)]
        self.filled: list[FilledSteps] = []
        self.native = ffi.new("df_segment *")
        self._precision = precision
        self._fill(self.native, segment.steps, segment.live)

    def _fill(self, into: CData, planned: Sequence[Step], live: frozenset[int] | None) -> list[tuple[int, int]]:
        """Fills a ``df_segment`` with steps; returns index and stride of each double-buffered operand."""
        steps = ffi.new("df_step[]", max(len(planned), 1))
        listed = [o for step in planned for o in (*step.inputs, *step.outputs, step.workspace, *step.prepacks)]
        operands, operand_pointers = self._tables.operands(listed)
        kept, step_pointers = pointers(steps, "df_step", len(planned))
        self._keep += [steps, listed, kept]
        self.filled.append(FilledSteps(planned, steps, operands, operand_pointers))
        at, outlive = 0, list[int]()
        for entry, step in zip(steps, planned, strict=False):
            entry.struct_size, entry.first_operand = ffi.sizeof("df_step"), at
            entry.n_inputs, entry.n_outputs = len(step.inputs), len(step.outputs)
            if step.body is not None:
                entry.body = self._body(step.body)
            else:
                assert step.kernel is not None
                entry.kernel, entry.state = step.kernel.code, step.prepared.state
                entry.attributes, entry.n_attributes = self._tables.attributes(step.node.attributes)
                entry.n_prepacks = len(step.prepacks)
            results = enumerate(step.outputs, at + len(step.inputs))
            outlive += [i for i, o in results if o is not None and (live is None or o.value in live)]
            at += len(step.inputs) + len(step.outputs) + 1 + len(step.prepacks)
        Tables.rows(operands, max(at, 1))["flags"][outlive] = lib.DF_LIVE_OUT
        buffer_strides = [
            (index, o.buffer_stride) for index, o in enumerate(listed) if o is not None and o.buffer_stride
        ]
        into.struct_size, into.n_steps, into.n_operands = ffi.sizeof("df_segment"), len(planned), at
        into.n_arenas, into.steps, into.operands, into.arenas = (
            self._count,
            step_pointers,
            operand_pointers,
            self._arenas,
        )
        into.threads, into.flags, into.precision = self._threads, self._flags, self._precision
        return buffer_strides

    def _body(self, body: Body) -> CData:
        native, segment = ffi.new("df_body *"), ffi.new("df_segment *")
        buffer_strides = self._fill(segment, body.steps, None)
        moved = ffi.new("df_buffer_stride[]", max(len(buffer_strides), 1))
        for entry, (operand, distance) in zip(moved, buffer_strides, strict=False):
            entry.struct_size, entry.operand, entry.distance = ffi.sizeof("df_buffer_stride"), operand, distance
        kept, native.buffer_strides = pointers(moved, "df_buffer_stride", len(buffer_strides))
        native.struct_size, native.segment = ffi.sizeof("df_body"), segment
        native.iterations, native.n_buffer_strides = body.iterations, len(buffer_strides)
        native.kind, native.when = BODY_KINDS[body.kind], body.when
        self._keep += [native, segment, moved, kept]
        return native
