"""Optimizers: ``df.optim.AdamW``, ``df.optim.SGD``."""

from __future__ import annotations

from .train.optim import SGD as SGD
from .train.optim import AdamW as AdamW
from .train.optim import Optimizer as Optimizer
