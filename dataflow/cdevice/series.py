"""A segment of a series of plans on a C device: it moves from plan to plan by changing numbers in its tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._runtime import ffi, lib
from ..ir.series import NotInSeries
from ..ir.types import Array
from ..plugin.device import Buffer
from .abi import CData, Tables
from .backend import BoundCSegment, CBackend
from .segment_tables import FilledSteps, SegmentTables

if TYPE_CHECKING:
    from ..ir.plan import Segment

# Fields of df_prepared and df_prepack in words of 8 bytes; the first word holds struct_size and n_prepacks.
_WORDS = ffi.sizeof("df_prepared") // 8
_WORKSPACE, _STATE, _REPLACED = (ffi.offsetof("df_prepared", name) // 8 for name in ("workspace", "state", "replaced"))
# Of df_prepack too: struct_size and input are the first word.
_PREPACK_WORDS, _MOST_PREPACKS = ffi.sizeof("df_prepack") // 8, lib.DF_MOST_PREPACKS
_PREPACK_KIND, _PREPACK_BYTES = (ffi.offsetof("df_prepack", name) // 8 for name in ("kind", "bytes"))
_STEP_STATE = ffi.offsetof("df_step", "state") // 8


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
    ) -> None:
        self._allocate, self._shared, self._workspace = allocate, len(arenas), allocate(64)
        self._backend, self._segment, self._error = backend, last, ffi.new("df_error *")
        own, other = Tables(shared=False), Tables(shared=False)
        with_workspace = [*arenas, (self._workspace, 0, -1)]
        how = threads, backend.flags, backend.precision
        self._tables = SegmentTables(last, with_workspace, *how, own)
        SegmentTables(first, with_workspace, *how, other)
        self._changes = [
            (numbers, positions, begin[positions], (numbers[positions] - begin[positions]) // count)
            for numbers, begin in zip(own.numbers, other.numbers, strict=True)
            if len(positions := np.flatnonzero(numbers != begin))
        ]
        self._describe(threads, constants)
        self._prepare()
        self._expected = (self._answers & self._mask).tobytes()
        self._given = np.zeros(self._count, np.int64)  # bytes of workspace that a step has
        self._give_workspace()
        self._hold()
        backend.segments.add(self)

    def _describe(self, threads: int, constants: frozenset[int]) -> None:
        """The nodes as kernels see them when they prepare: their operands and attributes are those of the steps."""
        found = [
            (filled, index) for filled in self._tables.filled for index, s in enumerate(filled.planned) if not s.body
        ]
        self._count = len(found)
        self._kernels = ffi.new("df_kernel *[]", max(self._count, 1))
        self._nodes = ffi.new("df_node[]", max(self._count, 1))
        # What must be as it was planned: which prepacked copies are asked for, and the size of those that are made.
        self._mask = np.zeros((self._count, _WORDS + _MOST_PREPACKS * _PREPACK_WORDS), np.int64)
        self._mask[:, [0, _REPLACED]] = -1
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
            for which in range(len(step.prepared.prepacks)):
                word = _WORDS + which * _PREPACK_WORDS
                self._mask[number, word], self._mask[number, word + _PREPACK_KIND] = -1, 0xFFFFFFFF  # without padding
                if step.prepacks and step.prepacks[which] is not None:
                    self._mask[number, word + _PREPACK_BYTES] = -1
        self._states = [_states_of(filled) for filled in self._tables.filled]
        self._rows = [_workspaces_of(filled) for filled in self._tables.filled]

    def _prepare(self) -> None:
        """Asks the kernels for what the tables say."""
        made = ffi.gc(ffi.new("df_prepared_set *"), lib.df_release_set)
        error, count = self._error, self._count
        if lib.df_prepare_set(count, self._kernels, self._nodes, made, error):
            raise NotInSeries(ffi.string(error.text).decode(errors="replace"))
        answers = _words(made.prepared, count, _WORDS)
        self._answers: Array = np.hstack([answers, _words(made.prepacks, count, _MOST_PREPACKS * _PREPACK_WORDS)])
        self._made: CData = made
        at = 0
        for states, steps in self._states:
            states[steps] = self._answers[at : at + len(steps), _STATE]
            at += len(steps)

    def _give_workspace(self) -> None:
        """One workspace for all steps, of which one runs at a time: what each wants does not grow evenly with sizes."""
        wanted = self._answers[:, _WORKSPACE]
        if not (wanted > self._given).any():  # no step is given more than the workspace has
            return
        most = int(wanted.max(initial=0))
        if most > self._workspace.bytes:
            self._workspace = self._allocate(most + most // 4)
        arena = self._tables.arenas[self._shared]
        arena.base, arena.bytes = self._workspace.base, self._workspace.bytes
        self._given = np.where((wanted > 0) | (self._given > 0), self._workspace.bytes, 0)
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
        before = self._made, self._held, self._workspace  # the segment that is prepared uses them
        for numbers, positions, begin, step in self._changes:
            numbers[positions] = begin + t * step
        refused = lib.df_first_refused(self._count, self._kernels, self._nodes)
        if refused < self._count:
            raise NotInSeries(f"a kernel does not take the sizes of number {t}")
        self._prepare()
        if (self._answers & self._mask).tobytes() != self._expected:
            raise NotInSeries(f"a kernel wants other prepacked copies for the sizes of number {t}")
        self._give_workspace()
        self._hold()
        del before


def _words(records: CData, count: int, each: int) -> Array:
    """Records as words of 8 bytes, ``each`` in a row."""
    return np.frombuffer(ffi.buffer(records, max(count, 1) * 8 * each), np.int64).reshape(-1, each)[:count]


def _workspaces_of(filled: FilledSteps) -> tuple[Array, list[int]]:
    """The operands of a table of steps, and which are the workspaces of kernels."""
    steps = [(step, entry) for step, entry in zip(filled.planned, filled.steps, strict=False) if not step.body]
    count = sum(len(s.inputs) + len(s.outputs) + 1 + len(s.prepacks) for s in filled.planned)
    return Tables.rows(filled.operands, count), [e.first_operand + e.n_inputs + e.n_outputs for _, e in steps]


def _states_of(filled: FilledSteps) -> tuple[Array, list[int]]:
    """The states in a table of steps, and which are of kernels."""
    words = np.frombuffer(ffi.buffer(filled.steps), np.int64).reshape(-1, ffi.sizeof("df_step") // 8)
    return words[:, _STEP_STATE], [index for index, step in enumerate(filled.planned) if not step.body]
