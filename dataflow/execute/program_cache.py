"""Compiled programs that are kept: some of each kind, the least recently used going first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from types import MappingProxyType

from ..host.fork import renew_in_child
from .program import Program

Kind = tuple[Hashable, ...]
Key = tuple[Kind, Hashable]  # kind of program, and what it was made for


class ProgramCache:
    """Programs by kind and form. Safe to use from several threads, and with Ctrl-C at any instant.

    Args:
        may_drop: whether some stored tensors or prepacked copies, by their names, are kept for programs alone.
        drop: forgets such, but those that programs read.

    Attributes:
        recent: the program that was used last, and so is kept; None where none is.
    """

    def __init__(self, may_drop: Callable[[Collection[str]], bool], drop: Callable[[Collection[str]], None]) -> None:
        self._may_drop, self._drop = may_drop, drop
        self._programs: dict[Kind, OrderedDict[Hashable, Program]] = {}
        self._left: set[str] = set()  # what programs read that are gone, or about to be
        self.recent: Program | None = None
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock; a program that another thread was making is made anew."""
        self._lock = threading.Lock()

    @property
    def programs(self) -> Mapping[Key, Program]:
        """Those that are kept, of each kind the least recently used first."""
        with self._lock:
            found = {(kind, form): p for kind, kept in self._programs.items() for form, p in kept.items()}
        return MappingProxyType(found)

    def find(self, kind: Kind, form: Hashable) -> Program | None:
        """The program of a kind for ``form``, where it is kept."""
        with self._lock:
            return self._used(kind, form)

    def program(self, kind: Kind, form: Hashable, make: Callable[[], Program], most: int) -> Program:
        """The program of a kind for ``form``; ``make`` makes it where it isn't kept, and ``most`` of its kind are."""
        with self._lock:
            program = self._used(kind, form)
            if program is None:
                program = make()
                self._programs.setdefault(kind, OrderedDict())[form] = program
                self._shrink(kind, most)
                self.recent = program if most else None
        return program

    def clear(self) -> None:
        """Closes and forgets all programs; none may be running."""
        with self._lock:
            for kept in self._programs.values():
                for program in kept.values():
                    self._left |= _tensors_of(program)
                    program.close()
            self._programs.clear()
            self.recent = None

    def _used(self, kind: Kind, form: Hashable) -> Program | None:
        """The program that is kept, now the most recently used one."""
        kept = self._programs.get(kind)
        program = None if kept is None else kept.get(form)
        if kept is not None and program is not None:
            kept.move_to_end(form)
            self.recent = program
        return program

    def _shrink(self, kind: Kind, most: int) -> None:
        """Lets go of the programs of a kind that are too many, and of what only they read."""
        kept = self._programs[kind]
        while len(kept) > most:
            self._left |= _tensors_of(next(iter(kept.values())))  # before it goes: an interrupt between forgets nothing
            kept.popitem(last=False)
        if self._left and self._may_drop(self._left):
            programs = (program for others in self._programs.values() for program in others.values())
            self._drop({name for program in programs for name in _tensors_of(program)})
        self._left = set()


def _tensors_of(program: Program) -> set[str]:
    """Names of the stored tensors and prepacked copies that a program reads."""
    return {*program.plan.stored, *program.plan.prepacks}
