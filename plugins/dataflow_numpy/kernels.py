"""Every kernel of the reference, by family and by op."""

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
    detection,
    dynamic_shape,
    fused,
    gather,
    grid_sample,
    linalg,
    logic,
    loss,
    norm,
    optimizer,
    pool,
    quantized,
    random,
    recurrent,
    reduce,
    resize,
    scatter,
    shape,
    softmax,
    sort,
    strings,
    trees,
)
from .arrays import Array, Code
from .interpreter import interpret


def _evaluate(body: Graph, feeds: Mapping[str, Array], dtype: Any) -> dict[str, Array]:
    return interpret(KERNELS, body, feeds, dtype=dtype)


TABLES: dict[str, dict[str, Code]] = {
    "arithmetic": arithmetic.KERNELS,
    "logic": logic.KERNELS,
    "activation": activation.KERNELS,
    "cast": cast.KERNELS,
    "shape": shape.KERNELS,
    "reduce": reduce.KERNELS,
    "sort": sort.KERNELS,
    "gather": gather.KERNELS,
    "scatter": scatter.KERNELS,
    "linalg": linalg.KERNELS,
    "conv": conv.KERNELS,
    "quantized": quantized.KERNELS,
    "pool": pool.KERNELS,
    "norm": norm.KERNELS,
    "softmax": softmax.KERNELS,
    "loss": loss.KERNELS,
    "optimizer": optimizer.KERNELS,
    "random": random.KERNELS,
    "resize": resize.KERNELS,
    "grid_sample": grid_sample.KERNELS,
    "detection": detection.KERNELS,
    "attention": attention.KERNELS,
    "recurrent": recurrent.KERNELS,
    "control_flow": control_flow.kernels(_evaluate),
    "dynamic_shape": dynamic_shape.KERNELS,
    "fused": fused.KERNELS,
    "strings": strings.KERNELS,
    "trees": trees.KERNELS,
}
"""The kernels of each family, by its name."""

KERNELS: dict[str, Code] = {op: code for table in TABLES.values() for op, code in table.items()}
