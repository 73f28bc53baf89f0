"""Every kernel of the reference, by op: ``code(attributes, *inputs)`` gives an array or one per output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dataflow import Graph

from . import (
    activation,
    arithmetic,
    attention,
    cast,
    control_flow,
    conv,
    dynamic_shape,
    fused,
    gather,
    linalg,
    logic,
    loss,
    norm,
    optimizer,
    pool,
    random,
    recurrent,
    reduce,
    resize,
    scatter,
    shape,
    softmax,
    sort,
)
from .arrays import Array, Code
from .interpreter import interpret


def _evaluate(body: Graph, feeds: Mapping[str, Array], dtype: Any) -> dict[str, Array]:
    return interpret(KERNELS, body, feeds, dtype=dtype)


KERNELS: dict[str, Code] = {
    **arithmetic.KERNELS,
    **logic.KERNELS,
    **activation.KERNELS,
    **cast.KERNELS,
    **shape.KERNELS,
    **reduce.KERNELS,
    **sort.KERNELS,
    **gather.KERNELS,
    **scatter.KERNELS,
    **linalg.KERNELS,
    **conv.KERNELS,
    **pool.KERNELS,
    **norm.KERNELS,
    **softmax.KERNELS,
    **loss.KERNELS,
    **optimizer.KERNELS,
    **random.KERNELS,
    **resize.KERNELS,
    **attention.KERNELS,
    **recurrent.KERNELS,
    **control_flow.kernels(_evaluate),
    **dynamic_shape.KERNELS,
    **fused.KERNELS,
}
