"""The graphs of one training, for bound sizes: to be trained, to evaluate, to predict, and the optimizer's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..ir.graph import Graph
from ..ir.types import Array, TensorType, dtype
from ..passes.random_keys import insert_dropout, with_key
from .joint import (
    PENDING,
    VALUES,
    Joint,
    forward_graph,
    joint_graph,
    reading,
    with_batch_statistics,
    with_values,
)
from .objective import Objective
from .optimizers.step_graph import step_graph
from .optimizers.update_graph import update_graph
from .optimizers.updates import Updates


@dataclass(frozen=True, slots=True)
class Draws:
    """Random numbers of training.

    Attributes:
        seed: with the number of the micro-batch it is the key of all that is drawn.
        drops: dropout nodes drop.
    """

    seed: int
    drops: bool


class Graphs:
    """Makes the graphs of one training.

    Args:
        graph: the model's, with its data; inference mode.
        objective: loss and metrics.
        updates: what an optimizer step does.
        updates_statistics: batch norms use the batch's statistics in training, and update the running ones.
        draws: random numbers of training; None: nothing draws any.
        sites: values behind which there are more of them in training, each with the share that is dropped.
        scaled: the loss is scaled for its gradients, see ``joint_graph``.

    Attributes:
        updates: what an optimizer step does.
        statistics: names of the running statistics that training updates.
    """

    def __init__(
        self,
        graph: Graph,
        objective: Objective,
        updates: Updates,
        updates_statistics: bool,
        draws: Draws | None,
        sites: Mapping[str, float],
        scaled: bool,
    ) -> None:
        self._graph, self._objective, self.updates = graph, objective, updates
        self._updates_statistics, self._draws, self._sites = updates_statistics, draws, sites
        self._scaled = scaled
        self.statistics = tuple(s.name.removeprefix(PENDING) for s in self.in_training(graph, True).states)

    def training(self, bound: Graph, first: bool, values: Sequence[str] = ()) -> Graph:
        """What is differentiated.

        Args:
            bound: the model's.
            first: for the first micro-batch of a logical batch; otherwise for later ones.
            values: names of outputs and inner values to return too, see ``with_values``.
        """
        return self.in_training(with_values(bound, values), first)

    def joint(
        self,
        training: Graph,
        batch: Mapping[str, TensorType],
        wanted: Sequence[str],
        first: bool,
        passing: bool,
        always: Mapping[str, TensorType],
    ) -> Joint:
        """Forward and backward of what ``training`` made.

        Args:
            training: perhaps with fused ops.
            batch: types of the entries of a batch.
            wanted: names of the parameters to train.
            first: as for ``training``.
            passing: the gradients lie in scratch memory.
            always: see ``joint_graph``.
        """
        objective = self._objective.for_batch(batch)
        entries = objective.entries(_outputs(training))
        return joint_graph(
            training,
            entries,
            objective.build,
            wanted,
            add=not first,
            passing=passing,
            scaled=self._scaled,
            always=always,
        )

    def step(self, joint: Graph, trained: Sequence[str], frozen: frozenset[int], as_ready: bool, gated: bool) -> Graph:
        """The joint graph of a first micro-batch with the update behind it, see ``step_graph``."""
        parameters, updates, statistics = self._updated(trained)
        return step_graph(joint, parameters, updates, frozen, statistics, as_ready=as_ready, gated=gated)

    def evaluation(self, bound: Graph, batch: Mapping[str, TensorType], averages: Mapping[str, str]) -> Graph:
        """The terms of a batch in inference mode, of the model's ``bound`` graph; ``averages`` as for ``reading``."""
        objective = self._objective.for_batch(batch)
        return forward_graph(reading(bound, averages), objective.entries(_outputs(bound)), objective.build_evaluation)

    def update(self, trained: Sequence[str], frozen: frozenset[int] = frozenset()) -> Graph:
        """One update of these parameters but those of ``frozen`` kinds, and of the statistics."""
        parameters, updates, statistics = self._updated(trained)
        return update_graph(parameters, updates, frozen, statistics)

    def _updated(self, trained: Sequence[str]) -> tuple[dict[str, TensorType], Updates, dict[str, TensorType]]:
        """Parameters, what is done to them, and statistics, with their types."""
        types = {v.name: v.type for v in self._graph.initializers}
        statistics = {name: types[name] for name in types if name in set(self.statistics)}
        return {name: types[name] for name in trained}, self.updates, statistics

    def in_training(self, graph: Graph, first: bool) -> Graph:
        """The model's graph, bound or not, as it is trained; ``first`` as for ``training``."""
        graph = with_batch_statistics(graph, first=first) if self._updates_statistics else graph
        graph = insert_dropout(graph, self._sites)[0] if self._sites else graph
        if self._draws is None:
            return graph
        return with_key(graph, drops=self._draws.drops)


def types_of(batch: Mapping[str, Array]) -> dict[str, TensorType]:
    """The types of the entries of a batch."""
    return {name: TensorType(dtype(array), array.shape) for name, array in batch.items()}


def _outputs(graph: Graph) -> dict[str, TensorType]:
    return {name: value.type for name, value in graph.outputs.items() if not name.startswith(VALUES)}
