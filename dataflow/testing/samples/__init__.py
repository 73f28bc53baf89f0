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

_FAMILIES = (
    arithmetic,
    logic,
    activation,
    cast,
    shape,
    reduce,
    sort,
    gather,
    scatter,
    linalg,
    conv,
    pool,
    norm,
    softmax,
    loss,
    optimizer,
    random,
    resize,
    attention,
    recurrent,
    control_flow,
    dynamic_shape,
    fused,
)

SAMPLES: tuple[Sample, ...] = tuple(sample for family in _FAMILIES for sample in family.SAMPLES)
