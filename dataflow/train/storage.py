"""In which dtype values wait between forward and backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Literal, get_args

from ..host import checks
from ..ir.types import DType, bfloat16, float16
from ..model import Model

Storage = Literal["float32", "bfloat16", "float16"]


def storage_of(model: Model, storage: Storage | None) -> DType | None:
    """The dtype of 16 bits in which values wait; None: they wait as they were computed.

    Args:
        model: whose values say it where ``storage`` doesn't.
        storage: as for Trainer.

    Raises:
        InputError: another name.
    """
    if storage is not None:
        checks.text("storage", storage, get_args(Storage))
        return {"bfloat16": bfloat16, "float16": float16}.get(storage)
    types = [v.type for node in model.graph.nodes for v in node.outputs if v is not None]
    counts = Counter(type_.dtype for type_ in types if type_.dtype.is_float)
    most = max(counts, key=lambda dtype: counts[dtype], default=None)
    return most if most in (bfloat16, float16) else None


def has_float16(model: Model, trained: Collection[str]) -> bool:
    """Whether a trained parameter is float16."""
    parameters = model.parameters
    return any(parameters[name].type.dtype == float16 for name in trained)
