"""dataflow runs and trains computation graphs on pluggable devices.

Names are loaded when first used, so that ``import dataflow`` costs little more than numpy.
"""

from __future__ import annotations

import importlib
from typing import Any

from .builder import GraphBuilder as GraphBuilder
from .errors import (
    Cancelled as Cancelled,
)
from .errors import (
    DataflowError as DataflowError,
)
from .errors import (
    DeviceError as DeviceError,
)
from .errors import (
    GradientError as GradientError,
)
from .errors import (
    InputError as InputError,
)
from .errors import (
    LimitExceeded as LimitExceeded,
)
from .errors import (
    ModelError as ModelError,
)
from .errors import (
    OutOfMemoryError as OutOfMemoryError,
)
from .errors import (
    PluginError as PluginError,
)
from .graph import Graph as Graph
from .graph import Node as Node
from .graph import Value as Value
from .op import Op as Op
from .op import Pattern as Pattern
from .types import (
    Dim as Dim,
)
from .types import (
    DType as DType,
)
from .types import (
    TensorType as TensorType,
)
from .types import (
    bfloat16 as bfloat16,
)
from .types import (
    bool_ as bool_,
)
from .types import (
    float16 as float16,
)
from .types import (
    float32 as float32,
)
from .types import (
    float64 as float64,
)
from .types import (
    int8 as int8,
)
from .types import (
    int16 as int16,
)
from .types import (
    int32 as int32,
)
from .types import (
    int64 as int64,
)
from .types import (
    uint8 as uint8,
)
from .types import (
    uint16 as uint16,
)
from .types import (
    uint32 as uint32,
)
from .types import (
    uint64 as uint64,
)

__version__ = "0.1.0"

# Submodules, and names that live in one: loaded at first use.
_MODULES = ("losses", "ops", "optim", "schedules", "testing")
_NAMES = {
    "Algorithms": "algorithms",
    "CDevice": "cdevice",
    "Dataset": "train.dataset",
    "Device": "device",
    "EarlyStop": "train.callbacks",
    "History": "train.history",
    "Kernel": "device",
    "Limits": "limits",
    "Model": "model",
    "NonFiniteLoss": "train.nonfinite",
    "Parameter": "model",
    "Plan": "plan",
    "Profile": "profile",
    "Session": "session",
    "StepTime": "profile",
    "Trainer": "train.trainer",
    "empty": "hostmemory",
    "kernels_of": "cdevice",
    "load": "model",
    "replace_head": "head",
    "save": "model",
    "vjp": "differentiate",
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
