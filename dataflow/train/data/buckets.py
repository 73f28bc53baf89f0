"""Batches of texts of about one length: few lengths to pad to, so few plans, and little padding."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.types import Array

_MULTIPLE = 8  # kernels work on so many elements at least, and lengths between would be padded inside of them
_MOST_LENGTHS = 512  # that are looked at: longer texts are counted in larger steps


def boundaries(lengths: Array, count: int, most: int) -> Array:
    """The lengths to pad to, rising, at most ``count``: those that need the fewest padded tokens in all.

    Dynamic programming over the distinct lengths, rounded up: the best ``k`` boundaries up to a length are the best
    ``k - 1`` up to a shorter one, and the longer.

    Args:
        lengths: (N,) of the texts.
        count: boundaries.
        most: of a length.
    """
    step = max(_MULTIPLE, -(-most // _MOST_LENGTHS))
    rounded = np.minimum(-(-np.maximum(lengths, 1) // step) * step, most)
    sizes, texts = np.unique(rounded, return_counts=True)
    if len(sizes) <= count:
        return sizes
    before = np.concatenate([[0], np.cumsum(texts)])  # texts up to each length
    cost = sizes * before[1:].astype(np.float64)  # of one boundary: all up to a length padded to it
    chosen = []
    for _ in range(count - 1):
        # table[i, j]: boundaries up to length j, and then length i for the texts between.
        table = cost[None, :] + sizes[:, None] * (before[1:, None] - before[None, 1:])
        table[np.triu_indices(len(sizes))] = np.inf
        table = np.concatenate([table, (sizes * before[1:].astype(np.float64))[:, None]], 1)  # or none shorter
        chosen.append(table.argmin(1))
        cost = table.min(1)
    found, at = [], len(sizes) - 1
    for best in (*reversed(chosen), None):
        found.append(int(sizes[at]))
        if best is None or best[at] == len(sizes):
            break
        at = int(best[at])
    return np.array(found[::-1])


def ordered(rows: Array, buckets: Array, batch_size: int, generator: Any) -> Array:
    """The rows so that those of each batch are of one bucket.

    What doesn't fill a batch goes to the next longer bucket: only one batch of all is short, the last.

    Args:
        rows: (N,) numbers of samples.
        buckets: (N,) the bucket of each.
        batch_size: samples per batch.
        generator: shuffles; None keeps the order within a bucket, and short ones come first.
    """
    batches: list[Array] = []
    rest = rows[:0]
    for bucket in np.unique(buckets):
        own = rows[buckets == bucket]
        own = np.concatenate([rest, own if generator is None else generator.permutation(own)])
        full = len(own) // batch_size * batch_size
        batches += list(own[:full].reshape(-1, batch_size))
        rest = own[full:]
    if generator is not None:
        batches = [batches[i] for i in generator.permutation(len(batches))]
    return np.concatenate([*batches, rest])
