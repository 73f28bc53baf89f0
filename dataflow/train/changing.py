"""What may change in mid-training: the rate, and which parameters are frozen."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError
from ..host import checks
from .freezing import Freezing, check_some_left, counting, named
from .interrupts import InterruptsHeld
from .stepper import Stepper


class Changing(Stepper):
    """A stepper whose rate and frozen parameters may change between its steps; arguments as for Stepper."""

    @property
    def lr_factor(self) -> float:
        """By which the learning rate is multiplied, beside the schedule; it can be assigned to at any time."""
        return self._lr_factor

    @lr_factor.setter
    def lr_factor(self, factor: float) -> None:
        factor = checks.number("lr_factor", factor)
        if factor == 0.0:
            raise InputError("lr_factor is 0; expected a number above it; freeze() stops parameters")
        self._lr_factor = factor

    @property
    def frozen(self) -> tuple[str, ...]:
        """Names of the frozen parameters."""
        return tuple(self.freezing.since)

    def freeze(self, patterns: Sequence[str] | str) -> None:
        """From the next step on parameters stay as they are, with the optimizer's tensors, and cost no gradient.

        Args:
            patterns: names and patterns among the trained parameters, as for ``trainable=``.

        Raises:
            InputError: a pattern matches none of them, none would be left, or micro-batches wait for the optimizer.
        """
        names = named(self.model, patterns, self.trainable, self.ties)
        self.apply_freezing(self.freezing.frozen(names, self.steps))

    def unfreeze(self, patterns: Sequence[str] | str = "*") -> None:
        """Parameters change again, their moments and counts of steps where they stood; arguments as for ``freeze``."""
        names = named(self.model, patterns, self.trainable, self.ties)
        self.apply_freezing(self.freezing.unfrozen(names, self.steps, self._own_updates))

    def apply_freezing(self, freezing: Freezing, steps: int | None = None) -> None:
        """Freezes what ``freezing`` says, and nothing else, after so many steps; raises InputError as ``freeze``."""
        with self.model.lock:
            self._check_open()
            self.check_idle("freeze")
            if self._search is not None and freezing != self.freezing:
                raise InputError("freeze: LBFGS keeps changes of all parameters together; use another optimizer")
            if self._pending:
                raise InputError(f"freeze: {self._pending} micro-batches wait for update(), and would lose gradients")
            updates = counting(self._own_updates, freezing.missed)
            check_some_left(updates, freezing, self.trainable, self.steps if steps is None else steps)
            if freezing != self.freezing:
                with InterruptsHeld():
                    self.programs.freeze(frozenset(freezing.since), updates)
                    self.freezing, self.updates = freezing, updates
