"""Optimizer steps that evaluate a logical batch several times: parameters and state as vectors on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...errors import InputError
from ...ir.types import Array
from .averages import Averaged
from .lbfgs import LBFGS, State
from .updates import Updates

if TYPE_CHECKING:
    from ..programs import Programs

_VECTORS = ("direction", "gradient")
_ROWS = ("changes", "steps")


def search_of(updates: Updates, others: dict[str, bool]) -> LBFGS | None:
    """The optimizer, where it evaluates the loss several times per step; else None.

    Args:
        updates: what an optimizer step does.
        others: what else was asked for that such an optimizer doesn't have, by name.

    Raises:
        InputError: something of it was asked for.
    """
    rule = updates.rule
    if not isinstance(rule, LBFGS):
        if any(isinstance(kind.rule, LBFGS) for kind in updates.kinds):
            raise InputError("LBFGS steps along one direction of all parameters, so a group can't have it alone")
        return None
    kinds = updates.kinds
    found = {
        "clip_norm": updates.clips,
        "clip_value": any(kind.clip_value is not None for kind in kinds),
        "average": any(isinstance(kind.rule, Averaged) for kind in kinds),
        "parameters of 16 bits": any(tensor.slot.name == "master" for tensor in updates.all_slots().values()),
        **others,
    }
    asked = [name for name, there in found.items() if there]
    if asked:
        raise InputError(f"LBFGS doesn't fit {' and '.join(asked)}; leave it out, or use another optimizer")
    return rule


class Vectors:
    """Parameters, gradients and the state of a search as flat vectors of float64.

    Args:
        programs: have them.
    """

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._names: Sequence[str] = programs.trained

    def parameters(self) -> Array:
        """(P,)."""
        return self._joined(self._programs.tensor)

    def assign(self, x: Array) -> None:
        """Replaces the parameters."""
        for name, block in self._blocks(x):
            old = self._programs.tensor(name)
            self._programs.set_tensor(name, block.reshape(old.shape).astype(old.dtype))

    def gradient(self, weight: float) -> Array:
        """The averaged gradient, (P,)."""
        return self._joined(self._programs.gradient) / weight

    def state(self) -> State:
        """What the last step left."""
        count, length, scale, rows = (float(n) for n in self._slot("numbers", self._names[0]))
        if not count:
            return State()
        direction, gradient = (self._joined(functools.partial(self._slot, slot)) for slot in _VECTORS)
        changes, steps = (
            tuple(self._joined(functools.partial(self._row, slot, row)) for row in range(int(rows))) for slot in _ROWS
        )
        return State(int(count), length, scale, direction, gradient, changes, steps)

    def set_state(self, state: State, rows: int) -> None:
        """Keeps what a step left, in slots of ``rows`` pairs."""
        numbers = np.array([state.count, state.length, state.scale, len(state.steps)])
        for slot in _VECTORS:
            for name, block in self._blocks(getattr(state, slot)):
                self._set_slot(slot, name, block.reshape(self._programs.tensor(name).shape))
        for slot in _ROWS:
            kept = np.zeros((rows, len(state.direction)))
            for row, vector in enumerate(getattr(state, slot)):
                kept[row] = vector
            for name, block in self._blocks(kept):
                self._set_slot(slot, name, block.reshape(rows, *self._programs.tensor(name).shape))
        for name in self._names:
            self._set_slot("numbers", name, numbers)

    def _joined(self, read: Callable[[str], Array]) -> Array:
        return np.concatenate([read(name).reshape(-1).astype(np.float64) for name in self._names])

    def _blocks(self, x: Array) -> list[tuple[str, Array]]:
        """The elements of each parameter along the last axis."""
        ends = np.cumsum([self._programs.tensor(name).size for name in self._names])
        return list(zip(self._names, np.split(x, ends[:-1], axis=-1), strict=True))

    def _slot(self, slot: str, name: str) -> Array:
        return self._programs.tensor(f"optimizer/{slot}/{name}")

    def _row(self, slot: str, row: int, name: str) -> Array:
        found: Array = self._slot(slot, name)[row]
        return found

    def _set_slot(self, slot: str, name: str, array: Array) -> None:
        self._programs.set_tensor(f"optimizer/{slot}/{name}", array)
