"""A segment of a series of plans on a C device: it moves from plan to plan by changing numbers in its tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._runtime import ffi, lib
from ..ir.series import NotInSeries
from ..ir.types import Array
from ..plugin.device import Buffer
from .abi import CData, Tables, text_of
from .backend import BoundCSegment, CBackend
from .segment_tables import FilledSteps, SegmentTables

if TYPE_CHECKING:
    from ..ir.plan import Segment, Step

_LINE = np.dtype([("number", np.int64), ("first", np.int64), ("step", np.int64), ("bend", np.int64)])
assert _LINE.itemsize == ffi.sizeof("df_line")


class SeriesCSegment(BoundCSegment):
    """A segment of a series; the kernels answer anew for the sizes of each plan.

    Args:
        backend: the device.
        first: of the first plan.
        last: of the last.
        count: how many steps it is from the first.
        arenas: per arena of the last plan: buffer or None, bytes, number of the slot or -1.
        threads: the session's.
        constants: arenas of constants on the host.
        allocate: memory of the device, of so many bytes.
        second: of the second plan, where numbers don't change in equal steps.
    """

    def __init__(
        self,
        backend: CBackend,
        first: Segment,
        last: Segment,
        count: int,
        arenas: Sequence[tuple[Any, int, int]],
        threads: int,
        constants: frozenset[int],
        allocate: Callable[[int], Buffer],
        second: Segment | None = None,
    ) -> None:
        self._allocate, self._shared, self._workspace = allocate, len(arenas), allocate(64)
        self._backend, self._segment, self._error = backend, last, ffi.new("df_error *")
        own, other = Tables(shared=False), Tables(shared=False)
        with_workspace = [*arenas, (self._workspace, 0, -1)]
        how = threads, backend.flags, backend.precision
        self._tables = SegmentTables(last, with_workspace, *how, own)
        before = SegmentTables(first, with_workspace, *how, other)
        between = other
        if second is not None:
            between = Tables(shared=False)
            SegmentTables(second, with_workspace, *how, between)
        self._lines = _lines(own, other, between, count)
        self._describe(threads, constants)
        self._prepare()
        pairs = zip(_kernel_steps(before.filled), _kernel_steps(self._tables.filled), strict=True)
        self._series = self._native([index for index, steps in enumerate(pairs) if _differ(*steps)])
        self._held, self._more = self._series.held[0], ffi.new("int64_t *")
        self._give_workspace()
        backend.segments.add(self)

    def _describe(self, threads: int, constants: frozenset[int]) -> None:
        """The nodes as kernels see them when they prepare: their operands and attributes are those of the steps."""
        found = [
            (filled, index) for filled in self._tables.filled for index, s in enumerate(filled.planned) if not s.body
        ]
        self._count = len(found)
        self._kernels = ffi.new("df_kernel *[]", max(self._count, 1))
        self._nodes = ffi.new("df_node[]", max(self._count, 1))
        self._steps: list[CData] = []
        self._copies: list[int] = []  # bit by bit which prepacked copies are made
        for number, (filled, index) in enumerate(found):
            step, entry, node = filled.planned[index], filled.steps[index], self._nodes[number]
            assert step.kernel is not None
            self._kernels[number] = step.kernel.code
            node.struct_size, node.threads = ffi.sizeof("df_node"), threads
            node.n_inputs, node.n_outputs, node.n_attributes = entry.n_inputs, entry.n_outputs, entry.n_attributes
            node.inputs = filled.pointers + entry.first_operand
            node.outputs = node.inputs + entry.n_inputs
            node.attributes = entry.attributes
            self._backend.introduce(node)
            for bit, operand in enumerate(step.inputs[:31]):
                if operand is not None and operand.arena in constants:
                    node.flags |= 0 if operand.iteration_stride or operand.buffer_stride else 1 << bit
            self._steps.append(filled.steps + index)
            self._copies.append(sum(1 << bit for bit, made in enumerate(step.prepacks) if made is not None))
        self._rows = [_workspaces_of(filled) for filled in self._tables.filled]

    def _prepare(self) -> None:
        """Asks all kernels for what the tables of the last plan say; of numbers that don't change the answer stays."""
        self._made = ffi.gc(ffi.new("df_prepared_set *"), lib.df_release_set)
        if lib.df_prepare_set(self._count, self._kernels, self._nodes, self._made, self._error):
            raise NotInSeries(text_of(self._error.text))
        for index, step in enumerate(self._steps):
            step.state = self._made.prepared[index].state
        self._wanted = np.array([self._made.prepared[index].workspace for index in range(self._count)], np.int64)
        self._given = np.zeros(self._count, np.int64)  # bytes of workspace that a step has

    def _native(self, moving: Sequence[int]) -> CData:
        """A ``df_series`` of the steps with numbers that change."""
        self._moving = np.array(moving, np.int64)
        count = max(len(moving), 1)
        kernels, nodes = ffi.new("df_kernel *[]", count), ffi.new("df_node[]", count)
        steps, expected = ffi.new("df_step *[]", count), ffi.new("df_prepared *[]", count)
        for number, index in enumerate(moving):
            kernels[number], nodes[number], steps[number] = self._kernels[index], self._nodes[index], self._steps[index]
            expected[number] = self._made.prepared + index
        copies = ffi.new("int64_t[]", [self._copies[index] for index in moving] or 1)
        self._moving_given = np.zeros(count, np.int64)
        series = ffi.gc(ffi.new("df_series *"), lib.df_series_release)
        series.device, series.segment = self._backend.held, self._tables.native
        series.lines, series.n_lines = ffi.cast("df_line *", self._lines.ctypes.data), len(self._lines)
        series.n_kernels, series.kernels, series.nodes, series.steps = len(moving), kernels, nodes, steps
        series.expected, series.copies = expected, copies
        series.given = ffi.cast("int64_t *", self._moving_given.ctypes.data)
        self._keep = kernels, nodes, steps, expected, copies
        return series

    def _give_workspace(self) -> None:
        """One workspace for all steps, of which one runs at a time: what each wants does not grow evenly with sizes."""
        wanted = self._wanted
        most = int(wanted.max(initial=0))
        if most > self._workspace.bytes:
            self._workspace = self._allocate(most + most // 4)
        arena = self._tables.arenas[self._shared]
        arena.base, arena.bytes = self._workspace.base, self._workspace.bytes
        self._given = np.where((wanted > 0) | (self._given > 0), self._workspace.bytes, 0)
        self._moving_given[: len(self._moving)] = self._given[self._moving]
        at = 0
        for table, rows in self._rows:
            given = self._given[at : at + len(rows)]
            table["bytes"][rows], table["offset"][rows], table["rank"][rows] = given, 0, 0
            table["arena"][rows] = np.where(given > 0, self._shared, -1)
            at += len(rows)

    def move(self, t: int) -> None:
        """Becomes the segment of plan ``t``; the one before must not be running.

        Raises:
            NotInSeries: a kernel doesn't take the sizes, or wants other prepacked copies.
        """
        series = self._series
        status = lib.df_series_move(series, t, self._more, self._error)
        if status == lib.DF_UNSUPPORTED:
            raise NotInSeries(f"{text_of(self._error.text)} of number {t}")
        if not status and self._more[0]:
            before = self._workspace  # the segment that is prepared uses it
            answers = series.made[1 - series.at].prepared
            self._wanted[self._moving] = [answers[index].workspace for index in range(len(self._moving))]
            self._give_workspace()
            status = lib.df_series_hold(series, self._error)
            del before
        self.check(status, self._error)
        self._held = series.held[series.at]


def _lines(own: Tables, other: Tables, between: Tables, count: int) -> Array:
    """The numbers that change, as a ``df_line[]``: those of the last plan, of the first, and of the second.

    Where ``between`` is ``other``, they change in equal steps.
    """
    found = []
    for numbers, first, second in zip(own.numbers, other.numbers, between.numbers, strict=True):
        positions = np.flatnonzero((numbers != first) | (second != first))
        lines = np.zeros(len(positions), _LINE)
        lines["number"] = numbers.ctypes.data + positions * numbers.strides[0]
        begin, by = first[positions], numbers[positions] - first[positions]
        steps = by // count if between is other else second[positions] - begin
        lines["first"], lines["step"] = begin, steps
        lines["bend"] = (by - count * steps) // (count * (count - 1))
        found.append(lines)
    return np.concatenate([np.zeros(0, _LINE), *found])


def _kernel_steps(filled: Iterable[FilledSteps]) -> Iterator[Step]:
    """The steps of tables that are no bodies."""
    for steps in filled:
        yield from (step for step in steps.planned if step.body is None)


def _differ(first: Step, last: Step) -> bool:
    """Whether a number of a step is another in the last plan than in the first."""
    operands = (*first.inputs, *first.outputs), (*last.inputs, *last.outputs)
    return operands[0] != operands[1] or first.node.attributes != last.node.attributes


def _workspaces_of(filled: FilledSteps) -> tuple[Array, list[int]]:
    """The operands of a table of steps, and which are the workspaces of kernels."""
    steps = [(step, entry) for step, entry in zip(filled.planned, filled.steps, strict=False) if not step.body]
    count = sum(len(s.inputs) + len(s.outputs) + 1 + len(s.prepacks) for s in filled.planned)
    return Tables.rows(filled.operands, count), [e.first_operand + e.n_inputs + e.n_outputs for _, e in steps]
