"""Values: the edges of a graph, with the operators that users write on them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np

from ..errors import InputError, ModelError
from ..host.keywords import answered
from .dims import Size
from .types import Array, DType, TensorType


class Use(Protocol):
    """A node as its op sees it; see ``graph.Node``."""

    @property
    def outputs(self) -> tuple[Value | None, ...]:
        """One value per output."""


class Builder(Protocol):
    """Where the operators of a value and the rules of ops add nodes; see ``builder.GraphBuilder``."""

    origin: str

    def add(
        self,
        op: Any,
        inputs: Sequence[Value | float | Array | None],
        attributes: Mapping[str, Any],
        *,
        bodies: tuple[Any, ...] = (),
        name: str | None = None,
    ) -> Use:
        """The node that computes ``op``."""

    def constant(self, array: Any, name: str | None = None) -> Value:
        """A stored tensor that never changes."""

    def scalar(self, number: float, dtype: DType) -> Value:
        """A rank-0 constant, one per number and dtype."""

    def scalar_of(self, size: int, number: Callable[[int], float], dtype: DType) -> Value:
        """A rank-0 constant that is computed from a size."""

    def initializer_of(self, value: Value) -> Any:
        """The stored tensor that a value is, or None."""

    def nodes(self) -> tuple[Any, ...]:
        """The nodes so far."""

    def scope(self, name: str) -> AbstractContextManager[None]:
        """A context in which new nodes are named ``name/...``."""


class Value:
    """An SSA edge: one tensor, computed once.

    Attributes:
        name: unique in its graph.
        type: dtype and shape.
        builder: the builder that made it, where operators on it add their nodes.
    """

    __slots__ = ("builder", "name", "type")

    def __init__(self, name: str, type: TensorType, builder: Builder | None = None) -> None:
        self.name = name
        self.type = type
        self.builder = builder

    def __reduce__(self) -> tuple[Any, ...]:
        return Value, (self.name, self.type)  # as that of a finished graph

    @property
    def shape(self) -> tuple[Any, ...]:
        """The dims of the type."""
        return self.type.shape

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"

    def __bool__(self) -> bool:
        raise TypeError(
            f"value {self.name!r} is a node's result and has no truth value while a graph is built; "
            "use df.ops.where(condition, a, b) to choose between tensors"
        )

    # == and != are those of objects, since values are keys. No order of tensors has a truth value either.

    def __lt__(self, other: object) -> NoReturn:
        _refuse_order(self, "less")

    def __le__(self, other: object) -> NoReturn:
        _refuse_order(self, "less_equal")

    def __gt__(self, other: object) -> NoReturn:
        _refuse_order(self, "greater")

    def __ge__(self, other: object) -> NoReturn:
        _refuse_order(self, "greater_equal")

    # Operators build nodes of ops, which are declared above this room: see install_operators. NumPy leaves them to us;
    # a value is no sequence.
    __array_ufunc__: ClassVar[None] = None
    __iter__: ClassVar[None] = None
    __contains__: ClassVar[None] = None

    def __add__(self, other: ValueLike) -> Value:
        return _operators().binary("add", self, other)

    def __radd__(self, other: ValueLike) -> Value:
        return _operators().binary("add", other, self)

    def __sub__(self, other: ValueLike) -> Value:
        return _operators().binary("sub", self, other)

    def __rsub__(self, other: ValueLike) -> Value:
        return _operators().binary("sub", other, self)

    def __mul__(self, other: ValueLike) -> Value:
        return _operators().binary("mul", self, other)

    def __rmul__(self, other: ValueLike) -> Value:
        return _operators().binary("mul", other, self)

    def __truediv__(self, other: ValueLike) -> Value:
        return _operators().divided(self, other)

    def __rtruediv__(self, other: ValueLike) -> Value:
        return _operators().divided(other, self)

    def __pow__(self, other: ValueLike) -> Value:
        return _operators().binary("pow", self, other)

    def __rpow__(self, other: ValueLike) -> Value:
        return _operators().binary("pow", other, self)

    def __matmul__(self, other: ValueLike) -> Value:
        return _operators().binary("matmul", self, other)

    def __rmatmul__(self, other: ValueLike) -> Value:
        return _operators().binary("matmul", other, self)

    def __mod__(self, other: ValueLike) -> Value:
        return _operators().binary("mod", self, other)

    def __rmod__(self, other: ValueLike) -> Value:
        return _operators().binary("mod", other, self)

    def __and__(self, other: ValueLike) -> Value:
        return _operators().connected("and", self, other)

    def __rand__(self, other: ValueLike) -> Value:
        return _operators().connected("and", other, self)

    def __or__(self, other: ValueLike) -> Value:
        return _operators().connected("or", self, other)

    def __ror__(self, other: ValueLike) -> Value:
        return _operators().connected("or", other, self)

    def __xor__(self, other: ValueLike) -> Value:
        return _operators().connected("xor", self, other)

    def __rxor__(self, other: ValueLike) -> Value:
        return _operators().connected("xor", other, self)

    def __neg__(self) -> Value:
        return _operators().unary("neg", self)

    def __abs__(self) -> Value:
        return _operators().unary("abs", self)

    def __invert__(self) -> Value:
        return _operators().inverted(self)

    def __getitem__(self, key: Any) -> Value:
        return _operators().sliced(self, key)

    def reshape(self, *shape: Size | Sequence[Size]) -> Value:
        """The elements under another shape, given as sizes or one tuple; a size of -1 is what is left."""
        return _operators().reshaped(self, shape)

    def transpose(self, *perm: int | Sequence[int]) -> Value:
        """The axes in the order ``perm``, given as axes or one tuple; in reverse order without."""
        return _operators().transposed(self, perm)

    @property
    def T(self) -> Value:  # noqa: N802  # NumPy's name
        """The axes in reverse order: of a matrix its transpose."""
        return _operators().transposed(self, ())

    @answered
    def sum(self, axes: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Value:
        """The sum over ``axes``, over all by default."""
        return _operators().reduced("reduce_sum", self, axes, keepdims)

    @answered
    def mean(self, axes: int | Sequence[int] | None = None, *, keepdims: bool = False) -> Value:
        """The mean over ``axes``, over all by default; of floats."""
        return _operators().reduced("reduce_mean", self, axes, keepdims)


def _refuse_order(value: Value, op: str) -> NoReturn:
    raise TypeError(
        f"value {value.name!r} is a node's result, which <, <=, > and >= don't compare; use df.ops.{op}(x, y), and "
        "df.ops.where(condition, a, b) or df.ops.cast with what it gives"
    )


def refuse_bool(op: str, like: Value | None, item: object) -> None:
    """Raises InputError where the operand beside a value of numbers is a bool of Python, as == of values gives it."""
    if type(item) is bool and like is not None and like.type.dtype.kind != "b":
        raise InputError(
            f"{op} of {like.name!r}, which is {like.type}, and {item}: a bool of Python is no number here, and == and "
            "!= of values only ask whether they are the same object; compare elements with df.ops.equal(x, y), and "
            "df.ops.logical_not of that, and choose with df.ops.where(condition, a, b) or make a mask with df.ops.cast"
        )


ValueLike = Value | complex | np.generic | Array | Sequence[Any]
"""An operand as users write it."""


class Operators(Protocol):
    """What the operators and methods of a value call."""

    def binary(self, name: str, a: ValueLike, b: ValueLike, /) -> Value:
        """The op called ``name`` of two operands, one of which is a value."""

    def divided(self, a: ValueLike, b: ValueLike, /) -> Value:
        """The quotient of floats."""

    def connected(self, name: str, a: ValueLike, b: ValueLike, /) -> Value:
        """``and``, ``or`` or ``xor`` of bools, or of the bits of integers."""

    def unary(self, name: str, x: Value, /) -> Value:
        """The op called ``name`` of a value."""

    def inverted(self, x: Value, /) -> Value:
        """``~x``, of bools or of the bits of integers."""

    def sliced(self, x: Value, key: Any, /) -> Value:
        """``x[key]``."""

    def reshaped(self, x: Value, shape: Sequence[Any], /) -> Value:
        """``x`` under another shape."""

    def transposed(self, x: Value, perm: Sequence[Any], /) -> Value:
        """``x`` with its axes in another order."""

    def reduced(self, name: str, x: Value, axes: int | Sequence[int] | None, keepdims: bool, /) -> Value:
        """The reduction called ``name``."""


_source: Callable[[], Operators]


def install_operators(load: Callable[[], Operators]) -> None:
    """Gives values their operators, which build nodes of ops; ``load`` is called when the first one is used."""
    global _source
    _source = load
    _operators.cache_clear()


@functools.cache
def _operators() -> Operators:
    return _source()


def misplaced(attributes: Mapping[str, object]) -> str:
    """What to do where an operand was given as an attribute, for messages; nothing without one."""
    names = [name for name, item in attributes.items() if isinstance(item, Value)]
    return f"; operands have no names in a call: give {names[0]!r} by its position" if names else ""


def builder_of(op: str, inputs: Sequence[object], attributes: Mapping[str, object] = MappingProxyType({})) -> Builder:
    """The builder of the first value among the inputs of ``op``; ``attributes`` are for messages.

    Raises:
        ModelError: that value belongs to a finished graph.
        InputError: there is no value.
    """
    for item in inputs:
        if isinstance(item, Value):
            if item.builder is None:
                raise ModelError(f"{op}: value {item.name!r} belongs to a finished graph")
            return item.builder
    advice = misplaced(attributes) or "; use the builder's add() for a source"
    if any(isinstance(item, (list, tuple)) and any(isinstance(v, Value) for v in item) for item in inputs):
        advice = f"; operands are no list: give them one by one, {op}(a, b)"
    raise InputError(f"{op}: none of its inputs is a value of a graph{advice}")
