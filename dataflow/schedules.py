"""Schedules of the learning rate: ``df.schedules.Constant``, ``Cosine``, ``Linear`` and ``Step``."""

from __future__ import annotations

from .train.schedules import Constant as Constant
from .train.schedules import Cosine as Cosine
from .train.schedules import Linear as Linear
from .train.schedules import Step as Step
