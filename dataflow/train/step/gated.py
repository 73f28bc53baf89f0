"""Steps of one run: forward, backward and an update that changes nothing where it must not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import InputError
from ...execute.arguments import KeptResults
from ...execute.program import Program
from ...host.limits import limited
from ...host.quick_init import quick_init
from ...ir.plan import Segment
from ...ir.types import Array
from ..binding.making import Making
from ..binding.ready import Ready, call
from ..joint import GATE, HYPER, SQUARES, WEIGHT
from .tensors import StepTensors


@quick_init
@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A program whose first ranges ran, and whose values lie in scratch memory until the next has read them.

    Or one that is to run.
    """

    program: Ready
    arguments: Mapping[str, Array]
    results: Mapping[str, Array]
    first: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Repeated:
    """The program of the last step, which the next one runs too if its batch has the same form.

    Attributes:
        program: read nothing but the batch and ``more``.
        names, shapes: of the batch's entries, in order.
        more: what the program reads beside them, to be written before it does.
        results: the arrays that it writes; they are read before the next step.
        frozen, gated: as for ``Making.step``.
    """

    program: Ready
    names: list[str]
    shapes: list[tuple[int, ...]]
    more: Mapping[str, Array]
    results: Mapping[str, Array]
    frozen: frozenset[int]
    gated: bool

    def fits(self, batch: Mapping[str, Array], frozen: frozenset[int], gated: bool) -> bool:
        """Whether a step of this batch runs the program."""
        same = gated is self.gated and frozen == self.frozen and [*batch] == self.names
        return same and [array.shape for array in batch.values()] == self.shapes


class GatedSteps(StepTensors):
    """The steps of a training on a device that is waited for once per step.

    Args:
        making: makes its programs.

    Attributes:
        several: other processes have copies of the parameters.
    """

    def __init__(self, making: Making) -> None:
        super().__init__(making)
        self.several = False
        self._kept: Kept | None = None  # whose backward program is still to run
        self._step: Kept | None = None  # a step's program whose optimizer is still to run
        self._prepared: Kept | None = None  # or all of it
        self._repeated: _Repeated | None = None

    def prepare_step(self, batch: Mapping[str, Array], *, frozen: frozenset[int] = frozenset(), draw: int = 0) -> bool:
        """Prepares the only micro-batch of a logical batch and its update for ``run_step``.

        False where that isn't possible, as where an optimizer has more than ``gate`` holds: ``begin_step`` is.

        Args:
            batch: as for ``begin_step``.
            frozen: likewise.
            draw: likewise.

        Raises:
            InputError: a forward program waits for its backward program.
        """
        gates = self._making.gates
        if not gates.possible:
            return False
        with limited(self.engine.devices.account, "the step"):
            before, step = self._repeated, self._step_of(batch, draw, frozen, gated=True)
            plan = step.program.plan
            if GATE not in plan.outputs:
                return False
            known = before is not None and self._repeated is before
            segments = () if known else [item for item in plan.items if isinstance(item, Segment)]
            if len(segments) > 1 or any(segment.device not in plan.asynchronous for segment in segments):
                # What the host computes can take long, and Ctrl-C ends it; faults are noted by segment.
                gates.possible = False
                return False
            if isinstance(step.program, Program):  # while what is still to be known of the update is found out
                step.program.begin({name: array for name, array in step.arguments.items() if name in batch})
            self._prepared = step
        return True

    def _step_of(self, batch: Mapping[str, Array], draw: int, frozen: frozenset[int], *, gated: bool) -> Kept:
        """The program of a step with arguments, those of the update still to be written, and results."""
        self._step = None
        self._begin()
        found, recent = self._repeated, self.engine.recent
        if found is None or found.program is not recent or not found.fits(batch, frozen, gated):
            program, given = self._making.step(batch, draw, frozen, gated=gated)
            shapes = [array.shape for array in batch.values()]
            more = {name: array for name, array in given.items() if name not in batch}
            results = KeptResults(program.results.arrays())
            found = _Repeated(program, [*batch], shapes, more, results, frozen, gated)
            plain = more.keys() <= {HYPER, WEIGHT} and not self._making.data.decides
            self._repeated = found if plain else None
        return Kept(found.program, found.program.checked({**batch, **found.more}), found.results, True)

    def run_step(self, hyper: Array) -> Mapping[str, Array] | None:
        """The results of what ``prepare_step`` prepared; nothing ends it before it is complete.

        None where it changed nothing: the loss or a gradient isn't finite, or no sample counted.

        Args:
            hyper: (K,), of the updates' ``dtype``.
        """
        step, self._prepared = self._prepared, None
        assert step is not None
        call(step.program, {**step.arguments, HYPER: hyper}, step.results, interruptible=False)
        if not math.isfinite(step.results[GATE]):
            return None
        self._accumulates, self._last_step, self._squares = False, step.program, float(step.results[SQUARES])
        return step.results

    def assign(self, name: str, array: Array) -> None:
        """Replaces a parameter or statistic that training changes by what users set; see ``Trained.assign``.

        Raises:
            InputError: likewise; other processes have copies of it; or gradients wait that are of what it was.
        """
        if self.several:
            raise InputError(
                f"parameter {name!r}: several processes train it together, each with its own copy, and what one sets "
                "the others would lack; close their Trainers, set it in all of them alike, and make new ones"
            )
        if self._kept is not None or self._step is not None or self._prepared is not None:
            raise InputError(
                f"parameter {name!r}: a forward() waits for its backward(), which reads what it was; call backward(), "
                "or discard() to forget the logical batch"
            )
        self._trained.assign(name, array)

    def discard(self) -> None:
        """Forgets the forward program that waits for its backward program, or a step that waits for its update."""
        self._kept = self._step = self._prepared = None

    def _begin(self) -> None:
        """Before a program is made or found, whose run writes over what others left in memory."""
        if self._kept is not None or self._step is not None:
            raise InputError(
                "a forward() waits for its backward(), and the values that this one reads lie in the memory that every "
                "other program uses; call backward(), or discard() to forget the logical batch"
            )
        self._last_step = None
