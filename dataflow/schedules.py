"""Schedules of the learning rate: ``df.schedules.Cosine``, ``WarmupStableDecay``, ``Plateau`` and others."""

from __future__ import annotations

from .host.keywords import answer as _answer
from .train.schedules import Constant as Constant
from .train.schedules import Cosine as Cosine
from .train.schedules import CosineRestarts as CosineRestarts
from .train.schedules import Exponential as Exponential
from .train.schedules import InverseSqrt as InverseSqrt
from .train.schedules import Linear as Linear
from .train.schedules import MultiStep as MultiStep
from .train.schedules import OneCycle as OneCycle
from .train.schedules import Plateau as Plateau
from .train.schedules import Polynomial as Polynomial
from .train.schedules import Step as Step
from .train.schedules import Warmup as Warmup
from .train.schedules import WarmupStableDecay as WarmupStableDecay

_answer(__name__)
