"""The converter of an operator that a loop which generates tokens reads scores with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dataflow import ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import full, number, slice_axis
from ...importer import Importer
from ...tensor import Tensor

T = Tensor
operator = Collector("com.microsoft")
_NO_TOKEN = int(np.iinfo(np.int64).min)


@operator("NGramRepeatBlock")
def NGramRepeatBlock(c: Importer, input_ids: T, scores: T, *, ngram_size: int) -> Any:
    """Scores (batch, tokens) with -inf for what would repeat ``ngram_size`` tokens of the ids (batch, rows)."""
    ids, given = c.value(input_ids), c.value(scores)
    if ids.type.rank != 2 or given.type.rank != 2 or ngram_size < 1:
        raise ModelError(
            f"input_ids is {ids.type}, scores {given.type}, ngram_size {ngram_size}; expected (batch, rows), "
            "(batch, tokens) and at least 1"
        )
    batch, rows = ids.type.shape
    reach = ngram_size - 1
    repeats: Any = None
    # Each row of ids is taken for the end of so many tokens; before the first there are none that repeat.
    every = ids if not reach else ops.concat(full(c.builder, (batch, reach), _NO_TOKEN, ids.type.dtype), ids, axis=1)
    for offset in range(reach):
        last = slice_axis(every, 1, rows + offset, rows + offset + 1)
        same = ops.equal(slice_axis(every, 1, offset, offset + rows), last)
        repeats = same if repeats is None else ops.logical_and(repeats, same)
    worst, best = (number(c.builder, n, given.type.dtype) for n in (-math.inf, math.inf))
    if repeats is None:
        limits = ops.broadcast_to(ops.reshape(worst, shape=(1, 1)), shape=(batch, rows))
    else:
        limits = ops.where(repeats, worst, best)
    return ops.scatter_elements(given, ids, limits, axis=1, reduction="min")
