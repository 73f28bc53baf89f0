"""Converters of operators that choose elements by index."""

from __future__ import annotations

from typing import Any

from dataflow import ops

from ...converters import Collector
from ...importer import Importer
from ...tensor import Tensor

T = Tensor
operator = Collector("com.microsoft")


@operator("GatherND")
def GatherND(c: Importer, x: T, indices: T) -> Any:
    return ops.gather_nd(c.value(x), c.value(indices), batch_dims=0)


@operator("TorchEmbedding")
def TorchEmbedding(
    c: Importer, weight: T, indices: T, padding_idx: T | None = None, scale_grad_by_freq: T | None = None
) -> Any:
    """Both options concern gradients alone, which are those of a plain table here."""
    return ops.gather(c.weight(weight), c.value(indices), axis=0)
