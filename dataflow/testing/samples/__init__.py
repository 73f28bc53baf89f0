"""Uses of every op at interesting shapes, one file per family. Adding a row is the whole test of an op or kernel."""

from __future__ import annotations

from ..sample import Sample
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

TABLES: dict[str, list[Sample]] = {
    "arithmetic": arithmetic.SAMPLES,
    "logic": logic.SAMPLES,
    "activation": activation.SAMPLES,
    "cast": cast.SAMPLES,
    "shape": shape.SAMPLES,
    "reduce": reduce.SAMPLES,
    "sort": sort.SAMPLES,
    "gather": gather.SAMPLES,
    "scatter": scatter.SAMPLES,
    "linalg": linalg.SAMPLES,
    "conv": conv.SAMPLES,
    "quantized": quantized.SAMPLES,
    "pool": pool.SAMPLES,
    "norm": norm.SAMPLES,
    "softmax": softmax.SAMPLES,
    "loss": loss.SAMPLES,
    "optimizer": optimizer.SAMPLES,
    "random": random.SAMPLES,
    "resize": resize.SAMPLES,
    "grid_sample": grid_sample.SAMPLES,
    "detection": detection.SAMPLES,
    "attention": attention.SAMPLES,
    "recurrent": recurrent.SAMPLES,
    "control_flow": control_flow.SAMPLES,
    "dynamic_shape": dynamic_shape.SAMPLES,
    "fused": fused.SAMPLES,
    "strings": strings.SAMPLES,
    "trees": trees.SAMPLES,
}
"""The samples of each family, by its name."""

SAMPLES: tuple[Sample, ...] = tuple(sample for table in TABLES.values() for sample in table)
