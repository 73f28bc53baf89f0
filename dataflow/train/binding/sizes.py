"""What a graph of training is made for: named sizes, and the types of the entries of a batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from ...ir.graph import Graph
from ...ir.types import Array, TensorType
from ...ir.value import Value
from ...lower.templates import Sized
from ...passes.bind_shapes import dims_of
from ...passes.dead_code import eliminate_dead_code


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

    def of(self, names: Iterable[str]) -> dict[str, TensorType]:
        """The types of some entries."""
        return {name: self.types[name] for name in names}


Make: TypeAlias = Callable[[Sizes], Graph]
"""``make(sizes)``: a graph of training, every dim an int."""


def form_of(batch: Mapping[str, Array], decided: tuple[Hashable, ...]) -> tuple[Hashable, ...]:
    """What tells a program for a batch from others of its kind; ``decided`` by the data."""
    return (tuple((name, array.shape) for name, array in batch.items()), *decided)


def without(frozen: frozenset[int]) -> tuple[str, ...]:
    """What tells programs in which some kinds of parameters stay as they are."""
    return tuple(f"without {i}" for i in sorted(frozen))


def averaged(averages: Mapping[str, str]) -> tuple[str, ...]:
    """What tells programs that read averages from those that don't."""
    return ("averaged",) if averages else ()


def complete(graph: Graph) -> Graph:
    """The graph without dead nodes, for which all sizes are known."""
    graph = eliminate_dead_code(graph)
    assert not dims_of(graph)
    return graph


def sized(kind: Hashable, inputs: Iterable[Value], sizes: Sizes, make: Make) -> Sized | None:
    """What makes a graph for some sizes and for others; None where no size has a name.

    Args:
        kind: of the graph.
        inputs: the model's, of named sizes.
        sizes: with all that have names.
        make: makes the graph.
    """
    types, named = sizes.types, sizes.named
    declared = {value.name: value.type for value in inputs}
    # Each axis of what the model doesn't read has a name of its own.
    axes = {name: [f"{name}/{axis}" for axis in range(t.rank)] for name, t in types.items() if name not in declared}
    others = {axis: size for name, own in axes.items() for axis, size in zip(own, types[name].sizes, strict=True)}
    if not named or not others.keys().isdisjoint(named):
        return None

    def made(at: Mapping[str, Any]) -> Graph:
        entries = {name: declared[name].bind(at) for name in types if name in declared}
        entries |= {name: TensorType(types[name].dtype, tuple([at[a] for a in own])) for name, own in axes.items()}
        return make(replace(sizes, named={name: at[name] for name in named}, types={n: entries[n] for n in types}))

    entries = tuple((name, t.dtype.name, t.rank) for name, t in types.items())
    return Sized((kind, entries), {**named, **others}, made)
