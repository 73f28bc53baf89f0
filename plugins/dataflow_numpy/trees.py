"""Reference of decision trees."""

from __future__ import annotations

import numpy as np

from dataflow.errors import InputError

from .arrays import Array, Attributes, Code, lowest, upcast

_COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_MISSING = 8


def _need(condition: Array, what: str) -> None:
    if not np.all(condition):
        raise InputError(f"tree_ensemble: {what}")


def _leaves_of(x: Array, nodes: Array, thresholds: Array, starts: Array, count: int) -> Array:
    """The leaf of each row in each tree: (rows, trees)."""
    at = np.tile(starts, (len(x), 1))
    while (inner := at >= 0).any():
        rows, _ = np.nonzero(inner)
        here = at[inner]
        _need(here < len(nodes), f"a node lies outside of {len(nodes)}")
        feature, mode, yes, no = nodes[here].T
        _need((feature >= 0) & (feature < x.shape[1]), f"a feature lies outside of {x.shape[1]}")
        _need((mode & ~_MISSING >= 0) & (mode & ~_MISSING < len(_COMPARE)), "a node has an unknown comparison")
        value, threshold = x[rows, feature], thresholds[here]
        holds = np.select([mode & ~_MISSING == i for i in range(6)], [f(value, threshold) for f in _COMPARE])
        holds = holds.astype(bool) | (np.isnan(value) & (mode & _MISSING != 0))
        found = np.where(holds, yes, no)
        _need((found < 0) | (found > here), "a node follows one that does not stand before it")
        at[inner] = found
    at = -1 - at
    _need(at < count, f"a leaf lies outside of {count}")
    return at


def _tree_ensemble(
    attributes: Attributes,
    x: Array,
    nodes: Array,
    thresholds: Array,
    starts: Array,
    leaves: Array,
    targets: Array,
    weights: Array,
) -> Array:
    size, aggregate = attributes["size"], attributes["aggregate"]
    leaf = _leaves_of(upcast(x), nodes, upcast(thresholds), starts, max(len(leaves) - 1, 0))
    begins, counts = leaves[:-1], np.diff(leaves)
    _need((begins >= 0) & (counts >= 0) & (leaves[1:] <= len(targets)), f"a leaf's entries lie outside {len(targets)}")
    _need((targets >= 0) & (targets < size), f"a target lies outside of {size}")
    rows = np.repeat(np.arange(len(x)), leaf.shape[1])
    flat = leaf.reshape(-1)
    join = {"sum": np.add, "min": np.minimum, "max": np.maximum}[aggregate]
    start = 0.0 if aggregate == "sum" else lowest(np.dtype(np.float64), 1 if aggregate == "max" else -1)
    found = np.full((len(x), size), start)
    touched = np.zeros((len(x), size), bool)
    for k in range(int(counts.max(initial=0))):
        has = counts[flat] > k
        entry = begins[flat[has]] + k
        join.at(found, (rows[has], targets[entry]), weights[entry].astype(np.float64))
        touched[rows[has], targets[entry]] = True
    return np.where(touched, found, 0).astype(x.dtype)


KERNELS: dict[str, Code] = {
    "tree_ensemble": _tree_ensemble,
}
