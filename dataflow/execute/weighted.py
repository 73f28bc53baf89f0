"""What a session runs: a model whose weights may change, or a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..errors import InputError
from ..host import checks
from ..ir.builder import built
from ..ir.graph import Graph
from ..ir.specialize import Given, Interpreter, Listed, Wanted
from ..ir.types import Array


class Weighted(Protocol):
    """What a session runs: see ``Model``."""

    @property
    def graph(self) -> Graph:
        """Immutable."""

    @property
    def interpreter(self) -> Interpreter | None:
        """Runs it where data decide in loops which nodes there are; see ``ir.specialize``."""

    def graph_with_data(self) -> Graph:
        """The graph with today's data in its initializers."""

    def specialized(self, types: Mapping[str, Given], values: Mapping[str, Array]) -> Graph | Wanted | Listed | None:
        """The graph for inputs of these types, or None; see ``ir.specialize``."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """A graph whose data never change."""

    graph: Graph
    interpreter: None = None

    def graph_with_data(self) -> Graph:
        """The graph."""
        return self.graph

    def specialized(self, types: Mapping[str, Given], values: Mapping[str, Array]) -> Graph | Wanted | Listed | None:
        """None: it has no other form."""
        return None


def weighted(model: Any) -> Weighted:
    """The model, or a graph as one; raises InputError where it is something else, ModelError where it has states."""
    if isinstance(model, Graph):
        return Fixed(built("the graph", model))
    members = ("graph", "graph_with_data", "specialized", "interpreter")
    if not all(hasattr(model, name) for name in members):
        raise InputError(f"model is {checks.shown(model)}; expected a Model or a Graph")
    found: Weighted = model
    return found
