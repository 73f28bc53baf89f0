"""The model's graph for inputs of some types alone, where it can't be bound to their sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ...ir.graph import Graph
from ...ir.specialize import Listed, Wanted
from ...ir.types import Array, TensorType
from ...model import Model
from ..objective import Objective
from ..tied_weights import Tie, tied


def specialized(
    model: Model,
    objective: Objective,
    ties: Mapping[str, Tie],
    types: Mapping[str, TensorType],
    values: Mapping[str, Array],
) -> Graph | Wanted | None:
    """The model's graph for inputs of these types, with its ties, or what must be known first; see ``Specialize``."""
    made = model.specialized(types, values)
    assert not isinstance(made, Listed)  # a model of tensors
    if isinstance(made, Wanted):
        return dataclasses.replace(made, graph=tied(_with_stored(made.graph, model.graph), ties))
    return None if made is None else tied(objective.on(made), ties)


def _with_stored(graph: Graph, other: Graph) -> Graph:
    """The graph with the stored tensors of another, which it may not read."""
    own = {value.name for value in graph.initializers}
    more = {value: data for value, data in other.initializers.items() if value.name not in own}
    return dataclasses.replace(graph, initializers={**graph.initializers, **more})
