"""dataflow runs and trains computation graphs on pluggable devices.

Names are loaded when first used, so that ``import dataflow`` costs little more than numpy.
"""

from __future__ import annotations

import importlib
from typing import Any

from .builder import GraphBuilder as GraphBuilder
from .errors import (
    Cancelled as Cancelled,
    DataflowError as DataflowError,
    DeviceError as DeviceError,
    GradientError as GradientError,
    InputError as InputError,
    ModelError as ModelError,
    OutOfMemoryError as OutOfMemoryError,
    PluginError as PluginError,
)
from .graph import Graph as Graph, Node as Node, Value as Value
from .op import Op as Op
from .types import (
    DType as DType,
    Dim as Dim,
    TensorType as TensorType,
    bfloat16 as bfloat16,
    bool_ as bool_,
    float16 as float16,
    float32 as float32,
    float64 as float64,
    int8 as int8,
    int16 as int16,
    int32 as int32,
    int64 as int64,
    uint8 as uint8,
    uint16 as uint16,
    uint32 as uint32,
    uint64 as uint64,
)

__version__ = "0.1.0"

# Submodules, and names that live in one: loaded at first use.
_MODULES = ("ops", "testing")
_NAMES = {
    "CDevice": "cdevice",
    "Device": "device",
    "Kernel": "device",
    "Session": "session",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"dataflow.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"dataflow.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'dataflow' has no attribute {name!r}")


def get_include() -> str:
    """The folder of dataflow.h and dataflow_inline.h, for compilers."""
    from pathlib import Path

    return str(Path(__file__).parent / "include")
