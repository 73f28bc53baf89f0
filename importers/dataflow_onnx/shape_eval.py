"""Computations with sizes: results of operators for integers and named dims that are known at load.

``Shape -> Gather -> Concat -> Reshape`` and the like are evaluated here, so that Reshape gets an attribute. A rule
takes object arrays of ints, bools and Dims and gives one, or None: then the node is converted as usual, and computed
once the sizes are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dataflow import Dim, DType, bool_
from dataflow.errors import InputError, ModelError
from dataflow.plugin import at_least, least_size

from .file.records import Array

MOST_KNOWN = 1024  # elements of a tensor that is followed as sizes
_MOST_TEXT = 500  # letters of an expression of named dims; more comes from no model that somebody needs
_LONG_NUMBER = 19  # digits of 2 to the power of 62


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor of integers and dims, with the dtype that it has where it is used as data."""

    numbers: Array
    dtype: DType


class _Open(Exception):
    """What a rule is asked can't be said before the named sizes are known."""


Rule = Callable[..., Any]
_RULES: dict[str, Rule] = {}
_BOOLEAN = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not"}


def objects(sizes: Sequence[Any]) -> Array:
    """Sizes as an array of rank one."""
    found = np.empty(len(sizes), object)
    for index, size in enumerate(sizes):
        found[index] = size
    return found


def filled(shape: Sequence[int], size: Any) -> Array:
    """An array with one size everywhere."""
    found = np.empty(tuple(shape), object)
    found[...] = size
    return found


def filled_by(numbers: Array, function: Callable[[Any], Any]) -> Array:
    """Another array of sizes, element by element."""
    found: Array = np.asarray(np.frompyfunc(function, 1, 1)(numbers), object).reshape(numbers.shape)
    return found


def product(sizes: Iterable[Any]) -> Any:
    """Of sizes; 1 for none."""
    total: Any = 1
    for size in sizes:
        total = total * size
    return total


def has_rule(op: str) -> bool:
    """Whether there is a rule for an operator; ``compute`` gives None for others."""
    return op in _RULES


def compute(op: str, operands: Sequence[Known | None], attributes: Mapping[str, Any]) -> Known | None:
    """What an operator gives for known operands, or None."""
    rule = _RULES.get(op)
    if rule is None or not operands or operands[0] is None:
        return None
    given = [None if o is None else o.numbers for o in operands]
    try:
        result = rule(*given, **attributes)
    except (_Open, InputError):  # of a size: it divides by zero, or its text grows too long
        return None
    if result is None or result.size > MOST_KNOWN:
        return None
    dtype = bool_ if op in _BOOLEAN else operands[1 if op == "Where" else 0].dtype  # type: ignore[union-attr]
    if any(isinstance(number, Dim) and _is_strange(number) for number in result.reshape(-1)):
        return None
    return Known(_wrapped(result, dtype), dtype)


def _is_strange(size: Dim) -> bool:
    """Whether an expression is longer than anybody needs, or holds numbers with which int64 would wrap around."""
    text = str(size)
    if len(text) > _MOST_TEXT:
        return True
    if len(text) < _LONG_NUMBER:
        return False
    try:
        return abs(int(size.bind(dict.fromkeys(size.names, 1)))) >> 62 > 0
    except InputError:  # it divides by a difference of sizes
        return False


def _wrapped(numbers: Array, dtype: DType) -> Array:
    """Numbers in the range of their type, as its arithmetic leaves them."""
    if not dtype.is_int:
        return numbers
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
    high = low + (1 << dtype.bits)
    if all(low <= n < high if type(n) is int else type(n) is Dim for n in numbers.flat):
        return numbers  # as almost always
    return filled_by(numbers, lambda n: n if isinstance(n, Dim) else (n - low) % (1 << dtype.bits) + low)


def _rule(name: str) -> Callable[[Rule], Rule]:
    def add(function: Rule) -> Rule:
        _RULES[name] = function
        return function

    return add


# ---- elementwise ------------------------------------------------------------------------------------------


def _open(*numbers: Any) -> bool:
    return any(isinstance(n, Dim) for n in numbers)


def _is_less(a: Any, b: Any) -> bool:
    """Whether a < b, where that holds, or doesn't, for all sizes."""
    difference = b - a
    least, most = at_least(difference), at_least(-difference)
    if least is not None and least > 0:
        return True
    if most is not None and most >= 0:
        return False
    raise _Open


