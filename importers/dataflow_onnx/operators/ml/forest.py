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

    features: Array
    modes: Array
    thresholds: Array
    yes: Array
    no: Array
    missing: Array


def _equal_lengths(**lists: Sequence[object] | Array) -> None:
    lengths = {name: len(given) for name, given in lists.items()}
    if len(set(lengths.values())) > 1:
        raise ModelError(f"lists of different lengths: {', '.join(f'{n} {k}' for n, k in lengths.items())}")


def _ordered(nodes: Nodes, starts: Array) -> Array:
    """The nodes that trees reach, each before those that follow it: itself, what follows if it holds, and the rest.

    Raises:
        ModelError: a node follows itself.
    """
    followers = np.concatenate([nodes.yes, nodes.no, starts])
    followed = np.bincount(followers[followers >= 0], minlength=len(nodes.yes))
    levels = _levels(nodes, starts) if (followed <= 1).all() else None
    return _ordered_graph(nodes, starts) if levels is None else _ordered_trees(nodes, levels)


def _levels(nodes: Nodes, starts: Array) -> list[Array] | None:
    """The nodes that are as far from the first of their tree, where each follows one at most; None: too many levels."""
    levels = [starts[starts >= 0]]
    while levels[-1].size:
        if len(levels) > 64 + len(nodes.yes) // 64:
            return None
        followers = np.concatenate([nodes.yes[levels[-1]], nodes.no[levels[-1]]])
        levels.append(followers[followers >= 0])
    return levels


def _ordered_trees(nodes: Nodes, levels: list[Array]) -> Array:
    """The same where each node follows one at most."""
    below = np.zeros(len(nodes.yes) + 1, np.int64)  # nodes of the tree that begins at each; none at a leaf, the last
    for level in reversed(levels):
        yes, no = np.maximum(nodes.yes[level], -1), np.maximum(nodes.no[level], -1)
        below[level] = 1 + below[yes] + below[no]
    number = np.zeros(len(below), np.int64)
    number[levels[0]] = np.cumsum(below[levels[0]]) - below[levels[0]]
    for level in levels:
        yes, no = np.maximum(nodes.yes[level], -1), np.maximum(nodes.no[level], -1)
        number[yes] = number[level] + 1
        number[no] = number[level] + 1 + below[yes]
    reached = np.concatenate(levels)
    order = np.empty(len(reached), np.int64)
    order[number[reached]] = reached
    return order


def _ordered_graph(nodes: Nodes, starts: Array) -> Array:
    """The same where a node may follow several: what a set of categories leads to stands once in some files."""
    opened, closed = 1, 2
    yes, no = nodes.yes.tolist(), nodes.no.tolist()
    state = bytearray(len(yes))
    order: list[int] = []  # from the last to the first
    for start in reversed(starts.tolist()):
        stack = [start]
        while stack:
            node = stack[-1]
            if node >= 0 and not state[node]:
                state[node] = opened
                followers = [n for n in (yes[node], no[node]) if n >= 0]
                if any(state[n] == opened for n in followers):
                    raise ModelError(f"node {node} leads to one that it follows: what it belongs to is no tree")
                stack += followers
                continue
            if node >= 0 and state[node] == opened:
                state[node] = closed
                order.append(node)
            stack.pop()
    return np.array(order[::-1], np.int64)


