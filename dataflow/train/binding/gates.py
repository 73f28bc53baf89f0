"""Which updates may run without a look of the host's at loss and gradients before."""

from __future__ import annotations

from ...engine import Engine
from ..graphs import Graphs
from ..optimizers.step_graph import is_gated


class Gates:
    """Whether a step may be one run, which changes nothing where it must not.

    Args:
        graphs: of the training.
        engine: its first device works asynchronously where it pays: there waiting in between takes longer than to
            compute what is of no use.
        as_ready: parameters are updated before all gradients are there.

    Attributes:
        possible: whether it may for some optimizers.
    """

    def __init__(self, graphs: Graphs, engine: Engine, as_ready: bool) -> None:
        first = engine.registry.devices[engine.placement.devices[0]]
        self._graphs, self.possible = graphs, first.asynchronous and not as_ready
        self._known: dict[tuple[tuple[str, ...], frozenset[int]], bool] = {}

    def forget(self) -> None:
        """Looks again: the updates are others now."""
        self._known.clear()

    def hold(self, names: tuple[str, ...], frozen: frozenset[int]) -> bool:
        """Whether it may for these parameters, but for those of ``frozen`` kinds."""
        if not self.possible:
            return False
        found = self._known.get((names, frozen))
        if found is None:
            found = self._known[names, frozen] = is_gated(self._graphs.update(names, frozen))
        return found
