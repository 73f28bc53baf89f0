"""Attributes of tree ensembles -> the flat arrays of the op ``tree_ensemble``, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dataflow.errors import ModelError

from ...file.records import Array

LEAF = "LEAF"
_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")  # as the op numbers them
_EQUAL = _MODES.index("BRANCH_EQ")
_MEMBER = 6
_MISSING = 8


@dataclass(frozen=True, slots=True)
class Forest:
    """Trees in the form of the op ``tree_ensemble``.

    Attributes:
        nodes: (nodes, 4): feature, comparison, what follows if it holds and if not.
        thresholds: of nodes.
        starts: first node, or leaf, of each tree.
        leaves: where the entries of each leaf begin, and the end of all.
        targets, weights: entries.
    """

    nodes: Array
    thresholds: Array
    starts: Array
    leaves: Array
    targets: Array
    weights: Array

    @property
    def is_double(self) -> bool:
        """Whether its numbers are doubles."""
        return np.float64 in (self.thresholds.dtype, self.weights.dtype)


@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a file, in its order; leaves are negative, -1 - index."""

    features: Sequence[int]
    modes: Sequence[int]
    thresholds: Array
    yes: Sequence[int]
    no: Sequence[int]
    missing: Sequence[int]


def _equal_lengths(**lists: Sequence[object] | Array) -> None:
    lengths = {name: len(given) for name, given in lists.items()}
    if len(set(lengths.values())) > 1:
        raise ModelError(f"lists of different lengths: {', '.join(f'{n} {k}' for n, k in lengths.items())}")


def _ordered(nodes: Nodes, starts: Sequence[int]) -> tuple[list[int], list[int]]:
    """The nodes that trees reach, each before those that follow it, and their new numbers by the old ones.

    A node may follow several: what a set of categories leads to stands once in files of LightGBM and XGBoost.

    Raises:
        ModelError: a node follows itself.
    """
    opened, closed = 1, 2
    state = bytearray(len(nodes.yes))
    order: list[int] = []  # from the last to the first
    for start in reversed(starts):
        stack = [start]
        while stack:
            node = stack[-1]
            if node >= 0 and not state[node]:
                state[node] = opened
                followers = [n for n in (nodes.yes[node], nodes.no[node]) if n >= 0]
                if any(state[n] == opened for n in followers):
                    raise ModelError(f"node {node} leads to one that it follows: what it belongs to is no tree")
                stack += followers
                continue
            if node >= 0 and state[node] == opened:
                state[node] = closed
                order.append(node)
            stack.pop()
    order.reverse()
    number = [-1] * len(nodes.yes)
    for index, node in enumerate(order):
        number[node] = index
    return order, number


def _flat(nodes: Nodes, starts: Sequence[int], members: dict[int, list[float]]) -> tuple[Array, Array, Array]:
    """Nodes, thresholds and starts of the op; a test for members of a set becomes a chain of comparisons."""
    order, number = _ordered(nodes, starts)
    rows: list[tuple[int, int, int, int]] = []
    thresholds: list[float] = []
    sizes = [max(len(members[node]), 1) if node in members else 1 for node in order]
    first = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)

    def after(node: int) -> int:
        return node if node < 0 else int(first[number[node]])

    for index, node in enumerate(order):
        feature, missing = nodes.features[node], _MISSING * bool(nodes.missing[node])
        yes, no = after(nodes.yes[node]), after(nodes.no[node])
        if node not in members:
            rows.append((feature, nodes.modes[node] + missing, yes, no))
            thresholds.append(float(nodes.thresholds[node]))
            continue
        values = members[node] or [np.nan]  # equal to nothing
        for i, value in enumerate(values):
            further = int(first[index]) + i + 1 if i + 1 < len(values) else no
            rows.append((feature, _EQUAL + missing, yes, further))
            thresholds.append(value)
    table = np.array(rows, np.int64).reshape(-1, 4)
    if len(table) >= 1 << 31 or (table.size and not -(1 << 31) <= table.min() <= table.max() < 1 << 31):
        raise ModelError("a feature or node has a number that is too large")
    if (table[:, 0] < 0).any():
        raise ModelError("a node has a negative feature")
    return (
        table.astype(np.int32),
        np.array(thresholds, nodes.thresholds.dtype),
        np.array([after(start) for start in starts], np.int32),
    )


def _targets(targets: Sequence[int], size: int) -> Array:
    if targets and not 0 <= min(targets) <= max(targets) < size:
        raise ModelError(f"a leaf has target {max(targets)} or {min(targets)}; there are {size}")
    return np.array(targets, np.int32)


