"""Element types, named sizes and tensor types.

A dim is an int or a ``Dim``: a named size ("batch"), or an expression over named sizes, known when a plan is
made. Expressions are integer polynomials over names, floor divisions, the least of sizes and what sizes broadcast to,
kept in one canonical form, so that equal expressions compare equal.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from ..errors import InputError
from ..host import checks

MOST_BYTES = 1 << 57  # of a tensor; no address space has more, and sums of many of them stay below 63 bits
MOST_AXES = 64  # of a tensor; NumPy's arrays have no more

Size = Union[int, "Dim"]
Shape = tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes:
        name: what users type, e.g. ``"float32"``.
        bits: bits per element in a file; 4-bit and 2-bit types are packed there, and take a byte each in memory.
        kind: ``f`` float, ``i`` signed, ``u`` unsigned, ``b`` bool, ``c`` complex, ``s`` string.
        code: number in the C contract (``DF_FLOAT32``, ...).
        short: name in kernel records (``"f32"``).
    """

    name: str
    bits: int
    kind: str
    code: int
    short: str

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; from ml_dtypes for the types that numpy lacks."""
        return _numpy_dtype(self.name)

    @property
    def is_float(self) -> bool:
        """True for real floating types."""
        return self.kind == "f"

    @property
    def is_int(self) -> bool:
        """True for signed and unsigned integers."""
        return self.kind in "iu"

    def nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` elements in memory: at least one each, as in numpy arrays."""
        return elements * ((self.bits + 7) // 8)

    def packed_nbytes(self, elements: int) -> int:
        """Bytes of ``elements`` elements in a file, where 4-bit and 2-bit types share bytes."""
        return (elements * self.bits + 7) // 8


_ML_DTYPES = {
    "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn", "int4", "uint4", "int2", "uint2",
}  # fmt: skip


@functools.cache
def _numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "string":
        return np.dtype(object)
    if name in _ML_DTYPES:
        import ml_dtypes  # takes 10 ms to import, and few models need it

        found: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return found
    return np.dtype(name)


float32 = DType("float32", 32, "f", 1, "f32")
float64 = DType("float64", 64, "f", 2, "f64")
float16 = DType("float16", 16, "f", 3, "f16")
bfloat16 = DType("bfloat16", 16, "f", 4, "bf16")
int8 = DType("int8", 8, "i", 5, "i8")
int16 = DType("int16", 16, "i", 6, "i16")
int32 = DType("int32", 32, "i", 7, "i32")
int64 = DType("int64", 64, "i", 8, "i64")
uint8 = DType("uint8", 8, "u", 9, "u8")
uint16 = DType("uint16", 16, "u", 10, "u16")
uint32 = DType("uint32", 32, "u", 11, "u32")
uint64 = DType("uint64", 64, "u", 12, "u64")
bool_ = DType("bool", 8, "b", 13, "bool")
complex64 = DType("complex64", 64, "c", 14, "c64")
complex128 = DType("complex128", 128, "c", 15, "c128")
float8e4m3fn = DType("float8_e4m3fn", 8, "f", 16, "f8e4m3fn")
float8e4m3fnuz = DType("float8_e4m3fnuz", 8, "f", 17, "f8e4m3fnuz")
float8e5m2 = DType("float8_e5m2", 8, "f", 18, "f8e5m2")
float8e5m2fnuz = DType("float8_e5m2fnuz", 8, "f", 19, "f8e5m2fnuz")
float8e8m0 = DType("float8_e8m0fnu", 8, "f", 20, "f8e8m0")
float4e2m1 = DType("float4_e2m1fn", 4, "f", 21, "f4e2m1")
int4 = DType("int4", 4, "i", 22, "i4")
uint4 = DType("uint4", 4, "u", 23, "u4")
int2 = DType("int2", 2, "i", 24, "i2")
uint2 = DType("uint2", 2, "u", 25, "u2")
string = DType("string", 0, "s", 26, "str")

DTYPES: tuple[DType, ...] = (
    float32, float64, float16, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool_,
    complex64, complex128, float8e4m3fn, float8e4m3fnuz, float8e5m2, float8e5m2fnuz, float8e8m0,
    float4e2m1, int4, uint4, int2, uint2, string,
)  # fmt: skip
_BY_NAME = {d.name: d for d in DTYPES} | {d.short: d for d in DTYPES}
_SEEN: dict[np.dtype[Any], DType] = {}
BY_CODE = {d.code: d for d in DTYPES}


def dtype(of: DType | str | np.dtype[Any] | type | np.ndarray[Any, Any]) -> DType:
    """The ``DType`` for a name, a numpy dtype or scalar type, or an array.

    Raises:
        InputError: there is no such type.
    """
    if isinstance(of, DType):
        return of
    if isinstance(of, str) and of in _BY_NAME:
        return _BY_NAME[of]
    if isinstance(of, np.ndarray):
        of = of.dtype
    if isinstance(of, np.dtype) and of in _SEEN:  # a dtype's name costs numpy microseconds
        return _SEEN[of]
    try:
        resolved: np.dtype[Any] = np.dtype(repr(of) if of is None else of)  # type: ignore[arg-type]  # None is float64 to NumPy
    except (TypeError, ValueError, SyntaxError, OverflowError):
        raise InputError(f"{of!r} is no dtype; expected one of {', '.join(d.name for d in DTYPES)}") from None
    if resolved.kind in "OUST":
        return string
    if resolved.name in _BY_NAME:
        found = _SEEN[resolved] = _BY_NAME[resolved.name]
        return found
    raise InputError(f"numpy dtype {resolved} has no dataflow type; convert it with .astype first")


# ---- named sizes -------------------------------------------------------------------------------------

_MOST_TEXT = 2000  # letters of an expression; sums and products of sums grow without end
_MOST_TERMS = 4096  # of a product, before those that are alike become one

Atom = Union[str, tuple[Any, ...]]  # a name, ("//", a, b), ("min", a, b, ...) or ("broadcast", a, b, ...)
Monomial = tuple[Atom, ...]  # a sorted product of atoms; () is 1


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
        dim._terms = tuple(sorted(kept.items(), key=lambda item: (len(item[0]), repr(item[0]))))
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
                    for part in atom[1:]:
                        if isinstance(part, Dim):
                            found |= part.names
        return frozenset(found)

    def bind(self, sizes: Mapping[str, int]) -> Size:
        """The expression with names replaced by sizes; an int when all are given.

        Raises:
            InputError: with these sizes it divides by zero.
        """
        total: Size = 0
        for monomial, factor in self._terms:
            product: Size = factor
            for atom in monomial:
                if isinstance(atom, str):
                    value: Size = sizes.get(atom, _named(atom))
                elif atom[0] in _JOINED:
                    value = _JOINED[atom[0]]([bind_size(part, sizes) for part in atom[1:]])
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
        for monomial, factor in _terms_of(other):
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
        if len(self._terms) * len(_terms_of(other)) > _MOST_TERMS:
            raise InputError(f"the size ({self})*({other}) grows too long; fix the named sizes")
        for left, a in self._terms:
            for right, b in _terms_of(other):
                product = tuple(sorted(left + right, key=repr))
                terms[product] = terms.get(product, 0) + a * b
        return Dim._from(terms)

    __rmul__ = __mul__

    def __floordiv__(self, other: Size) -> Size:
        if other == 0:
            raise InputError(f"the size ({self})//0: a size divided by zero")
        exact = _divide(self._terms, _terms_of(other))
        if exact is not None:
            return exact
        return Dim._from({(("//", self, other),): 1})

    def __rfloordiv__(self, other: Size) -> Size:
        if other == 0:
            return 0
        return Dim._from({(("//", other, self),): 1})

    def __mod__(self, other: Size) -> Size:
        return self - (self // other) * other

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self._terms == other._terms

    def __hash__(self) -> int:
        return hash(self._terms)

    def __index__(self) -> int:
        raise InputError(f"the size {self} is not known yet; it is bound when inputs arrive")

    def __bool__(self) -> bool:
        return True  # a size that is not bound counts as non-zero

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Dim({self._text!r})"


@functools.cache
def _named(name: str) -> Dim:
    return Dim(name)


def _terms_of(size: Size) -> tuple[tuple[Monomial, int], ...]:
    if isinstance(size, Dim):
        return size._terms
    return (((), int(size)),) if size else ()


def _divide(terms: Sequence[tuple[Monomial, int]], divisor: Sequence[tuple[Monomial, int]]) -> Size | None:
    """The quotient where every term divides by a one-term divisor, else None."""
    if len(divisor) != 1:
        return 1 if tuple(terms) == tuple(divisor) else None
    ((by, factor),) = divisor
    out: dict[Monomial, int] = {}
    for monomial, coefficient in terms:
        rest = list(monomial)
        for atom in by:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % factor:
            return None
        out[tuple(rest)] = coefficient // factor
    return Dim._from(out)


def _dim_text(terms: Iterable[tuple[Monomial, int]]) -> str:
    parts = []
    for monomial, factor in terms:
        atoms = [a if isinstance(a, str) else _atom_text(a) for a in monomial]
        if factor != 1 or not atoms:
            atoms.insert(0, str(factor))
        parts.append("*".join(atoms))
    return " + ".join(parts)


def _atom_text(atom: tuple[Any, ...]) -> str:
    if atom[0] in _JOINED:
        return f"{atom[0]}({', '.join(map(str, atom[1:]))})"
    return f"({atom[1]})//({atom[2]})"


def _parts(size: Size, kind: str) -> tuple[Size, ...]:
    """The sizes that were joined to this one; itself where it is of another kind."""
    if isinstance(size, Dim) and len(size._terms) == 1:
        ((atoms, factor),) = size._terms
        if factor == 1 and len(atoms) == 1 and isinstance(atoms[0], tuple) and atoms[0][0] == kind:
            return atoms[0][1:]
    return (size,)


def least_size(sizes: Iterable[Size]) -> Size:
    """The smallest of them; known when they are."""
    parts = dict.fromkeys(part for size in sizes for part in _parts(size, "min"))
    fixed = [n for n in parts if not isinstance(n, Dim)]
    kept: list[Size] = [*([min(fixed)] if fixed else []), *sorted((n for n in parts if isinstance(n, Dim)), key=str)]
    return kept[0] if len(kept) == 1 else Dim._from({(("min", *kept),): 1})


def broadcast_size(sizes: Iterable[Size]) -> Size:
    """What an axis of these sizes broadcasts to: 1 gives way, and any others must be equal.

    A fixed size other than 1 decides; of several that are not known yet, the result is known when they are.

    Raises:
        InputError: two known sizes differ, and neither is 1.
    """
    parts = dict.fromkeys(part for size in sizes for part in _parts(size, "broadcast"))
    fixed = [n for n in parts if not isinstance(n, Dim) and n != 1]
    if len(fixed) > 1:
        raise InputError(f"sizes {' and '.join(map(str, fixed))} don't broadcast: they differ, and neither is 1")
    named = sorted((n for n in parts if isinstance(n, Dim)), key=str)
    if fixed or not named:
        return fixed[0] if fixed else 1
    return named[0] if len(named) == 1 else Dim._from({(("broadcast", *named),): 1})


_JOINED = {"min": least_size, "broadcast": broadcast_size}


def bind_size(size: Size, sizes: Mapping[str, int]) -> Size:
    """``size`` with names replaced by their sizes."""
    return size.bind(sizes) if isinstance(size, Dim) else size


# ---- tensor types ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TensorType:
    """Element type and shape of a value; a dim is an int or a ``Dim``."""

    dtype: DType
    shape: Shape

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape of a bound type, as ints; raises InputError where a dim isn't known yet."""
        for dim in self.shape:
            if type(dim) is not int:
                return tuple(int(d) for d in self.shape)
        return self.shape  # type: ignore[return-value]

    @property
    def is_bound(self) -> bool:
        """True when every dim is an int."""
        return not any(isinstance(d, Dim) for d in self.shape)

    @property
    def elements(self) -> int:
        """Number of elements of a bound type.

        Raises:
            InputError: a dim is not bound or negative, or there are more elements than can be addressed.
        """
        return element_count(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a bound, contiguous tensor."""
        return self.dtype.nbytes(self.elements)

    def bind(self, sizes: Mapping[str, int]) -> TensorType:
        """The type with named dims replaced by sizes."""
        if self.is_bound:
            return self
        return TensorType(self.dtype, tuple(bind_size(d, sizes) for d in self.shape))

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


@functools.lru_cache(4096)
def element_count(shape: Shape) -> int:
    """The product of a bound shape's dims; refused where strides, also of a shape without elements, are too large."""
    span = 1
    for dim in shape:
        if isinstance(dim, Dim):
            raise InputError(f"the size {dim} of shape ({', '.join(map(str, shape))}) is not known yet")
        if dim < 0:
            raise InputError(f"shape ({', '.join(map(str, shape))}) has the negative size {dim}")
        span *= dim or 1
    if span > MOST_BYTES // 16:  # elements have 16 bytes at most
        raise InputError(f"shape ({', '.join(map(str, shape))}) has {span} elements: more than can be addressed")
    return 0 if 0 in shape else span


@functools.lru_cache(4096)
def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of ``shape``, in elements."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)
