"""Every op that the core declares; each is a name of this module, e.g. ``df.ops.relu``."""

from __future__ import annotations

from typing import Any

from ..ir.op import AnyOp
from .activation import OPS as ACTIVATION
from .arithmetic import OPS as ARITHMETIC
from .attention import OPS as ATTENTION
from .attention import attention as attention
from .cast import OPS as CAST
from .cast import cast as cast
from .control_flow import OPS as CONTROL_FLOW
from .conv import OPS as CONV
from .conv import conv as conv
from .detection import OPS as DETECTION
from .dynamic_shape import OPS as DYNAMIC_SHAPE
from .fused import OPS as FUSED
from .gather import OPS as GATHER
from .gather import gather as gather
from .grid_sample import OPS as GRID_SAMPLE
from .grid_sample import grid_sample as grid_sample
from .linalg import OPS as LINALG
from .logic import OPS as LOGIC
from .loss import OPS as LOSS
from .norm import OPS as NORM
from .optimizer import OPS as OPTIMIZER
from .pool import OPS as POOL
from .quantized import OPS as QUANTIZED
from .random import OPS as RANDOM
from .recurrent import OPS as RECURRENT
from .reduce import OPS as REDUCE
from .resize import OPS as RESIZE
from .resize import resize as resize
from .scatter import OPS as SCATTER
from .shape import OPS as SHAPE
from .softmax import OPS as SOFTMAX
from .softmax import softmax as softmax
from .sort import OPS as SORT
from .strings import OPS as STRINGS
from .trees import OPS as TREES

_FAMILIES = (
    ARITHMETIC,
    LOGIC,
    CAST,
    ACTIVATION,
    REDUCE,
    SHAPE,
    GATHER,
    DYNAMIC_SHAPE,
    SCATTER,
    SORT,
    LINALG,
    CONV,
    QUANTIZED,
    POOL,
    NORM,
    SOFTMAX,
    LOSS,
    OPTIMIZER,
    RANDOM,
    RECURRENT,
    RESIZE,
    GRID_SAMPLE,
    DETECTION,
    CONTROL_FLOW,
    FUSED,
    ATTENTION,
    STRINGS,
    TREES,
)

ALL: tuple[AnyOp, ...] = tuple(op for family in _FAMILIES for op in family)
_BY_NAME = {op.name: op for op in ALL}
# Where an op has the name of a family's file, the name means the op, as the imports above say to type checkers.
globals().update({name: op for name, op in _BY_NAME.items() if name in globals()})


def __getattr__(name: str) -> Any:
    found = _BY_NAME.get(name)
    if found is None:
        import difflib

        near = ", ".join(difflib.get_close_matches(name, _BY_NAME, 3))
        raise AttributeError(f"there is no op {name!r}" + (f"; nearest: {near}" if near else ""))
    globals()[name] = found  # the next look-up doesn't come here
    return found


def __dir__() -> list[str]:
    return sorted([*_BY_NAME, "ALL"])
