"""Optimizers: ``df.optim.AdamW``, ``df.optim.SGD``."""

from __future__ import annotations

from .train.optimizers import SGD as SGD
from .train.optimizers import AdamW as AdamW
from .train.optimizers import Optimizer as Optimizer
