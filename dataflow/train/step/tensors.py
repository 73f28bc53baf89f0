"""What the programs of a training leave in memory: gradients, and the tensors that training changes, by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from ...errors import InputError
from ...ir.types import Array
from ..binding.making import Making
from ..binding.ready import Ready
from ..joint import ACCUMULATOR
from ..parallel.gradient_sums import GradientSums
from ..parallel.shards import Shards


class StepTensors:
    """The tensors of a training.

    Args:
        making: makes its programs.

    Attributes:
        engine: has the devices and keeps the programs.
    """

    def __init__(self, making: Making) -> None:
        self._making, self.engine, self._trained = making, making.engine, making.trained
        self._accumulates = True  # the last micro-batch has its gradients in accumulators
        self._last_step: Ready | None = None  # otherwise the program whose arena has them, if they are still there
        self._cotangent = 1.0  # of the loss, by which what ``passed`` gives is still to be multiplied
        self._squares: float | None = 0.0  # of the accumulators: the sum after the last micro-batch; None: to be made

    @property
    def scale(self) -> float:
        """What accumulators and their squares have been multiplied by; a power of two."""
        return self._making.scale

    @scale.setter
    def scale(self, scale: float) -> None:
        self._making.scale = scale

    @property
    def sums(self) -> GradientSums | None:
        """What sums gradients over processes, where they agreed on it."""
        return self._making.sums

    @sums.setter
    def sums(self, sums: GradientSums | None) -> None:
        self._making.sums = sums

    @property
    def shards(self) -> Shards | None:
        """Whose parameters this process updates; None: all."""
        return self._making.shards

    @shards.setter
    def shards(self, shards: Shards | None) -> None:
        self._making.shards = shards

    @property
    def trained(self) -> tuple[str, ...]:
        """Names of the parameters that the loss depends on, but for frozen ones; known after the first micro-batch."""
        return self._making.names

    @property
    def own(self) -> tuple[str, ...]:
        """Those whose accumulated gradients this process has: all, or where owners alone have them its own."""
        return self.shards.own(self.trained) if self.passes_gradients and self.shards else self.trained

    @property
    def passes_gradients(self) -> bool:
        """Gradients of a micro-batch lie in scratch memory, and their owners, who may be other processes, add them."""
        return self.shards is not None and self.shards.gradients

    # ---- gradients ------------------------------------------------------------------------------------

    def gradients(self) -> dict[str, Array]:
        """The accumulated gradients (sums over the logical batch so far), by parameter; those of ``own``."""
        return {name: self.gradient(name) for name in self.own}

    def passed(self, name: str) -> Array:
        """A copy of a parameter's gradient of the last micro-batch of this process; see ``passes_gradients``."""
        assert self._last_step is not None
        found = self._last_step.kept(self._trained.key_of(ACCUMULATOR + name))
        return found if self._cotangent == 1.0 else found * found.dtype.type(self._cotangent)

    def gradient(self, name: str) -> Array:
        """A copy of the accumulated gradient of a trained parameter.

        Raises:
            InputError: another program ran in the memory where it was, or another process has it.
        """
        if name not in self.own and self.shards is not None:
            raise InputError(f"the gradient of {name!r} is in the process of rank {self.shards.owner[name]} alone")
        found = self._gradient(name)
        return found if self.scale == 1.0 else found * found.dtype.type(1.0 / self.scale)

    def _gradient(self, name: str) -> Array:
        """Likewise, ``scale`` too large."""
        if self._accumulates:
            return self._trained.read(ACCUMULATOR + name)
        if self._last_step is None:
            raise InputError(
                "the gradients of the last step are gone: they lie in memory that evaluate(), predict() and the like "
                "use too. Read them before, or set trainer.keeps_gradients = True before the step; with "
                'update="as_ready" there are none'
            )
        return self._last_step.kept(self._trained.key_of(ACCUMULATOR + name))

    def set_gradient(self, name: str, array: Array) -> None:
        """Replaces an accumulated gradient."""
        scaled = array if self.scale == 1.0 else array * array.dtype.type(self.scale)
        self._trained.write(ACCUMULATOR + name, scaled)
        self._squares = None

    def squares(self) -> float:
        """The sum of the squares of all accumulated gradients, which are ``scale`` too large."""
        if self._squares is None:
            found = float(sum(np.square(g.astype(np.float64)).sum() for g in self.gradients().values()))
            self._squares = found * self.scale**2
        return self._squares

    def set_squares(self, squares: float) -> None:
        """Says what the sum of the squares of the accumulators has become."""
        self._squares = squares

    def view(self, name: str) -> Array:
        """A tensor that training changes: where it lies on the host itself, else a copy."""
        return self._trained.view(name)

    # ---- state ----------------------------------------------------------------------------------------

    @property
    def averaged(self) -> bool:
        """Evaluation, prediction and ``newest`` use the average of parameters where the optimizer keeps one."""
        return self._trained.averaged

    @averaged.setter
    def averaged(self, averaged: bool) -> None:
        self._trained.averaged = averaged

    def newest(self, name: str) -> Array | None:
        """The newest data of a parameter or statistic that training changes; None for others."""
        return self._trained.newest(name)

    def tensor(self, name: str) -> Array:
        """A trained parameter, or a tensor of the optimizer; not to be written."""
        return self._trained.read(name)

    def set_tensor(self, name: str, array: Array) -> None:
        """Replaces it."""
        self._trained.write(name, array)

    def slots(self) -> dict[str, str]:
        """The parameter of each of the optimizer's tensors that are there, by its name."""
        return self._trained.slots()

    def state(self, without: Collection[str] = (), *, copies: bool = True) -> dict[str, Array]:
        """What training changes: ``parameters/<name>`` and ``optimizer/<slot>/<name>``.

        Args:
            without: names of slots that are left out; those of other processes' parameters are as at first.
            copies: otherwise arrays on the host are where they lie, and change with the next step.
        """
        return self._trained.state(without, copies=copies)

    def load_state(self, state: Mapping[str, Array]) -> None:
        """Replaces what training changes, now or when the programs are made; what ``state`` lacks is as at first."""
        owner = {} if self.shards is None else self.shards.owner
        slots = ((slot, name) for name, held in self._making.updates.slots.items() for slot in held)
        others = {slot for slot, name in slots if self.shards is not None and owner[name] != self.shards.rank}
        self._trained.load_state({key: array for key, array in state.items() if key not in others})