def _is_equal(a: Any, b: Any) -> bool:
    """Whether a == b, where that holds, or doesn't, for all sizes."""
    if a == b:
        return True
    difference = b - a
    bounds = at_least(difference), at_least(-difference)
    if any(bound is not None and bound > 0 for bound in bounds):
        return False
    raise _Open


def _quotient(a: Any, b: Any) -> Any:
    """Of integers, truncated towards zero as in C."""
    if not _open(b) and b == 0:
        raise _Open  # what a node gives that nobody may read
    if not _open(a, b):
        return abs(a) // abs(b) * (1 if (a >= 0) == (b >= 0) else -1)
    if any(bound is None or bound < 0 for bound in (at_least(a), at_least(b))):
        raise _Open  # sizes are rounded down
    return a // b


def _remainder(a: Any, b: Any) -> Any:
    """Of integers, with the sign of the divisor."""
    if not _open(b) and b == 0:
        raise _Open  # what a node gives that nobody may read
    return a - a // b * b


def _absolute(a: Any) -> Any:
    least = at_least(a)
    if _open(a) and (least is None or least < 0):
        raise _Open
    return a if _open(a) else abs(a)


def _elementwise(name: str, arity: int, function: Callable[..., Any]) -> None:
    def rule(*arrays: Array | None, **attributes: Any) -> Array | None:
        if len(arrays) != arity or any(a is None for a in arrays) or attributes:
            return None
        shape = np.broadcast_shapes(*[a.shape for a in arrays if a is not None])
        if product(shape) > MOST_KNOWN:
            return None
        return np.asarray(np.frompyfunc(function, arity, 1)(*arrays), object).reshape(shape)

    _RULES[name] = rule


_elementwise("Add", 2, lambda a, b: a + b)
_elementwise("Sub", 2, lambda a, b: a - b)
_elementwise("Mul", 2, lambda a, b: a * b)
_elementwise("Div", 2, _quotient)
_elementwise("Mod", 2, _remainder)
_elementwise("Neg", 1, lambda a: -a)
_elementwise("Abs", 1, _absolute)
_elementwise("Min", 2, lambda a, b: least_size([a, b]))
_elementwise("Max", 2, lambda a, b: a + b - least_size([a, b]))
_elementwise("Equal", 2, _is_equal)
_elementwise("Less", 2, _is_less)
_elementwise("LessOrEqual", 2, lambda a, b: not _is_less(b, a))
_elementwise("Greater", 2, lambda a, b: _is_less(b, a))
_elementwise("GreaterOrEqual", 2, lambda a, b: not _is_less(a, b))
_elementwise("And", 2, lambda a, b: bool(a and b))
_elementwise("Or", 2, lambda a, b: bool(a or b))
_elementwise("Xor", 2, lambda a, b: bool(a) != bool(b))
_elementwise("Not", 1, lambda a: not a)
_elementwise("Where", 3, lambda which, a, b: a if which else b)


# ---- shape and choice -------------------------------------------------------------------------------------


def _fixed(array: Array | None) -> list[int] | None:
    """Plain numbers, or None where there is a dim among them."""
    if array is None or any(isinstance(n, Dim) for n in array.reshape(-1)):
        return None
    return [int(n) for n in array.reshape(-1)]


def axis_in(axis: int, rank: int) -> int:
    """The axis counted from the front; a ``ModelError`` where there is none."""
    if not -rank <= axis < rank:
        raise ModelError(f"axis {axis} of a tensor of rank {rank}; expected {-rank} to {rank - 1}")
    return axis % rank


def axes_in(axes: Sequence[int], rank: int) -> list[int]:
    """As ``axis_in``, for several; refuses one that comes twice."""
    found = [axis_in(int(a), rank) for a in axes]
    if len(set(found)) != len(found):
        raise ModelError(f"axes {tuple(axes)} name an axis twice")
    return found


@_rule("Gather")
def _gather(x: Array, indices: Array | None, *, axis: int = 0) -> Array | None:
    if indices is None or x.ndim != 1 or _fixed(indices) is None or indices.size > MOST_KNOWN:
        return None
    axis_in(axis, 1)
    at = indices.astype(np.int64)
    if ((at >= len(x)) | (at < -len(x))).any():
        raise ModelError(f"index {at.tolist()} into {len(x)} sizes")
    found = np.empty(at.shape, object)
    found[...] = x[at]
    return found


