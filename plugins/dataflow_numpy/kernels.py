"""Every kernel of the reference, by op: ``code(attributes, *inputs)`` gives an array or one per output."""

from __future__ import annotations

from . import arithmetic, control_flow, fused, gather, networks, norm, pool, random, recurrent, resize, shape
from .arithmetic import Code

KERNELS: dict[str, Code] = {
    **arithmetic.KERNELS,
    **shape.KERNELS,
    **gather.KERNELS,
    **pool.KERNELS,
    **networks.KERNELS,
    **norm.KERNELS,
    **random.KERNELS,
    **recurrent.KERNELS,
    **resize.KERNELS,
    **control_flow.KERNELS,
    **fused.KERNELS,
}
