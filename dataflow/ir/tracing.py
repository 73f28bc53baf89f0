"""Sizes that note what was decided by them: what is made of a graph for some sizes is then known for others, too.

While a trace is active, the sizes of a graph that is bound are ``Traced``: numbers that also know their expression in
named sizes. Sums and products of them are traced as well, each comparison is answered by the numbers and noted, and so
is what kernels say about nodes of such sizes. Where all answers are the same for other sizes, so is what was made, but
for its numbers, whose expressions say them. What leaves for C or NumPy as a plain number is noted as equal to it: it
holds for that number alone. (Guards of this kind are known from compilers of dynamic languages; see J. Ansel et al.,
"PyTorch 2", ASPLOS 2024, section 5.2.)
"""

from __future__ import annotations

import dataclasses
import operator
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .dims import Dim, Size, bind_size


class _Active(threading.local):
    """The trace of a thread; an attribute of the class, since looking for one that isn't there takes longer."""

    trace: Trace | None = None


_ACTIVE = _Active()
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {"==": operator.eq, "<": operator.lt, "<=": operator.le}
_COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}


def active() -> Trace | None:
    """The trace of this thread; None: sizes are plain numbers."""
    return _ACTIVE.trace


def key_of(*of: Any) -> Any:
    """A key of a dict of what was found: of a traced size its expression, so that nothing is decided."""
    return of if active() is None else _as_key(of)


class Keys:
    """Keys of a dict of what several use: traced sizes that are equal have one key, which is noted as decided."""

    def __init__(self) -> None:
        self._seen: list[tuple[Any, ...]] = []

    def of(self, *of: Any) -> Any:
        """The key of these."""
        if active() is None:
            return of
        known = next((one for one in self._seen if one == of), None)
        if known is None:
            self._seen.append(of)
        return _as_key(known or of)


def _as_key(of: Any) -> Any:
    if type(of) is Traced:
        return "traced", of.expression
    if isinstance(of, tuple):
        return tuple([_as_key(one) for one in of])
    if dataclasses.is_dataclass(of) and type(of).__eq__ is not object.__eq__:  # compared by what it has
        return type(of), *[_as_key(getattr(of, field.name)) for field in dataclasses.fields(of)]
    return of


