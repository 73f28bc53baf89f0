"""What a graph of training is made for: named sizes, and the types of the entries of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from ...ir.graph import Graph
from ...ir.types import TensorType


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one batch.

    Attributes:
        named: of named dims.
        types: of the entries of the batch, whatever reads them.
        graph: of a series: the model's, in which what depends on sizes alone is an input; None: as it is.
        varying: names of values that are constant in each graph of a series, but not the same in all.
    """

    named: Mapping[str, int]
    types: Mapping[str, TensorType]
    graph: Graph | None = None
    varying: frozenset[str] = frozenset()


Make: TypeAlias = Callable[[Sizes], Graph]
"""``make(sizes)``: a graph of training, every dim an int."""
