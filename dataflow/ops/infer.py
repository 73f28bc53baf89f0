"""Shape rules that several families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import InputError
from ..ir.dims import Dim, Shape, Size, broadcast_size
from ..ir.graph import Node
from ..ir.types import DType, TensorType, bool_, float8e8m0
from ..ir.value import Builder, Value


def broadcast_shape(name: str, *shapes: Shape) -> Shape:
    """The shape that NumPy's broadcasting gives; of several named dims on an axis it is known when they are bound.

    Raises:
        InputError: the shapes don't fit.
    """
    plain = _of_two(*shapes) if len(shapes) == 2 else None
    if plain is not None:
        return plain
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
    result: list[Size] = []
    for axis, sizes in enumerate(zip(*padded, strict=True)):
        fixed = [n for n in sizes if not isinstance(n, Dim) and n != 1]
        other = next((n for n in fixed if n != fixed[0]), None)
        if other is not None:
            listed = " and ".join(f"({', '.join(map(str, s))})" for s in shapes)
            raise InputError(f"{name}: shapes {listed} don't broadcast: axis {axis} is {fixed[0]} and {other}")
        result.append(fixed[0] if fixed else broadcast_size(sizes))
    return tuple(result)


def _of_two(a: Shape, b: Shape) -> Shape | None:
    """What two shapes broadcast to, where that is the one or the other on each axis; None: it takes a closer look."""
    if len(a) < len(b):
        a, b = b, a
    found, lead = list(a), len(a) - len(b)
    for axis, other in enumerate(b, lead):
        size = found[axis]
        if other is size or (type(other) is int and (other == 1 or (type(size) is int and other == size))):
            continue
        if type(size) is not int or size != 1:
            return None
        found[axis] = other
    return tuple(found)


def same_dtype(name: str, *types: TensorType) -> DType:
    """The dtype that all have.

    Raises:
        InputError: they differ.
    """
    first = types[0].dtype
    for type_ in types[1:]:
        if type_.dtype != first:
            raise InputError(f"{name}: operands are {types[0]} and {type_}; give both one dtype with cast")
    return first


def broadcast(name: str) -> Callable[..., TensorType]:
    """The rule of a binary op: numbers of one dtype, broadcast shapes."""

    def infer(a: TensorType, b: TensorType, **_: Any) -> TensorType:
        need_number(name, a, b)
        return TensorType(same_dtype(name, a, b), broadcast_shape(name, a.shape, b.shape))

    return infer


def compare(name: str) -> Callable[..., TensorType]:
    """The rule of a comparison: bool, broadcast shapes."""

    def infer(a: TensorType, b: TensorType, **_: Any) -> TensorType:
        same_dtype(name, a, b)
        return TensorType(bool_, broadcast_shape(name, a.shape, b.shape))

    return infer


def logical(name: str) -> Callable[..., TensorType]:
    """The rule of a connective: of bools, broadcast shapes."""

    def infer(a: TensorType, b: TensorType, **_: Any) -> TensorType:
        need_bool(name, a, b)
        return TensorType(bool_, broadcast_shape(name, a.shape, b.shape))

    return infer


def alike(name: str, *types: TensorType) -> TensorType:
    """The type that all have.

    Raises:
        InputError: dtypes or shapes differ; a named dim counts as fitting until it is bound.
    """
    first = types[0]
    for other in types[1:]:
        if other is first or (other.dtype is first.dtype and other.shape == first.shape):
            continue
        dims = zip(first.shape, other.shape, strict=False)
        fits = first.rank == other.rank and all(isinstance(a, Dim) or isinstance(b, Dim) or a == b for a, b in dims)
        if not (fits and first.dtype == other.dtype):
            raise InputError(f"{name}: operands are {first} and {other}; expected one type")
    return first


def numbers_alike(name: str) -> Callable[..., TensorType]:
    """The rule of an elementwise op on numbers, whose operands and result have one type."""

    def infer(*types: TensorType, **_: Any) -> TensorType:
        need_number(name, *types)
        return alike(name, *types)

    return infer


def floats_alike(name: str) -> Callable[..., TensorType]:
    """The rule of an elementwise op on floats, whose operands and result have one type."""

    def infer(*types: TensorType, **_: Any) -> TensorType:
        need_float(name, *types)
        return alike(name, *types)

    return infer


def normal_axis(name: str, axis: int, rank: int) -> int:
    """The axis counted from the front.

    Raises:
        InputError: there is no such axis.
    """
    if not -rank <= axis < rank:
        raise InputError(f"{name}: axis {axis} of a tensor of rank {rank}; expected {-rank} to {rank - 1}")
    return axis % rank


def normal_axes(name: str, axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Sorted axes counted from the front.

    Raises:
        InputError: axes is no sequence of axes, or one doesn't exist or comes twice.
    """
    # Not None for all of them: kernels read the attribute as it is, and would reduce over no axis.
    if not isinstance(axes, Sequence):
        raise InputError(f"{name}: axes is {axes!r}; expected all that are meant, e.g. axes=(0, 1)")
    found = sorted(normal_axis(name, a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise InputError(f"{name}: axes {tuple(axes)} name an axis twice")
    return tuple(found)


def reduced(name: str) -> Callable[..., TensorType]:
    """The rule of a reduction over ``axes``."""

    def infer(x: TensorType, *, axes: Sequence[int], keepdims: bool) -> TensorType:
        if x.dtype.kind == "s":
            raise InputError(f"{name}: expected numbers or booleans, got {x}")
        gone = normal_axes(name, axes, x.rank)
        return TensorType(x.dtype, reduced_shape(x.shape, gone, bool(keepdims)))

    return infer


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """``shape`` without ``axes``, or with ones there."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def product(sizes: Sequence[Size]) -> Size:
    """The product of sizes; 1 for none."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return total


def need(condition: bool, text: str) -> None:
    """Raises InputError with ``text`` unless the condition holds."""
    if not condition:
        raise InputError(text)


def operand(node: Node, index: int = 0) -> Value:
    """An input that is there."""
    value = node.inputs[index]
    assert value is not None
    return value


def result(node: Node, index: int = 0) -> Value:
    """An output that is there."""
    value = node.outputs[index]
    assert value is not None
    return value


def builder_for(value: Value) -> Builder:
    """The builder of a value, where a rule adds nodes."""
    assert value.builder is not None
    return value.builder


def scalar_like(value: Value, number: float) -> Value:
    """A constant of the dtype of ``value``."""
    return builder_for(value).scalar(number, value.type.dtype)


def varies(value: Value) -> bool:
    """False for a constant: what nobody trains or feeds needs no gradient."""
    stored = builder_for(value).initializer_of(value)
    return stored is None or stored.trainable


def need_bool(name: str, *types: TensorType) -> None:
    """Raises InputError where a type is not bool."""
    for type_ in types:
        if type_.dtype != bool_:
            raise InputError(f"{name}: expected bool, got {type_}; compare first, e.g. with df.ops.equal")


def need_shape(name: str, shape: Shape) -> None:
    """Raises InputError where ``shape``, an attribute, has a negative size, or a name by itself."""
    names = [d for d in shape if isinstance(d, str)]
    if names:
        raise InputError(
            f"{name}: shape ({', '.join(map(str, shape))}) has the text {names[0]!r}; give the size that a value has, "
            f"e.g. x.shape[0], or df.Dim({names[0]!r})"
        )
    wrong = [d for d in shape if not isinstance(d, Dim) and d < 0]
    if wrong:
        raise InputError(
            f"{name}: shape ({', '.join(map(str, shape))}) has a negative size; give every size, which may be that "
            "of a value, e.g. x.shape[0]; x.reshape(...) finds one that is -1"
        )


def need_number(name: str, *types: TensorType) -> None:
    """Raises InputError where a type is bool or string, or float8_e8m0fnu."""
    for type_ in types:
        if type_.dtype.kind in "bs":
            raise InputError(f"{name}: expected numbers, got {type_}; use cast first")
        _refuse_powers(name, type_)


def need_real(name: str, *types: TensorType) -> None:
    """Raises InputError where a type is no integer and no real float, or float8_e8m0fnu."""
    for type_ in types:
        if type_.dtype.kind not in "fiu":
            raise InputError(f"{name}: expected real numbers, got {type_}; use cast first")
        _refuse_powers(name, type_)


def need_float(name: str, *types: TensorType | None) -> None:
    """Raises InputError where a given type is no float, or float8_e8m0fnu."""
    for type_ in types:
        if type_ is None:
            continue
        if not type_.dtype.is_float:
            raise InputError(f"{name}: expected a float type, got {type_}; use cast first")
        _refuse_powers(name, type_)


def _refuse_powers(name: str, type_: TensorType) -> None:
    """Raises InputError for a type that holds neither 0 nor signs: what is computed in it would be NaN."""
    if type_.dtype is float8e8m0:
        raise InputError(f"{name}: {type_} holds powers of two alone, as scales of blocks; use cast first")
