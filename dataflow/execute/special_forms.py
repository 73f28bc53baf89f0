"""What a model was made into for some values that it wants to know, of any sizes or for inputs of some shapes alone."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..errors import Cancelled, DataflowError, InputError, LimitExceeded, OutOfMemoryError
from ..host.fork import renew_in_child
from ..host.garbage_collection import collection_paused
from ..ir.graph import Graph
from ..ir.specialize import Given, Listed, Wanted
from ..ir.types import Array
from .regions import ValueKey, value_key

Convert = Callable[[Mapping[str, Given], Mapping[str, Array]], "Graph | Wanted | Listed | None"]
"""The graph for inputs of given types alone, see ``ir.specialize``; None where the model has no other than its own."""
_MOST = 64  # that are kept
_T = TypeVar("_T")
Form = tuple[Hashable, ...]  # the shapes of the inputs first, or ``NAMED``, then what tells values from others
NAMED = "named"  # instead of shapes: of any sizes


@dataclass(frozen=True, slots=True)
class _Refused:
    """Why nothing is made for a form."""

    why: str


class SpecialForms(Generic[_T]):
    """The least recently used of them goes first. Safe to use from several threads.

    Values that decide what a model is, as whether any box was found, are mostly those of the run before. They are a
    guess once they have come twice in a row: what was made for them can then run at once, and says whether they are.

    Attributes:
        named: why the model itself can't be bound to some shapes, where what it is for known values of any sizes can.
    """

    def __init__(self) -> None:
        self._made: OrderedDict[Form, _T | _Refused] = OrderedDict()
        self.named: InputError | None = None
        # By shapes for which alone something was made, why the model itself can't be bound to them.
        self._causes: dict[Hashable, InputError] = {}
        # By shapes, the last values, and whether they came twice.
        self._values: dict[Hashable, tuple[tuple[ValueKey, ...], bool]] = {}
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """In a forked child: a new lock."""
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._causes) or self.named is not None

    def cause(self, shapes: Hashable) -> InputError | None:
        """Why the model itself can't be bound to these shapes; None where nothing was made for them alone."""
        return self._causes.get(shapes)

    def find(self, form: Form) -> _T | None:
        """What was made for a form, where it is kept."""
        with self._lock:
            if form in self._made:
                self._made.move_to_end(form)
            found = self._made.get(form)
        return None if isinstance(found, _Refused) else found

    def made(self, form: Form, cause: InputError, make: Callable[[], _T]) -> _T:
        """What is made for a form, once.

        Args:
            form: this one.
            cause: why it is.
            make: makes it; that it can't be made for any sizes is kept too.

        Raises:
            InputError: it can't be made.
        """
        found = self._made.get(form)
        if found is None:
            try:
                found = make()
            except InputError as error:
                if form[0] is not NAMED:
                    raise
                found = _Refused(str(error))
        with self._lock:
            self._made[form] = found
            self._made.move_to_end(form)
            while len(self._made) > _MOST:
                self._made.popitem(last=False)
            if form[0] is not NAMED:
                self._causes[form[0]] = cause
            while len(self._causes) > _MOST:
                del self._causes[next(iter(self._causes))]
        if isinstance(found, _Refused):
            raise InputError(found.why)
        return found

    def came(self, shapes: Hashable, values: tuple[ValueKey, ...]) -> None:
        """Says what the values were in a run."""
        with self._lock:
            before = self._values.pop(shapes, None)
            self._values[shapes] = values, before is not None and before[0] == values
            while len(self._values) > _MOST:
                del self._values[next(iter(self._values))]

    def guess(self, shapes: Hashable, arguments: Mapping[str, Array]) -> tuple[ValueKey, ...]:
        """The values that a run is likely to have, those that are arguments as they are; empty where none are known."""
        values, twice = self._values.get(shapes, ((), False))
        if not twice and any(name not in arguments for name, *_ in values):
            return ()
        return tuple([value_key(k[0], arguments[k[0]]) if k[0] in arguments else k for k in values])


def shapes_of(types: Mapping[str, Given]) -> Hashable:
    """The shapes of what is given for each input, as a key."""
    return tuple(
        tuple(type_.shape for type_ in given) if isinstance(given, tuple) else getattr(given, "shape", None)
        for given in types.values()
    )


def given_value(wanted: Wanted, arguments: Mapping[str, Array], kept: Collection[str]) -> Array | None:
    """The value that is wanted where it is an argument, and not ``kept`` on a device; else None."""
    array = None if wanted.name in kept else arguments.get(wanted.name)
    if array is None or array.shape != wanted.graph.outputs[wanted.name].type.shape:
        return None
    return array.copy()


def converted(
    convert: Convert, types: Mapping[str, Given], values: Mapping[str, Array], cause: InputError
) -> Graph | Wanted | Listed:
    """What a model is for inputs of these types and for known values.

    Args:
        convert: makes it.
        types: of its inputs.
        values: that it wanted to know.
        cause: why its graph can't be bound.

    Raises:
        InputError: it is nothing for them either.
    """
    try:
        made = collection_paused(lambda: convert(types, values))
    except (Cancelled, LimitExceeded, OutOfMemoryError):
        raise
    except DataflowError as error:
        raise InputError(f"{cause}; made for these sizes alone it fails too: {error}") from None
    if made is None:
        raise cause
    return made
