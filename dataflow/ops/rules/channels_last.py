"""Ops over (N, C, spatial...) as ops over (N, spatial..., C)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.dims import Shape
from ...ir.types import TensorType
from ...ir.value import Value
from ..shape import transpose


def last_perm(rank: int) -> tuple[int, ...]:
    """The permutation of (N, C, spatial...) that puts the channels last."""
    return (0, *range(2, rank), 1)


def first_perm(rank: int) -> tuple[int, ...]:
    """The permutation of (N, spatial..., C) that puts the channels behind the batch."""
    return (0, rank - 1, *range(1, rank - 1))


def permuted(x: TensorType, perm: tuple[int, ...]) -> TensorType:
    """The type of a transposed value."""
    return TensorType(x.dtype, tuple(x.shape[axis] for axis in perm))


def with_channels_last(infer: Callable[..., TensorType], shape: str = "") -> Callable[..., TensorType]:
    """The rule of an op whose first two operands, its result, and the shape in an attribute have their channels last.

    Args:
        infer: the rule where they are behind the first axis.
        shape: the attribute's name, if there is one.
    """

    def inferred(a: TensorType, b: TensorType, *others: Any, **attributes: Any) -> TensorType:
        planar = [permuted(x, first_perm(x.rank)) for x in (a, b)]
        y = infer(*planar, *others, **_with_first(attributes, shape))
        return permuted(y, last_perm(y.rank))

    return inferred


def transposed(build: Callable[..., Value], shape: str = "") -> Callable[..., Value]:
    """The decomposition of such an op: ``build`` between transposes."""

    def built(a: Value, b: Value, *others: Any, **attributes: Any) -> Value:
        planar = [transpose(x, perm=first_perm(x.type.rank)) for x in (a, b)]
        y = build(*planar, *others, **_with_first(attributes, shape))
        return transpose(y, perm=last_perm(y.type.rank))

    return built


def _with_first(attributes: dict[str, Any], shape: str) -> dict[str, Any]:
    if not shape:
        return attributes
    given: Shape = tuple(attributes[shape])
    return {**attributes, shape: tuple(given[axis] for axis in first_perm(len(given)))}
