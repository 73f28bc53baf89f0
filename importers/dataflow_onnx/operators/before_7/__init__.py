"""Converters of operators of opset 1 to 6 that aren't those of opset 7 with other attributes."""

from __future__ import annotations

from ...converters import Collector
from . import broadcast

COLLECTORS: tuple[Collector, ...] = (broadcast.operator,)
