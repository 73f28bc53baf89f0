"""Losses: ``df.losses.CrossEntropy``, ``MSE``, ``BinaryCrossEntropy`` and ``output``."""

from __future__ import annotations

from .train.losses import MSE as MSE
from .train.losses import BinaryCrossEntropy as BinaryCrossEntropy
from .train.losses import CrossEntropy as CrossEntropy
from .train.losses import Loss as Loss
from .train.losses import Target as Target
from .train.losses import output as output
