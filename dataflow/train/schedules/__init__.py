"""Schedules: the factor on the learning rate by optimizer step.

All but OneCycle have ``warmup``: the factor rises along a line over so many steps, from 1 / warmup, and what the
schedule says begins behind them. A number below 1 is a fraction of the steps of the run. ``steps`` counts all steps,
those of the warm-up too; None ends with the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .cycles import CosineRestarts as CosineRestarts
from .cycles import OneCycle as OneCycle
from .cycles import WarmupStableDecay as WarmupStableDecay
from .decays import Constant as Constant
from .decays import Cosine as Cosine
from .decays import Exponential as Exponential
from .decays import InverseSqrt as InverseSqrt
from .decays import Linear as Linear
from .decays import MultiStep as MultiStep
from .decays import Polynomial as Polynomial
from .decays import Step as Step
from .plateau import Plateau as Plateau
from .runs import Warmup as Warmup

SCHEDULES: Mapping[str, Any] = MappingProxyType(
    {
        "constant": Constant,
        "cosine": Cosine,
        "linear": Linear,
        "polynomial": Polynomial,
        "step": Step,
        "multi_step": MultiStep,
        "exponential": Exponential,
        "cosine_restarts": CosineRestarts,
        "one_cycle": OneCycle,
        "inverse_sqrt": InverseSqrt,
        "warmup_stable_decay": WarmupStableDecay,
        "plateau": Plateau,
    }
)
"""What the command line and ``schedule=`` call them."""
