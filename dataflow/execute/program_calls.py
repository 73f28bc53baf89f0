"""Which programs a run calls, for who wants to know what it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from ..ir.types import Array
from .program import Program

ProgramCall = tuple[Program, Mapping[str, Array]]  # a program, and its arguments

_calls: ContextVar[list[ProgramCall] | None] = ContextVar("dataflow_program_calls", default=None)
noted = _calls.get
"""The calls noted so far in this thread; None where nobody asked for them."""


@contextmanager
def calls_noted() -> Iterator[list[ProgramCall]]:
    """Notes the programs that runs in this thread call, in order; each is one of its sizes alone, and none a series."""
    found: list[ProgramCall] = []
    token = _calls.set(found)
    try:
        yield found
    finally:
        _calls.reset(token)
