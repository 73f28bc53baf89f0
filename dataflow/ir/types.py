"""Element types, and tensor types: an element type with a shape."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError
from ..host.quick_init import quick_init
from .dims import Dim, Shape, Size, SizeNotKnown, bind_size
from .tracing import Traced, active

MOST_BYTES = 1 << 57  # of a tensor; no address space has more, and sums of many of them stay below 63 bits
MOST_AXES = 64  # of a tensor; NumPy's arrays have no more

Array = np.ndarray[Any, Any]
_KNOWN: frozenset[type] = frozenset({int, Traced})  # what sizes that are known are


@dataclass(frozen=True, slots=True, eq=False)
class DType:
    """An element type; there is one object for each, also behind pickling, so that they compare by identity.

    Attributes:
        name: what users type, e.g. ``"float32"``.
        bits: bits per element in a file; 4-bit and 2-bit types are packed there, and take a byte each in memory. Of
            strings, those of the number that stands for one in memory (``host.strings``).
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

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype; from ml_dtypes for the types that numpy lacks."""
        return _numpy_dtype(self.name)

    @property
    def in_memory(self) -> np.dtype[Any]:
        """The numpy dtype of what lies in a device's memory: for strings that of their numbers, else ``numpy``."""
        return np.dtype(np.uint64) if self.kind == "s" else _numpy_dtype(self.name)

    @property
    def is_float(self) -> bool:
        """True for real floating types."""
        return self.kind == "f"

    @property
    def cotangent(self) -> DType:
        """The dtype of gradients: float32 for floats of fewer than 16 bits, which hold no small ones and no signs."""
        return float32 if self.is_float and self.bits < 16 else self

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
string = DType("string", 64, "s", 26, "str")

DTYPES: tuple[DType, ...] = (
    float32, float64, float16, bfloat16, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool_,
    complex64, complex128, float8e4m3fn, float8e4m3fnuz, float8e5m2, float8e5m2fnuz, float8e8m0,
    float4e2m1, int4, uint4, int2, uint2, string,
)  # fmt: skip
_BY_NAME = {d.name: d for d in DTYPES} | {d.short: d for d in DTYPES}
_SEEN: dict[np.dtype[Any], DType] = {}
BY_CODE = {d.code: d for d in DTYPES}


def dtype(of: DType | str | np.dtype[Any] | type | Array) -> DType:
    """The ``DType`` for a name, a numpy dtype or scalar type, or an array.

    Raises:
        InputError: there is no such type.
    """
    if type(of) is np.ndarray:  # as almost always
        seen = _SEEN.get(of.dtype)
        if seen is not None:
            return seen
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


@quick_init
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
            if type(dim) not in _KNOWN:
                return tuple(int(d) for d in self.shape)
        return self.shape  # type: ignore[return-value]

    @property
    def is_bound(self) -> bool:
        """True when every dim is an int."""
        return Dim not in map(type, self.shape)

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
        return self.dtype.nbytes(element_count(self.shape))

    @property
    def cotangent(self) -> TensorType:
        """The type of its gradients."""
        return TensorType(self.dtype.cotangent, self.shape)

    def bind(self, sizes: Mapping[str, int]) -> TensorType:
        """The type with named dims replaced by sizes."""
        if self.is_bound:
            return self
        return TensorType(self.dtype, bind_shape(self.shape, sizes))

    def __str__(self) -> str:
        return f"{self.dtype.name}[{', '.join(map(str, self.shape))}]"


def bind_shape(shape: Shape, sizes: Mapping[str, int]) -> Shape:
    """A shape with named dims replaced by sizes; an expression that is negative is the size of an axis of no elements.

    So it is with slices: x[2:-5] has N - 7 elements, and none where N is 6.
    """
    return tuple([_at_least_none(bind_size(d, sizes)) if isinstance(d, Dim) else d for d in shape])


def _at_least_none(size: Size) -> Size:
    return size if isinstance(size, Dim) or size >= 0 else 0


def element_count(shape: Shape) -> int:
    """The product of a bound shape's dims; refused where strides, also of a shape without elements, are too large."""
    return _element_count(shape) if active() is None else _element_count.__wrapped__(shape)


@functools.lru_cache(4096)
def _element_count(shape: Shape) -> int:
    span = 1
    for dim in shape:
        if isinstance(dim, Dim):
            raise SizeNotKnown(f"the size {dim} of shape ({', '.join(map(str, shape))}) is not known yet")
        if dim < 0:
            raise InputError(f"shape ({', '.join(map(str, shape))}) has the negative size {dim}")
        span *= dim or 1
    if span > MOST_BYTES // 16:  # elements have 16 bytes at most
        raise InputError(f"shape ({', '.join(map(str, shape))}) has {span} elements: more than can be addressed")
    return 0 if 0 in shape else span


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of ``shape``, in elements."""
    return _contiguous_strides(shape) if active() is None else _contiguous_strides.__wrapped__(shape)


@functools.lru_cache(4096)
def _contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(shape[axis + 1], 1)
    return tuple(strides)