def forest_of(
    *,
    tree_ids: Sequence[int],
    node_ids: Sequence[int],
    features: Sequence[int],
    modes: Sequence[str],
    thresholds: Array,
    yes: Sequence[int],
    no: Sequence[int],
    missing: Sequence[int],
    entry_trees: Sequence[int],
    entry_nodes: Sequence[int],
    targets: Sequence[int],
    weights: Array,
    size: int,
    once: bool = False,
) -> Forest:
    """The trees of TreeEnsembleClassifier and TreeEnsembleRegressor; ``once``: of weights of a leaf the first counts.

    Raises:
        ModelError: lists have different lengths, or what they describe are no trees.
    """
    missing = missing or (0,) * len(modes)
    _equal_lengths(
        nodes_treeids=tree_ids, nodes_nodeids=node_ids, nodes_featureids=features, nodes_modes=modes,
        nodes_values=thresholds, nodes_truenodeids=yes, nodes_falsenodeids=no, nodes_missing_value_tracks_true=missing,
    )  # fmt: skip
    _equal_lengths(treeids=entry_trees, nodeids=entry_nodes, ids=targets, weights=weights)
    unknown = {*modes} - {*_MODES, LEAF}
    if unknown or not modes:
        raise ModelError(f"it has no nodes, or nodes_modes that are not known: {', '.join(sorted(unknown))}")
    keys = list(zip(tree_ids, node_ids, strict=True))
    index = {key: i for i, key in enumerate(keys)}
    if len(index) < len(keys):
        raise ModelError("two nodes of a tree have one number")
    leaf_nodes = [i for i, mode in enumerate(modes) if mode == LEAF]
    leaf_of = {node: leaf for leaf, node in enumerate(leaf_nodes)}

    def follower(tree: int, node: int) -> int:
        found = index.get((tree, node))
        if found is None:
            raise ModelError(f"a node of tree {tree} leads to node {node}, which it does not have")
        return -1 - leaf_of[found] if found in leaf_of else found

    after_yes, after_no = [0] * len(modes), [0] * len(modes)
    children: set[tuple[int, int]] = set()
    for i, mode in enumerate(modes):
        if mode != LEAF:
            after_yes[i], after_no[i] = follower(tree_ids[i], yes[i]), follower(tree_ids[i], no[i])
            children |= {(tree_ids[i], yes[i]), (tree_ids[i], no[i])}
    firsts = [i for i, key in enumerate(keys) if key not in children]
    if sorted(tree_ids[i] for i in firsts) != sorted({*tree_ids}):
        raise ModelError("a tree has no first node, or several")
    starts = [-1 - leaf_of[i] if i in leaf_of else i for i in firsts]
    numbers = [0 if mode == LEAF else _MODES.index(mode) for mode in modes]
    nodes = Nodes(features, numbers, thresholds, after_yes, after_no, missing)
    table, limits, begins = _flat(nodes, starts, {})
    if len(table) + len(leaf_nodes) < len(modes):
        raise ModelError("some nodes follow each other in a circle")
    of: list[int] = []
    for tree, node in zip(entry_trees, entry_nodes, strict=True):
        leaf = leaf_of.get(index.get((tree, node), -1))
        if leaf is None:
            raise ModelError(f"weights belong to node {node} of tree {tree}, which is no leaf")
        of.append(leaf)
    entries = np.array(of, np.int64)
    order = np.unique(entries, return_index=True)[1] if once else np.argsort(entries, kind="stable")
    leaves = np.concatenate([[0], np.cumsum(np.bincount(entries[order], minlength=len(leaf_nodes)))])
    return Forest(table, limits, begins, leaves.astype(np.int32), _targets(targets, size)[order], weights[order])


def forest_of_5(
    *,
    features: Sequence[int],
    modes: Array,
    thresholds: Array,
    yes: Sequence[int],
    no: Sequence[int],
    yes_leaf: Sequence[int],
    no_leaf: Sequence[int],
    missing: Sequence[int],
    members: Array | None,
    starts: Sequence[int],
    targets: Sequence[int],
    weights: Array,
    size: int,
) -> Forest:
    """The trees of TreeEnsemble.

    Raises:
        ModelError: as ``forest_of``.
    """
    missing = missing or (0,) * len(features)
    numbers = [int(mode) for mode in modes.reshape(-1)]
    _equal_lengths(
        nodes_featureids=features, nodes_modes=numbers, nodes_splits=thresholds, nodes_truenodeids=yes,
        nodes_falsenodeids=no, nodes_trueleafs=yes_leaf, nodes_falseleafs=no_leaf,
        nodes_missing_value_tracks_true=missing,
    )  # fmt: skip
    _equal_lengths(leaf_targetids=targets, leaf_weights=weights)
    if numbers and not 0 <= min(numbers) <= max(numbers) <= _MEMBER:
        raise ModelError(f"nodes_modes has {max(numbers)} or {min(numbers)}; expected 0 to {_MEMBER}")

    def follower(node: int, is_leaf: int) -> int:
        if not 0 <= node < (len(targets) if is_leaf else len(features)):
            raise ModelError(f"a tree leads to {'leaf' if is_leaf else 'node'} {node}, which does not exist")
        return -1 - node if is_leaf else node

    after_yes = [follower(node, leaf) for node, leaf in zip(yes, yes_leaf, strict=True)]
    after_no = [follower(node, leaf) for node, leaf in zip(no, no_leaf, strict=True)]
    first = [follower(start, 0) for start in starts]
    single = [after_yes[s] if after_yes[s] < 0 and after_yes[s] == after_no[s] else s for s in first]
    sets = _sets(numbers, np.zeros(0) if members is None else members.reshape(-1))
    nodes = Nodes(features, numbers, thresholds, after_yes, after_no, missing)
    table, limits, begins = _flat(nodes, single, sets)
    leaves = np.arange(len(targets) + 1, dtype=np.int32)
    return Forest(table, limits, begins, leaves, _targets(targets, size), weights)


def _sets(modes: Sequence[int], values: Array) -> dict[int, list[float]]:
    """The members that each test of membership has: lists that end with NaN, in the order of these nodes."""
    tests = [node for node, mode in enumerate(modes) if mode == _MEMBER]
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) != len(tests):
        raise ModelError(f"membership_values has {len(ends)} lists for {len(tests)} nodes")
    starts = [0, *(int(end) + 1 for end in ends)]
    return {node: values[a:b].tolist() for node, a, b in zip(tests, starts, ends, strict=False)}
