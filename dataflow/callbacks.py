"""Callbacks of ``fit``: ``df.callbacks.TensorBoard``, ``CSV`` and ``JSONLines``; what they are called with."""

from __future__ import annotations

from .host.keywords import answer as _answer
from .train.callbacks import EarlyStop as EarlyStop
from .train.callbacks import Event as Event
from .train.watch.loggers import CSV as CSV
from .train.watch.loggers import JSONLines as JSONLines
from .train.watch.loggers import TensorBoard as TensorBoard

_answer(__name__)
