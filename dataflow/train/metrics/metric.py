"""What a metric is: a mean that each batch adds to, or what only a complete evaluation gives."""

from __future__ import annotations

from typing import Any, Literal, Protocol, runtime_checkable

from ...ir.value import Value
from ..losses.loss import Target


@runtime_checkable
class Metric(Protocol):
    """A mean over elements of one value and its labels; reported during training too.

    Where it has a method ``elements`` of the same arguments, that gives what ``sums`` are of, samples first: the figure
    of each element times its weight, and these weights, of one shape. Evaluations take the standard error from it.
    """

    @property
    def fraction(self) -> bool:
        """True for a share of right answers, False for a mean of any figure."""

    @property
    def name(self) -> str:
        """Its key in the history."""

    def sums(self, target: Target, output: Value, labels: Value) -> tuple[Value, Value]:
        """The sum of the figure and the count, of rank 0, float32 or wider."""


@runtime_checkable
class Gathered(Protocol):
    """A metric that is no mean; computed when data is evaluated, not during training.

    Each evaluation begins with a copy of the object as it was given, calls ``update`` once per batch and ``result`` at
    the end. An attribute ``mode``, ``"min"`` or ``"max"``, says whether less or more is better, to what stops early or
    lowers the rate by the figure. ``update`` gets two arrays, the output and its labels; or, where the object has a
    method ``values(target, output, labels)`` that returns Values of the graph, those.
    """

    @property
    def name(self) -> str:
        """Its key among the figures."""

    def update(self, *arrays: Any) -> None:
        """Counts a batch in."""

    def result(self) -> Any:
        """The figure over all batches: a number or an array."""


def mode_of(metric: Any) -> Literal["min", "max"] | None:
    """Whether less or more of a metric is better: as its ``mode`` says, more of a share of right answers; else None."""
    mode: Any = getattr(metric, "mode", None)
    if mode in ("min", "max"):
        return mode  # type: ignore[no-any-return]
    return "max" if getattr(metric, "fraction", None) is True else None


def values_of(metric: Gathered, target: Target, output: Value, labels: Value) -> tuple[Value, ...]:
    """What a metric wants of each batch."""
    chosen = getattr(metric, "values", None)
    return (output, labels) if chosen is None else tuple(chosen(target, output, labels))