def _flat(nodes: Nodes, starts: Array, members: dict[int, list[float]]) -> tuple[Array, Array, Array]:
    """Nodes, thresholds and starts of the op; a test for members of a set becomes a chain of comparisons."""
    order = _ordered(nodes, starts)
    sizes = np.ones(len(order), np.int64)
    found = enumerate(order.tolist() if members else ())
    tests = {index: members[node] or [np.nan] for index, node in found if node in members}  # NaN equals nothing
    for index, values in tests.items():
        sizes[index] = len(values)
    ends = np.cumsum(sizes)
    first = ends - sizes
    number = np.zeros(len(nodes.yes) + 1, np.int64)  # the row of a node
    number[order] = first

    def after(followers: Array) -> Array:
        return np.where(followers < 0, followers, number[np.maximum(followers, -1)])

    missing = np.where(nodes.missing[order] != 0, _MISSING, 0)
    columns = (nodes.features[order], nodes.modes[order] + missing, after(nodes.yes[order]), after(nodes.no[order]))
    table = np.repeat(np.stack(columns, 1).reshape(-1, 4), sizes, 0)
    thresholds = np.repeat(nodes.thresholds[order], sizes)
    for index, values in tests.items():
        begin, end = int(first[index]), int(ends[index])
        table[begin:end, 1] = _EQUAL + missing[index]
        table[begin : end - 1, 3] = np.arange(begin + 1, end)
        thresholds[begin:end] = values
    if len(table) >= 1 << 31 or (table.size and not -(1 << 31) <= table.min() <= table.max() < 1 << 31):
        raise ModelError("a feature or node has a number that is too large")
    if (table[:, 0] < 0).any():
        raise ModelError("a node has a negative feature")
    return table.astype(np.int32), thresholds, after(starts).astype(np.int32)


def _integers(given: Sequence[int]) -> Array:
    return np.fromiter(given, np.int64, len(given))


def _targets(targets: Array, size: int) -> Array:
    if targets.size and not 0 <= targets.min() <= targets.max() < size:
        raise ModelError(f"a leaf has target {targets.max()} or {targets.min()}; there are {size}")
    return targets.astype(np.int32)


