"""Compiled programs that are kept: some of each kind, the least recently used going first."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from types import MappingProxyType

from ..host.fork import renew_in_child
from .program import Program

Kind = tuple[Hashable, ...]
Key = tuple[Kind, Hashable]  # kind of program, and what it was made for


class ProgramCache:
    """Programs by kind and form. Safe to use from several threads.

    Args:
        unread: is given the names of stored tensors and prepacked copies that no program reads any more, and of those
            that some do.

    Attributes:
        recent: the program that was used last, and so is kept; None where none is.
    """

    def __init__(self, unread: Callable[[Collection[str], Collection[str]], None]) -> None:
        self._unread = unread
        self._programs: OrderedDict[Key, Program] = OrderedDict()
        self._forms: dict[Kind, OrderedDict[Hashable, None]] = {}  # by kind, likewise ordered
        self._readers: Counter[str] = Counter()  # programs by what they read
        self._idle: set[str] = set()  # what none reads any more
        self.recent: Program | None = None
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock; a program that another thread was making is made anew."""
        self._lock = threading.Lock()

    @property
    def programs(self) -> Mapping[Key, Program]:
        """Those that are kept, the least recently used first."""
        with self._lock:
            return MappingProxyType(dict(self._programs))

    def find(self, kind: Kind, form: Hashable) -> Program | None:
        """The program of a kind for ``form``, where it is kept."""
        with self._lock:
            return self._used((kind, form))

    def program(self, kind: Kind, form: Hashable, make: Callable[[], Program], most: int) -> Program:
        """The program of a kind for ``form``; ``make`` makes it where it isn't kept, and ``most`` of its kind are."""
        key = (kind, form)
        with self._lock:
            program = self._used(key)
            if program is None:
                program = make()
                self._enter(key, program, most)
                self.recent = self._programs.get(key)
        return program

    def clear(self) -> None:
        """Closes and forgets all programs; none may be running."""
        with self._lock:
            for program in self._programs.values():
                program.close()
            self._idle |= self._readers.keys()
            self._readers.clear()
            self._programs.clear()
            self._forms.clear()
            self.recent = None

    def _used(self, key: Key) -> Program | None:
        """The program that is kept, now the most recently used one."""
        program = self._programs.get(key)
        if program is not None:
            self._programs.move_to_end(key)
            self._forms[key[0]].move_to_end(key[1])
            self.recent = program
        return program

    def _enter(self, key: Key, program: Program, most: int) -> None:
        forms = self._forms.setdefault(key[0], OrderedDict())
        self._programs[key], forms[key[1]] = program, None
        read = _tensors_of(program)
        self._readers.update(read)
        self._idle -= read
        if len(forms) <= most:
            return
        while len(forms) > most:
            form, _ = forms.popitem(last=False)
            read = _tensors_of(self._programs.pop((key[0], form)))
            self._readers.subtract(read)
            self._idle |= {name for name in read if not self._readers[name]}
        if self._idle:
            self._readers = +self._readers
            self._unread(self._idle, self._readers)
            self._idle.clear()


def _tensors_of(program: Program) -> set[str]:
    """Names of the stored tensors and prepacked copies that a program reads."""
    return {*program.plan.stored, *program.plan.prepacks}
