"""Named sizes and integer expressions over them.

A size is an int or a ``Dim``: a name ("batch"), or an expression over names, known when a plan is made. Expressions are
integer polynomials over names, floor divisions, the least of sizes and what sizes broadcast to, kept in one canonical
form, so that equal expressions compare equal.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

from ..errors import InputError
from ..host import checks

Size = Union[int, "Dim"]
Shape = tuple[Size, ...]

_MOST_TEXT = 2000  # letters of an expression; sums and products of sums grow without end
_MOST_TERMS = 4096  # of a product, before those that are alike become one
_MOST_DIVIDED = 64  # terms of a sum for which a quotient is looked for

Atom = Union[str, tuple[Any, ...]]  # a name, ("//", a, b), ("min", a, b, ...) or ("broadcast", a, b, ...)
Monomial = tuple[Atom, ...]  # a sorted product of atoms; () is 1


class SizeNotKnown(InputError):
    """A number is needed where a size has a name only: it is known once inputs arrive."""


class Dim:
    """A size known when a plan is made: a name, or an integer expression over names.

    ``Dim("batch")`` makes a named size. ``+ - * //`` with ints and dims give a ``Dim``, or an int where the
    names cancel. Equal expressions are equal and hash alike; order is not defined.
    """

    __slots__ = ("_terms", "_text")
    _terms: tuple[tuple[Monomial, int], ...]
    _text: str

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise InputError(f"a named dim needs a name, got {checks.shown(name)}")
        self._terms = (((name,), 1),)
        self._text = name

    @staticmethod
    def _from(terms: Mapping[Monomial, int]) -> Size:
        kept = {m: c for m, c in terms.items() if c}
        if not kept:
            return 0
        if len(kept) == 1 and () in kept:
            return kept[()]
        dim = object.__new__(Dim)
        ordered = kept.items() if len(kept) == 1 else sorted(kept.items(), key=lambda i: (len(i[0]), repr(i[0])))
        dim._terms = tuple(ordered)
        dim._text = _dim_text(dim._terms)
        if len(dim._text) > _MOST_TEXT:
            raise InputError(f"the size {dim._text[:80]}... grows too long; fix the named sizes")
        return dim

    @property
    def names(self) -> frozenset[str]:
        """The names that the expression contains."""
        found: set[str] = set()
        for monomial, _ in self._terms:
            for atom in monomial:
                if isinstance(atom, str):
                    found.add(atom)
                else:
                    for term in atom[1:]:
                        if isinstance(term, Dim):
                            found |= term.names
        return frozenset(found)

    @property
    def is_linear(self) -> bool:
        """Whether the expression is a sum of names with factors, and of a number."""
        return all(
            len(monomial) == 0 or (len(monomial) == 1 and isinstance(monomial[0], str)) for monomial, _ in self._terms
        )

    def bind(self, sizes: Mapping[str, int]) -> Size:
        """The expression with names replaced by sizes; an int when all are given.

        Raises:
            InputError: with these sizes it divides by zero.
        """
        if len(self._terms) == 1:
            ((atoms, times),) = self._terms
            if times == 1 and len(atoms) == 1 and isinstance(atoms[0], str):  # a name, as most are
                return sizes.get(atoms[0], self)
        total: Size = 0
        for monomial, factor in self._terms:
            product: Size = factor
            for atom in monomial:
                if isinstance(atom, str):
                    value: Size = sizes.get(atom, _named(atom))
                elif atom[0] in _JOINED:
                    value = _JOINED[atom[0]]([bind_size(term, sizes) for term in atom[1:]])
                else:
                    divisor = bind_size(atom[2], sizes)
                    if divisor == 0:
                        given = ", ".join(f"{name}={size}" for name, size in sizes.items() if name in self.names)
                        raise InputError(f"the size {self}, with {given}, divides by {atom[2]}, which is 0")
                    value = bind_size(atom[1], sizes) // divisor
                product = product * value
            total = total + product
        return total

    def __add__(self, other: Size) -> Size:
        terms = dict(self._terms)
        for monomial, factor in terms_of(other):
            terms[monomial] = terms.get(monomial, 0) + factor
        return Dim._from(terms)

    __radd__ = __add__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: Size) -> Size:
        return self + other * -1

    def __rsub__(self, other: Size) -> Size:
        return self * -1 + other

    def __mul__(self, other: Size) -> Size:
        terms: dict[Monomial, int] = {}
        if len(self._terms) * len(terms_of(other)) > _MOST_TERMS:
            raise InputError(f"the size ({self})*({other}) grows too long; fix the named sizes")
        for left, a in self._terms:
            for right, b in terms_of(other):
                product = _times(left, right)
                terms[product] = terms.get(product, 0) + a * b
        return Dim._from(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        if other == 0:
            raise InputError(f"the size ({self})//0: a size divided by zero")
        exact = _divide(self._terms, terms_of(other))
        if exact is not None:
            return exact
        if not isinstance(other, Dim) and other > 0:
            return _floor(self._terms, int(other))
        return Dim._from({(("//", self, other),): 1})

    def __rfloordiv__(self, other: Size) -> Size:
        if other == 0:
            return 0
        return Dim._from({(("//", other, self),): 1})

    def __mod__(self, other: Size) -> Size:
        return self - (self // other) * other

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Dim) and self._terms == other._terms)

    def __hash__(self) -> int:
        return hash(self._terms)

    def __index__(self) -> int:
        raise SizeNotKnown(f"the size {self} is not known yet; it is bound when inputs arrive")

    def __bool__(self) -> bool:
        return True  # a size that is not bound counts as non-zero

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Dim({self._text!r})"


@functools.cache
def _named(name: str) -> Dim:
    return Dim(name)


def terms_of(size: Size) -> tuple[tuple[Monomial, int], ...]:
    """The products that a size is the sum of, each with a factor."""
    if isinstance(size, Dim):
        return size._terms
    return (((), int(size)),) if size else ()


def _divide(terms: Sequence[tuple[Monomial, int]], divisor: Sequence[tuple[Monomial, int]]) -> Size | None:
    """The quotient of polynomials where nothing remains, else None."""
    out: dict[Monomial, int] = {}
    if len(divisor) == 1:
        ((by, factor),) = divisor
        for monomial, coefficient in terms:
            found = _without(monomial, by)
            if found is None or coefficient % factor:
                return None
            out[found] = coefficient // factor
        return Dim._from(out)
    if len(terms) < len(divisor) or len(terms) > _MOST_DIVIDED:
        return None
    lead, rest = max(divisor, key=_rank), dict(terms)
    while rest:
        term = max(rest.items(), key=_rank)
        found = _without(term[0], lead[0])
        if found is None or term[1] % lead[1] or found in out:
            return None
        factor = out[found] = term[1] // lead[1]
        for other, coefficient in divisor:
            at = _times(found, other)
            left = rest.get(at, 0) - factor * coefficient
            if left:
                rest[at] = left
            else:
                rest.pop(at, None)
        if len(rest) > _MOST_DIVIDED:
            return None
    return Dim._from(out)


def _floor(terms: Iterable[tuple[Monomial, int]], divisor: int) -> Size:
    """The quotient, rounded down: multiples of the divisor are taken out, and quotients of quotients are one.

    So what convolutions make of a size has few letters: (n - 1)//2 + 1 is (n + 1)//2, and again (n + 3)//4.
    """
    multiples = {monomial: factor // divisor for monomial, factor in terms if not monomial or factor % divisor == 0}
    rest = {m: f % divisor if not m else f for m, f in terms if not m or f % divisor}
    number = rest.pop((), 0)
    if not rest:
        return Dim._from(multiples)
    inner: Size = Dim._from(rest) + number
    ((monomial, factor), *more) = rest.items()
    if not more and factor == 1 and len(monomial) == 1:
        atom = monomial[0]
        if atom[0] == "//" and not isinstance(atom, str) and not isinstance(atom[2], Dim) and atom[2] > 0:
            joined: Size = (atom[1] + number * atom[2]) // (divisor * atom[2])
            return joined + Dim._from(multiples)
    return Dim._from({**multiples, (("//", inner, divisor),): 1})


def _rank(term: tuple[Monomial, int]) -> tuple[int, str]:
    return len(term[0]), repr(term[0])


def _times(left: Monomial, right: Monomial) -> Monomial:
    return tuple(sorted(left + right, key=repr)) if left and right else left or right


def _without(monomial: Monomial, by: Monomial) -> Monomial | None:
    """The product without some of its factors, where it has them."""
    rest = list(monomial)
    for atom in by:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _dim_text(terms: Iterable[tuple[Monomial, int]]) -> str:
    shown = []
    for monomial, factor in terms:
        atoms = [a if isinstance(a, str) else _atom_text(a) for a in monomial]
        if factor != 1 or not atoms:
            atoms.insert(0, str(factor))
        shown.append("*".join(atoms))
    return " + ".join(shown)


def _atom_text(atom: tuple[Any, ...]) -> str:
    if atom[0] in _JOINED:
        return f"{atom[0]}({', '.join(map(str, atom[1:]))})"
    return f"({atom[1]})//({atom[2]})"


def _joined(sizes: Iterable[Size], kind: str) -> tuple[list[Any], list[Dim]]:
    """The known ones of sizes that are joined, which are compared and not hashed, and the others, each once."""
    terms: list[Any] = []
    for size in sizes:
        ((atoms, factor),) = size._terms if isinstance(size, Dim) and len(size._terms) == 1 else (((), 0),)
        joined = factor == 1 and len(atoms) == 1 and isinstance(atoms[0], tuple) and atoms[0][0] == kind
        terms.extend(atoms[0][1:] if joined else [size])
    named = dict.fromkeys(term for term in terms if isinstance(term, Dim))
    return [term for term in terms if not isinstance(term, Dim)], sorted(named, key=str)


def least_size(sizes: Iterable[Size]) -> Size:
    """The smallest of them; known when they are."""
    fixed, named = _joined(sizes, "min")
    kept: list[Size] = [*([min(fixed)] if fixed else []), *named]
    return kept[0] if len(kept) == 1 else Dim._from({(("min", *kept),): 1})


def broadcast_size(sizes: Iterable[Size]) -> Size:
    """What an axis of these sizes broadcasts to: 1 broadcasts, and any others must be equal.

    A fixed size other than 1 decides; of several that are not known yet, the result is known when they are.

    Raises:
        InputError: two known sizes differ, and neither is 1.
    """
    numbers, named = _joined(sizes, "broadcast")
    fixed = [n for n in numbers if n != 1]
    if any(n != fixed[0] for n in fixed[1:]):
        raise InputError(f"sizes {' and '.join(map(str, fixed))} don't broadcast: they differ, and neither is 1")
    if fixed or not named:
        return fixed[0] if fixed else 1
    return named[0] if len(named) == 1 else Dim._from({(("broadcast", *named),): 1})


def at_least(size: Size) -> int | None:
    """A number below which ``size`` is for no sizes of its names, which are not negative; None where none is known."""
    if not isinstance(size, Dim):
        return size
    total = 0
    for monomial, factor in size._terms:
        bounds = [_atom_at_least(atom) for atom in monomial]
        if not monomial:
            total += factor
        elif factor < 0 or any(bound is None or bound < 0 for bound in bounds):
            return None
        else:
            least = factor
            for bound in bounds:
                least *= bound or 0
            total += least
    return total


def _atom_at_least(atom: Atom) -> int | None:
    if isinstance(atom, str):
        return 0
    bounds = [at_least(term) for term in atom[1:]]
    if atom[0] == "//":
        numerator, divisor = bounds
        if numerator is not None and not isinstance(atom[2], Dim) and atom[2] > 0:
            return int(numerator // atom[2])
        return 0 if numerator is not None and numerator >= 0 and divisor is not None and divisor >= 0 else None
    if atom[0] == "broadcast":
        return 0
    return None if None in bounds else min(bound for bound in bounds if bound is not None)


_JOINED = {"min": least_size, "broadcast": broadcast_size}


def bind_size(size: Size, sizes: Mapping[str, int]) -> Size:
    """``size`` with names replaced by their sizes."""
    return size.bind(sizes) if isinstance(size, Dim) else size
