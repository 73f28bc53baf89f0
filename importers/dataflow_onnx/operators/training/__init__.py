"""Converters of the domain ai.onnx.preview.training."""

from __future__ import annotations

from ...converters import Collector
from . import gradient, optimizer

COLLECTORS: tuple[Collector, ...] = (gradient.operator, optimizer.operator)
