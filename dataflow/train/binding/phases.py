"""Phases of a training, as of a generator and its critic: by what is frozen, and how the others are updated."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from ..optimizers.updates import Updates

_MOST = 16  # of which programs are kept, where steps were made in them


@dataclass(frozen=True, slots=True)
class Phase:
    """One of them, by number."""

    number: int


class Phases:
    """Numbers them, so that programs of one stay while another is on.

    Attributes:
        kind: part of the kind of programs that depend on it; empty before anything was frozen.
    """

    def __init__(self) -> None:
        self.kind: tuple[Phase, ...] = ()
        self._known: dict[Hashable, int] = {}

    def begin(self, frozen: frozenset[str], updates: Updates) -> None:
        """From now on it is the phase in which these parameters are frozen."""
        kinds = tuple((id(kind.rule), kind.norm, kind.clip_value, kind.start) for kind in updates.kinds)
        key = frozen, kinds, updates.reads_squares, tuple(updates.kind_of.items())
        self.kind = (Phase(self._known.setdefault(key, len(self._known) + 1)),)

    def forget(self) -> None:
        """Programs are forgotten too."""
        self._known.clear()

    @property
    def are_many(self) -> bool:
        """Whether memory of programs would pile up."""
        return len(self._known) >= _MOST