@_rule("Concat")
def _concat(*xs: Array | None, axis: int) -> Array | None:
    present = [x for x in xs if x is not None]
    if len(present) != len(xs) or any(x.ndim != 1 for x in present):
        return None
    axis_in(axis, 1)
    return np.concatenate(present) if sum(map(len, present)) <= MOST_KNOWN else None


@_rule("Reshape")
def _reshape(x: Array, shape: Array | None, *, allowzero: int = 0) -> Array | None:
    wanted = _fixed(shape)
    if wanted is None:
        return None
    if not allowzero:
        wanted = [x.shape[i] if n == 0 and i < x.ndim else n for i, n in enumerate(wanted)]
    return x.reshape(wanted)


@_rule("Squeeze")
def _squeeze(x: Array, chosen: Array | None = None, *, axes: Sequence[int] | None = None) -> Array | None:
    given = axes if chosen is None else _fixed(chosen)
    return x.squeeze() if given is None else x.squeeze(tuple(axes_in(given, x.ndim)))


@_rule("Unsqueeze")
def _unsqueeze(x: Array, chosen: Array | None = None, *, axes: Sequence[int] | None = None) -> Array | None:
    given = axes if chosen is None else _fixed(chosen)
    return None if given is None else np.expand_dims(x, tuple(axes_in(given, x.ndim + len(given))))


@_rule("Slice")
def _slice(
    x: Array,
    first: Array | None = None,
    last: Array | None = None,
    along: Array | None = None,
    every: Array | None = None,
    *,
    starts: Sequence[int] | None = None,
    ends: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
) -> Array | None:
    begin = starts if first is None else _fixed(first)
    stop = ends if last is None else _fixed(last)
    if begin is None or stop is None or (every is not None and _fixed(every) is None):
        return None
    steps = [1] * len(begin) if every is None else _fixed(every)
    where = axes if along is None else _fixed(along)
    chosen = [slice(None)] * x.ndim
    for axis, *ends_of in zip(axes_in(where or range(len(begin)), x.ndim), begin, stop, steps or (), strict=True):
        if ends_of[2] == 0:
            raise ModelError("a step is 0")
        chosen[axis] = slice(*ends_of)
    return x[tuple(chosen)]


@_rule("Transpose")
def _transpose(x: Array, *, perm: Sequence[int] | None = None) -> Array | None:
    return x.transpose(None if perm is None else axes_in(perm, x.ndim))


@_rule("Expand")
def _expand(x: Array, shape: Array | None) -> Array | None:
    wanted = _fixed(shape)
    if wanted is None or product(wanted) > MOST_KNOWN:
        return None
    sizes = np.broadcast_shapes(x.shape, tuple(wanted))
    return np.broadcast_to(x, sizes) if product(sizes) <= MOST_KNOWN else None


@_rule("Range")
def _range(start: Array, limit: Array | None, delta: Array | None, **_: Any) -> Array | None:
    ends = [_fixed(a) for a in (start, limit, delta)]
    if any(e is None or len(e) != 1 for e in ends) or ends[2] == [0]:
        return None
    numbers = range(*[e[0] for e in ends if e is not None])
    return objects(numbers) if len(numbers) <= MOST_KNOWN else None


@_rule("ReduceProd")
def _reduce_prod(
    x: Array, chosen: Array | None = None, *, keepdims: int = 1, axes: Sequence[int] | None = None, **_: Any
) -> Array | None:
    return filled((1,) if keepdims else (), product(x)) if x.ndim == 1 and _over_all(chosen, axes) else None


@_rule("ReduceSum")
def _reduce_sum(
    x: Array, chosen: Array | None = None, *, keepdims: int = 1, axes: Sequence[int] | None = None, **_: Any
) -> Array | None:
    return filled((1,) if keepdims else (), sum(x)) if x.ndim == 1 and _over_all(chosen, axes) else None


def _over_all(chosen: Array | None, axes: Sequence[int] | None) -> bool:
    """Whether a reduction of a tensor of rank one is over its axis."""
    given = axes if chosen is None else _fixed(chosen)
    return given is None or list(given) in ([0], [-1])
