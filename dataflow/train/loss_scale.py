"""The factor on the loss that keeps gradients within float16's range, which grows and falls by what happens.

Every gradient is that factor too large until the optimizer divides by it. It is a power of two, so that nothing but
what under- or overflows depends on it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union

from ..errors import InputError
from ..host import checks
from ..host.numbers import integer

LEAST = 2.0**-10  # where gradients overflow even so, they are not finite
_MOST = 2.0**64
_log = logging.getLogger("dataflow")


@dataclass(frozen=True)
class LossScale:
    """How the factor on the loss changes, as torch.amp.GradScaler's; all numbers are powers of two.

    Attributes:
        start: the factor at first.
        growth: it is multiplied by this after ``every`` steps in a row without overflow.
        backoff: and by this where a gradient overflows; that step is skipped. 1: it isn't, as in float32 training.
        every: see ``growth``.
    """

    start: float = 4096.0
    growth: float = 2.0
    backoff: float = 0.5
    every: int = 2000

    def __post_init__(self) -> None:
        for name, lowest, highest in (("start", LEAST, _MOST), ("growth", 1.0, _MOST), ("backoff", LEAST, 1.0)):
            number = checks.number(f"LossScale: {name}", getattr(self, name))
            if not lowest <= number <= highest or math.frexp(number)[0] != 0.5:
                raise InputError(
                    f"LossScale: {name} is {number:g}; expected a power of two from {lowest:g} to {highest:g}"
                )
        integer("LossScale: every", self.every)


LossScaleChoice = Union[LossScale, float, Literal["dynamic"], None]
"""``"dynamic"``: ``LossScale()``; a number: that factor throughout; None: by the dtypes of the model."""


def loss_scale_of(given: LossScaleChoice, needed: bool) -> LossScale | None:
    """What ``loss_scale=`` stands for; None: the loss isn't scaled.

    Args:
        given: as for Trainer.
        needed: something that training keeps or computes is float16.

    Raises:
        InputError: another value.
    """
    if given is None:
        return LossScale() if needed else None
    if isinstance(given, LossScale):
        return given
    if isinstance(given, str):
        checks.text("loss_scale", given, ("dynamic",))
        return LossScale()
    number = float(checks.number("loss_scale", given))
    return None if number == 1.0 else LossScale(number, 1.0, 1.0)


class Scaling:
    """The factor of now.

    Args:
        rule: how it changes.
    """

    def __init__(self, rule: LossScale) -> None:
        self._rule = rule
        self.scale = rule.start
        self._good = 0  # steps in a row without overflow

    @property
    def can_fall(self) -> bool:
        """Whether a step whose gradients overflow is skipped, and the factor falls."""
        return self._rule.backoff < 1.0 and self.scale > LEAST

    def succeeded(self) -> None:
        """Counts a step without overflow."""
        self._good += 1
        if self._good == self._rule.every:
            self.scale, self._good = min(_MOST, self.scale * self._rule.growth), 0

    def overflowed(self) -> None:
        """Lets the factor fall."""
        before, self.scale = self.scale, max(LEAST, self.scale * self._rule.backoff)
        self._good = 0
        _log.info(
            "gradients overflowed at a loss scale of %g; the step was skipped, and the scale is %g", before, self.scale
        )

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"scale": self.scale, "good": float(self._good)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from ``state``; stays as it is where that has nothing."""
        self.scale, self._good = float(state.get("scale", self.scale)), int(state.get("good", self._good))
