"""dataflow runs and trains computation graphs on pluggable devices.

Names are loaded when first used, so that ``import dataflow`` costs little more than numpy.
"""

from __future__ import annotations

import importlib
from typing import Any

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
from .host.keywords import answer
from .ir.builder import GraphBuilder as GraphBuilder
from .ir.dims import Dim as Dim
from .ir.graph import Graph as Graph
from .ir.graph import Node as Node
from .ir.op import MultiOp as MultiOp
from .ir.op import Op as Op
from .ir.op import Pattern as Pattern
from .ir.pickled_ops import install_ops
from .ir.types import DType as DType
from .ir.types import TensorType as TensorType
from .ir.types import bfloat16 as bfloat16
from .ir.types import bool_ as bool_
from .ir.types import float16 as float16
from .ir.types import float32 as float32
from .ir.types import float64 as float64
from .ir.types import int8 as int8
from .ir.types import int16 as int16
from .ir.types import int32 as int32
from .ir.types import int64 as int64
from .ir.types import uint8 as uint8
from .ir.types import uint16 as uint16
from .ir.types import uint32 as uint32
from .ir.types import uint64 as uint64
from .ir.value import Value as Value
from .ir.value import install_operators
from .version import VERSION

__version__ = VERSION

install_operators(lambda: importlib.import_module("dataflow.ops.rules.overloads"))
install_ops(lambda: importlib.import_module("dataflow.plugin.registry").default_registry().ops)

_INTERNAL = ("answer", "install_operators", "install_ops")
# Submodules, and names that live in one: loaded at first use.
_MODULES = ("callbacks", "init", "losses", "metrics", "nn", "ops", "optim", "schedules", "testing")
_NAMES = {
    "Algorithms": "planning.algorithms",
    "CDevice": "cdevice.library",
    "Augment": "train.data.augment",
    "Dataset": "train.data.dataset",
    "Device": "plugin.device",
    "EarlyStop": "train.callbacks",
    "History": "train.history",
    "Kernel": "ir.kernel",
    "Limits": "host.limits",
    "Model": "model",
    "NonFiniteLoss": "train.nonfinite",
    "Parameter": "model",
    "Plan": "ir.plan",
    "Profile": "execute.profile",
    "Session": "session",
    "StepTime": "execute.profile",
    "Trainer": "train.trainer",
    "cache_state": "state",
    "dropout": "layers.dropout",
    "empty": "cdevice.host_memory",
    "evaluate": "train.inference",
    "grad": "gradients",
    "kernels_of": "cdevice.library",
    "load": "model_files",
    "load_adapters": "adapters.folder",
    "lora": "adapters.lora",
    "merge_lora": "adapters.merge",
    "predict": "train.inference",
    "quantize": "quantization.blocks",
    "quantize_static": "quantization.static",
    "replace_head": "head_replacement",
    "save": "model_files",
    "save_adapters": "adapters.folder",
    "straight_through": "layers.straight_through",
    "unmerge_lora": "adapters.merge",
    "value_and_grad": "gradients",
    "vjp": "gradients",
}
# Data types that few models have.
_NAMES |= dict.fromkeys(
    (
        "complex64", "complex128", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float8e8m0",
        "float4e2m1", "int4", "uint4", "int2", "uint2", "string",
    ),
    "ir.types",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _MODULES:  # which answer for themselves
        return importlib.import_module(f"dataflow.{name}")
    if name in _NAMES:
        module = importlib.import_module(f"dataflow.{_NAMES[name]}")
        answer(module.__name__, name)
        return getattr(module, name)
    if name == "__all__":  # for import *, which asks for it
        here = [key for key, one in globals().items() if str(getattr(one, "__module__", "")).startswith("dataflow")]
        return [
            *(key for key in here if key[0] != "_" and key not in _INTERNAL),
            *_MODULES,
            *_NAMES,
        ]
    raise AttributeError(f"module 'dataflow' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What there is, without loading it."""
    return sorted({*globals(), *_MODULES, *_NAMES})


def get_include() -> str:
    """The folder of dataflow.h and dataflow_inline.h, for compilers."""
    from pathlib import Path

    return str(Path(__file__).parent / "include")
