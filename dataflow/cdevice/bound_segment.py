"""BoundCSegment: a segment that a device behind the C contract has prepared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._runtime import ffi, lib
from .abi import CData, empty_held, member
from .compilations import Compiled
from .sequence import NativeItems
from .status import raise_error

if TYPE_CHECKING:
    from ..ir.plan import Segment
    from .backend import CBackend


class BoundCSegment:
    """A segment that the device has prepared; one native call runs it."""

    native = 1
    _compiled: Compiled | None = None

    def __init__(
        self,
        backend: CBackend,
        segment: Segment,
        arenas: Sequence[tuple[Any, int, int]],
        threads: int,
    ) -> None:
        self._backend, self._segment = backend, segment
        self._error = ffi.new("df_error *")
        self._tables = backend.tables(segment, arenas, threads)
        self._compiled = backend.compile(segment, arenas, threads)
        self._hold()
        backend.segments.add(self)

    def _hold(self) -> None:
        """Lets the device prepare what the tables say."""
        self._held = empty_held()
        native, compiled = self._tables.native, ffi.NULL
        if self._compiled is not None:
            self._key = ffi.new("char[]", self._compiled.key.encode())
            native.key, compiled = self._key, self._compiled.held
        status = lib.df_hold_segment(self._backend.held, compiled, native, self._held, self._error)
        self.check(status, self._error)
        self.prepared = int(ffi.cast("intptr_t", self._held.prepared))

    def elapsed(self) -> float | None:
        """Seconds that the last run took by the device's own clock; None where it has none. After a wait."""
        ask = member(self._backend.device, "elapsed")
        if ask is None:
            return None
        found, error = ffi.new("int64_t *"), ffi.new("df_error *")
        status = ask(self._backend.handle, self._held.prepared, found, error)
        raise_error(status, error, f"device {self._backend.name!r}: asking for the time of a run")
        return float(found[0]) * 1e-9

    def run(self, slots: CData, count: int, cancel: CData, calls: CData) -> None:
        """Runs the steps; ``slots`` is a ``void *[]`` with an address per slot."""
        NativeItems([self]).run(slots, count, cancel, calls)

    def fill(self, entry: CData) -> None:
        """See ``NativeItem``."""
        entry.kind, entry.prepared = lib.DF_COMMAND_SEGMENT, self._held.prepared
        entry.device, entry.self = self._backend.device, self._backend.handle

    def check(self, status: int, error: CData) -> None:
        """See ``NativeItem``; names the node."""
        if status:
            raise_error(status, error, self.where(error.step))

    def where(self, step: int) -> str:
        """The node of a step, for messages; the device when there is none of that number."""
        known = 0 <= step < len(self._segment.steps)
        return self._segment.steps[step].node.describe() if known else f"device {self._backend.name!r}"
