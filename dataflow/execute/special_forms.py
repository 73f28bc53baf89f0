"""What a model was made into for inputs of some shapes, and for some values that it wants to know, alone."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

from ..errors import InputError
from ..host.fork import renew_in_child
from ..ir.specialize import Given
from .regions import ValueKey

_MOST = 64  # that are kept
_T = TypeVar("_T")
Form = tuple[Hashable, ...]  # the shapes of the inputs first, then what tells values from others


class SpecialForms(Generic[_T]):
    """The least recently used of them goes first. Safe to use from several threads.

    Values that decide what a model is, as whether any box was found, are mostly those of the run before. They are a
    guess once they have come twice in a row: what was made for them can then run at once, and says whether they are.
    """

    def __init__(self) -> None:
        self._made: OrderedDict[Form, _T] = OrderedDict()
        self._causes: dict[Hashable, InputError] = {}  # by shapes, why the model itself can't be bound to them
        # By shapes, the last values, and whether they came twice.
        self._values: dict[Hashable, tuple[tuple[ValueKey, ...], bool]] = {}
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock."""
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._causes)

    def cause(self, shapes: Hashable) -> InputError | None:
        """Why the model itself can't be bound to these shapes; None where nobody tried."""
        return self._causes.get(shapes)

    def find(self, form: Form) -> _T | None:
        """What was made for a form, where it is kept."""
        with self._lock:
            if form in self._made:
                self._made.move_to_end(form)
            return self._made.get(form)

    def keep(self, form: Form, made: _T, cause: InputError) -> None:
        """Enters what was made for a form, and why it was."""
        with self._lock:
            self._made[form] = made
            while len(self._made) > _MOST:
                self._made.popitem(last=False)
            self._causes[form[0]] = cause
            while len(self._causes) > _MOST:
                del self._causes[next(iter(self._causes))]

    def came(self, shapes: Hashable, values: tuple[ValueKey, ...]) -> None:
        """Says what the values were in a run."""
        with self._lock:
            before = self._values.pop(shapes, None)
            self._values[shapes] = values, before is not None and before[0] == values
            while len(self._values) > _MOST:
                del self._values[next(iter(self._values))]

    def guess(self, shapes: Hashable) -> tuple[ValueKey, ...]:
        """The values that a run is likely to have; empty where none are known."""
        values, twice = self._values.get(shapes, ((), False))
        return values if twice else ()


def shapes_of(types: Mapping[str, Given]) -> Hashable:
    """The shapes of what is given for each input, as a key."""
    return tuple(
        tuple(type_.shape for type_ in given) if isinstance(given, tuple) else getattr(given, "shape", None)
        for given in types.values()
    )
