"""Every kernel of the reference, by op: ``code(attributes, *inputs)`` gives an array or one per output."""

from __future__ import annotations

from . import (
    control,
    elementwise,
    indexing,
    layernorm,
    networks,
    patterns,
    random,
    recurrent,
    resampling,
    tensors,
    windows,
)
from .elementwise import Code

KERNELS: dict[str, Code] = {
    **elementwise.KERNELS,
    **tensors.KERNELS,
    **indexing.KERNELS,
    **windows.KERNELS,
    **networks.KERNELS,
    **layernorm.KERNELS,
    **random.KERNELS,
    **recurrent.KERNELS,
    **resampling.KERNELS,
    **control.KERNELS,
    **patterns.KERNELS,
}