class _Numbers:
    """Finds the nodes that files name by a tree and a number in it.

    Args:
        trees: of each node.
        nodes: its number in the tree.

    Raises:
        ModelError: two are named alike.
    """

    def __init__(self, trees: Array, nodes: Array) -> None:
        self._trees, of_tree = np.unique(trees, return_inverse=True)
        self._nodes, of_node = np.unique(nodes, return_inverse=True)
        keys = of_tree * len(self._nodes) + of_node
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        if (self._keys[1:] == self._keys[:-1]).any():
            raise ModelError("two nodes of a tree have one number")

    def find(self, trees: Array, nodes: Array) -> Array:
        """Indices of nodes; -1 where there is none of that name."""
        tree = np.minimum(np.searchsorted(self._trees, trees), len(self._trees) - 1)
        node = np.minimum(np.searchsorted(self._nodes, nodes), len(self._nodes) - 1)
        keys = tree * len(self._nodes) + node
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known = (self._trees[tree] == trees) & (self._nodes[node] == nodes) & (self._keys[at] == keys)
        return np.where(known, self._order[at], -1)


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
    known = {LEAF: -1, **{mode: number for number, mode in enumerate(_MODES)}}
    unknown = {*modes} - known.keys()
    if unknown or not modes:
        raise ModelError(f"it has no nodes, or nodes_modes that are not known: {', '.join(sorted(unknown))}")
    trees, numbers = _integers(tree_ids), np.array([known[mode] for mode in modes], np.int64)
    named = _Numbers(trees, _integers(node_ids))
    is_leaf = numbers < 0
    leaf_of = np.cumsum(is_leaf) - 1

    def followers(given: Sequence[int]) -> Array:
        """Indices of the nodes that follow those that are no leaves."""
        wanted = _integers(given)[~is_leaf]
        found = named.find(trees[~is_leaf], wanted)
        if (found < 0).any():
            at = int(np.argmax(found < 0))
            raise ModelError(f"a node of tree {trees[~is_leaf][at]} leads to node {wanted[at]}, which it does not have")
        return found

    def as_leaves(found: Array) -> Array:
        return np.where(is_leaf[found], -1 - leaf_of[found], found)

    after = np.full((2, len(modes)), -1, np.int64)  # none is behind a leaf
    is_first = np.ones(len(modes), np.bool_)
    for which, given in enumerate((yes, no)):
        found = followers(given)
        is_first[found] = False
        after[which, ~is_leaf] = as_leaves(found)
    firsts = np.flatnonzero(is_first)
    if not np.array_equal(np.sort(trees[firsts]), np.unique(trees)):
        raise ModelError("a tree has no first node, or several")
    nodes = Nodes(_integers(features), np.maximum(numbers, 0), thresholds, after[0], after[1], _integers(missing))
    table, limits, begins = _flat(nodes, as_leaves(firsts), {})
    if len(table) + int(is_leaf.sum()) < len(modes):
        raise ModelError("some nodes follow each other in a circle")
    of = named.find(_integers(entry_trees), _integers(entry_nodes))
    wrong = np.flatnonzero((of < 0) | ~is_leaf[of])
    if wrong.size:
        at = int(wrong[0])
        raise ModelError(f"weights belong to node {entry_nodes[at]} of tree {entry_trees[at]}, which is no leaf")
    entries = leaf_of[of]
    order = np.unique(entries, return_index=True)[1] if once else np.argsort(entries, kind="stable")
    leaves = np.concatenate([[0], np.cumsum(np.bincount(entries[order], minlength=int(is_leaf.sum())))])
    ids = _targets(_integers(targets), size)
    return Forest(table, limits, begins, leaves.astype(np.int32), ids[order], weights[order])


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
    numbers = modes.reshape(-1).astype(np.int64)
    _equal_lengths(
        nodes_featureids=features, nodes_modes=numbers, nodes_splits=thresholds, nodes_truenodeids=yes,
        nodes_falsenodeids=no, nodes_trueleafs=yes_leaf, nodes_falseleafs=no_leaf,
        nodes_missing_value_tracks_true=missing,
    )  # fmt: skip
    _equal_lengths(leaf_targetids=targets, leaf_weights=weights)
    if numbers.size and not 0 <= numbers.min() <= numbers.max() <= _MEMBER:
        raise ModelError(f"nodes_modes has {numbers.max()} or {numbers.min()}; expected 0 to {_MEMBER}")

    def followers(given: Sequence[int], leaf: Sequence[int] | None = None) -> Array:
        found = _integers(given)
        is_leaf = np.zeros(len(found), np.bool_) if leaf is None else _integers(leaf) != 0
        wrong = np.flatnonzero((found < 0) | (found >= np.where(is_leaf, len(targets), len(features))))
        if wrong.size:
            at = int(wrong[0])
            kind = "leaf" if is_leaf[at] else "node"
            raise ModelError(f"a tree leads to {kind} {found[at]}, which does not exist")
        return np.where(is_leaf, -1 - found, found)

    after_yes, after_no, first = followers(yes, yes_leaf), followers(no, no_leaf), followers(starts)
    is_single = (after_yes[first] < 0) & (after_yes[first] == after_no[first])
    single = np.where(is_single, after_yes[first], first)
    sets = _sets(numbers, np.zeros(0) if members is None else members.reshape(-1))
    nodes = Nodes(_integers(features), numbers, thresholds, after_yes, after_no, _integers(missing))
    table, limits, begins = _flat(nodes, single, sets)
    leaves = np.arange(len(targets) + 1, dtype=np.int32)
    return Forest(table, limits, begins, leaves, _targets(_integers(targets), size), weights)


def _sets(modes: Array, values: Array) -> dict[int, list[float]]:
    """The members that each test of membership has: lists that end with NaN, in the order of these nodes."""
    tests = np.flatnonzero(modes == _MEMBER).tolist()
    ends = np.flatnonzero(np.isnan(values))
    if len(ends) != len(tests):
        raise ModelError(f"membership_values has {len(ends)} lists for {len(tests)} nodes")
    starts = [0, *(int(end) + 1 for end in ends)]
    return {node: values[a:b].tolist() for node, a, b in zip(tests, starts, ends, strict=False)}
