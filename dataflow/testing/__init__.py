"""The conformance kit: samples of every op, and checks that authors of devices and ops run on their own.

Names are loaded when first used: all samples take a quarter of a second, which ``dataflow compare`` doesn't need.
"""

from __future__ import annotations

import importlib
from typing import Any

from ..host.keywords import answer as _answer

_NAMES = {
    "check_device": "conformance",
    "Outcome": "outcome",
    "check_plugin": "plugins",
    "Operand": "sample",
    "Sample": "sample",
    "SAMPLES": "samples",
}


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        module = importlib.import_module(f"dataflow.testing.{_NAMES[name]}")
        _answer(module.__name__, name)
        return getattr(module, name)
    raise AttributeError(f"module 'dataflow.testing' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
