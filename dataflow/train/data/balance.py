"""Class-balanced sampling: an epoch in which every class has as many samples."""

from __future__ import annotations

import numpy as np

from ...errors import InputError
from ...ir.types import Array


def balanced(rows: Array, labels: Array, generator: np.random.Generator) -> Array:
    """As many rows as there are, in random order, with the same number of each class (to one).

    A class is drawn without replacement until all its samples were drawn, then anew: of a rare one each sample occurs
    equally often (to one), of a frequent one some are left out, others in each epoch.

    Args:
        rows: (N,) numbers of samples.
        labels: (N,) their classes.
        generator: of random numbers.

    Raises:
        InputError: the labels are no classes.
    """
    if labels.ndim != 1 or labels.dtype.kind not in "iubSU":
        raise InputError(f"balance: the labels are {labels.dtype}{list(labels.shape)}; expected one class per sample")
    kinds, classes = np.unique(labels, return_inverse=True)
    quota = np.full(len(kinds), len(rows) // len(kinds))
    quota[generator.permutation(len(kinds))[: len(rows) % len(kinds)]] += 1
    chosen = []
    for kind, wanted in enumerate(quota):
        own = rows[classes == kind]
        rounds = [generator.permutation(own) for _ in range(-(-int(wanted) // len(own)))]
        chosen.append(np.concatenate([*rounds, own[:0]])[:wanted])
    return generator.permutation(np.concatenate(chosen))
