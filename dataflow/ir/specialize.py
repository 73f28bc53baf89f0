"""Models that can't be said for all sizes, or before some values are known: made anew once they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from .graph import Graph
from .types import Array, TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A value that must be known before a model is a graph.

    Attributes:
        graph: computes it from the model's inputs, for the same sizes.
        name: of the value, the output of ``graph``.
        why: what asks for it.
    """

    graph: Graph
    name: str
    why: str


Specialize: TypeAlias = Callable[[Mapping[str, TensorType], Mapping[str, Array]], "Graph | Wanted"]
"""``specialize(types, values)``: the model for inputs of these types, every size fixed. ``values`` are those that it
wanted before. Raises ModelError where there is no such model."""
