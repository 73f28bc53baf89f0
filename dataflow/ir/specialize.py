"""Models that can't be said for all sizes, or before some values are known: made anew once they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from ..errors import InputError
from .dims import Dim
from .graph import Graph
from .types import Array, DType, TensorType


@dataclass(frozen=True, slots=True)
class Form:
    """What an input or output of a model is: a sequence of tensors, what may be absent, or a tensor of unknown rank.

    Attributes:
        dtype: of the tensors.
        sequence: it is a list of them.
        optional: it may be None.
    """

    dtype: DType
    sequence: bool
    optional: bool

    def __str__(self) -> str:
        text = f"sequence of {self.dtype} tensors" if self.sequence else f"{self.dtype} tensor"
        return f"optional {text}" if self.optional else text

    def placeholder(self, name: str) -> TensorType:
        """What stands for it in a graph that is made anew for each length."""
        return TensorType(self.dtype, (Dim(f"{name}.length"),))


def element_name(name: str, index: int) -> str:
    """The name of an element of a sequence, in a graph that is made for its length."""
    return f"{name}[{index}]"


@dataclass(frozen=True, slots=True, eq=False)
class Wanted:
    """A value that must be known before a model is a graph.

    Attributes:
        graph: computes it from the model's inputs, for the same sizes.
        name: of the value, the output of ``graph``.
        why: what asks for it.
        repeats: an iteration of a loop does, and each may ask for more.
    """

    graph: Graph
    name: str
    why: str
    repeats: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    """A model of which some outputs are sequences, or absent, for some inputs.

    Attributes:
        graph: gives the elements, under the names of ``element_name``; None where there is nothing to compute.
        lengths: of these outputs; None where one is absent.
    """

    graph: Graph | None
    lengths: Mapping[str, int | None]


Given: TypeAlias = "TensorType | tuple[TensorType, ...] | None"
"""The type of an input: of a tensor, of the elements of a sequence, or of what is absent."""

Specialize: TypeAlias = Callable[[Mapping[str, Given], Mapping[str, Array]], "Graph | Wanted | Listed"]
"""``specialize(types, values)``: the model for inputs of these types; the elements of a sequence are inputs of the
graph, with the names of ``element_name``. ``values`` are those that it wanted before. Every size is fixed; or sizes
have the names that the model's inputs have, and the graph is one of any sizes for these values: then it wants to know
which data decide what nodes there are, also where they choose between results of unlike sizes, but no sizes. Stored
tensors have the names that they have in the graph for all inputs, and get their newest data by it; those that were
computed for these inputs alone have others. Raises ModelError where there is no such model."""


Argument: TypeAlias = "Array | tuple[Array, ...] | None"
"""What is given for an input: a tensor, the elements of a sequence, or nothing."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Subgraph:
    """Some nodes of a model as a graph of their own, which an ``Interpreter`` runs.

    Attributes:
        graph: reads arrays of the run, and gives some.
        repeats: one run of the model may run it many times, for other sizes each time.
    """

    graph: Graph
    repeats: bool


class SizesRefused(InputError):
    """The nodes of a subgraph can't be bound to the sizes of its arguments."""


Compute: TypeAlias = Callable[[Subgraph, Mapping[str, Array]], Mapping[str, Array]]
"""``compute(subgraph, arguments)``: its outputs by name, with the newest weights. Raises SizesRefused."""


class Interpreter(Protocol):
    """Runs a model whose data decide, iteration by iteration, which nodes there are: loops and branches on the host."""

    def run(
        self, inputs: Mapping[str, Argument], outputs: Sequence[str] | None, compute: Compute
    ) -> dict[str, Any] | None:
        """The outputs by name: arrays, lists of them, or None.

        Args:
            inputs: by name.
            outputs: names of results, or of values of the model's main graph; None: all outputs.
            compute: runs all nodes but those of control flow and of sequences.

        Returns:
            None where a name is that of no such value.

        Raises:
            InputError: the nodes can't be run with what they are given.
        """