class Trace:
    """What was decided by sizes within a ``with`` block.

    Attributes:
        guards: answers by the expression that was compared with 0, and how.
        asked: what was asked about something made of traced sizes, with the answers, by the caller's name for it.
        numbers: of the named sizes, now.
    """

    def __init__(self) -> None:
        self.guards: dict[tuple[Dim, str], bool] = {}
        self.asked: dict[Any, tuple[Callable[[Any], Any], Any, Any]] = {}
        self.numbers: dict[str, int] = {}
        self._known: dict[tuple[str, Size, Size], Size] = {}

    def __enter__(self) -> Trace:
        _ACTIVE.trace = self
        return self

    def __exit__(self, *_: object) -> None:
        _ACTIVE.trace = None

    def size(self, name: str, number: int) -> Any:
        """A named size that is this number now."""
        self.numbers[name] = number
        return Traced(self, number, Dim(name))

    def compute(self, kind: str, a: Size, b: Size) -> Size:
        """The expression of a result; traces compute few different ones."""
        found = self._known.get((kind, a, b))
        if found is None:
            found = self._known[kind, a, b] = _COMPUTED[kind](a, b)
        return found

    def note(self, a: Size, b: Size, kind: str, answer: bool) -> None:
        """Notes the answer of a comparison."""
        difference = self.compute("-", a, b)
        if isinstance(difference, Dim):
            self.guards[difference, kind] = answer

    def ask(self, name: Any, question: Callable[[Any], Any], about: Any, plain: Any) -> Any:
        """The answer about ``plain``, which is noted: for other sizes ``about`` is bound and asked about again."""
        if name not in self.asked:
            self.asked[name] = question, about, question(plain)
        return self.asked[name][2]

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the comparisons have the same answers for other sizes."""
        return all(_COMPARED[kind](bind_size(e, sizes), 0) == answer for (e, kind), answer in self.guards.items())


class Traced:
    """A size that is a number now, and an expression in named sizes; like an int but where C or NumPy reads it."""

    __slots__ = ("expression", "number", "trace")
    expression: Dim
    number: int
    trace: Trace

    def __init__(self, trace: Trace, number: int, expression: Dim) -> None:
        self.trace, self.number, self.expression = trace, number, expression

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int  # to ``isinstance``: a size that is known

    def _made(self, kind: str, number: int, a: Size, b: Size) -> Any:
        if active() is not self.trace:
            raise RuntimeError(f"the size {self} was used after its trace")
        if kind in ("//", "%"):
            self.trace.note(b, 0, "==", False)
        expression = self.trace.compute(kind, a, b)
        return Traced(self.trace, number, expression) if isinstance(expression, Dim) else expression

    def _compared(self, kind: str, answer: bool, a: Size, b: Size) -> bool:
        if active() is not self.trace:
            raise RuntimeError(f"the size {self} was used after its trace")
        self.trace.note(a, b, kind, answer)
        return answer

    def __index__(self) -> int:
        self._compared("==", True, self.expression, self.number)
        return self.number

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())

    def __bool__(self) -> bool:
        return not self._compared("==", self.number == 0, self.expression, 0)

    def __hash__(self) -> int:
        return hash(self.__index__())  # what isn't found among others is compared with none of them

    def __str__(self) -> str:
        return f"{{{self.expression}}}"  # no number, which a reader could take for one that stays

    def __repr__(self) -> str:
        return f"Traced({self.number}, {self.expression})"

    def __eq__(self, other: object) -> bool:
        pair = _pair(self, other)
        if pair is None:
            return isinstance(other, (float, complex, np.generic)) and bool(self.__index__() == other)
        return self._compared("==", self.number == pair[0], self.expression, pair[1])

    def __lt__(self, other: Any) -> bool:
        pair = _pair(self, other)
        if pair is None:
            return bool(self.__index__() < other)
        return self._compared("<", self.number < pair[0], self.expression, pair[1])

    def __le__(self, other: Any) -> bool:
        pair = _pair(self, other)
        if pair is None:
            return bool(self.__index__() <= other)
        return self._compared("<=", self.number <= pair[0], self.expression, pair[1])

    def __gt__(self, other: Any) -> bool:
        pair = _pair(self, other)
        if pair is None:
            return bool(self.__index__() > other)
        return self._compared("<", self.number > pair[0], pair[1], self.expression)

    def __ge__(self, other: Any) -> bool:
        pair = _pair(self, other)
        if pair is None:
            return bool(self.__index__() >= other)
        return self._compared("<=", self.number >= pair[0], pair[1], self.expression)

    def __add__(self, other: object) -> Any:
        return self._binary("+", other)

    def __radd__(self, other: object) -> Any:
        return self._binary("+", other)

    def __sub__(self, other: object) -> Any:
        return self._binary("-", other)

    def __rsub__(self, other: object) -> Any:
        return self._reflected("-", other)

    def __mul__(self, other: object) -> Any:
        return self._binary("*", other)

    def __rmul__(self, other: object) -> Any:
        return self._binary("*", other)

    def __floordiv__(self, other: object) -> Any:
        return self._binary("//", other)

    def __rfloordiv__(self, other: object) -> Any:
        return self._reflected("//", other)

    def __mod__(self, other: object) -> Any:
        return self._binary("%", other)

    def __rmod__(self, other: object) -> Any:
        return self._reflected("%", other)

    def __truediv__(self, other: Any) -> Any:
        return self.__index__() / other

    def __rtruediv__(self, other: Any) -> Any:
        return other / self.__index__()

    def __neg__(self) -> Any:
        return self._binary("*", -1)

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def __pow__(self, other: Any) -> Any:
        return self.__index__() ** other

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__index__(), name)  # ``bit_length`` and the like

    def _binary(self, kind: str, other: object) -> Any:
        pair = _pair(self, other)
        if pair is None:
            return _COMPUTED[kind](self.__index__(), other)
        return self._made(kind, _COMPUTED[kind](self.number, pair[0]), self.expression, pair[1])

    def _reflected(self, kind: str, other: object) -> Any:
        pair = _pair(self, other)
        if pair is None:
            return _COMPUTED[kind](other, self.__index__())
        return self._made(kind, _COMPUTED[kind](pair[0], self.number), pair[1], self.expression)


def number_of(size: Any) -> int | None:
    """What a size is now, so that nothing is decided; None where it is only named."""
    if type(size) is Traced:
        return size.number
    return None if isinstance(size, Dim) else int(size)


def _pair(size: Traced, other: object) -> tuple[int, Size] | None:
    """The number and the expression of what a size is computed with; None where it is no whole number."""
    if type(other) is Traced:
        return (other.number, other.expression) if other.trace is size.trace else None
    if type(other) is int or type(other) is bool:
        return int(other), int(other)
    return None
