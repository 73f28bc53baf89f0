"""Converters of ensembles of decision trees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import float32, float64, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to
from ...file.records import Array
from ...importer import Importer
from ...tensor import Tensor
from .forest import Forest, forest_of, forest_of_5
from .scores import DOMAIN, Labels, above, best, both_classes, rows_of, stored, transformed

T = Tensor
operator = Collector(DOMAIN)
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")  # by the number that opset 5 gives them
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")


def _numbers(floats: Sequence[float], tensor: Array | None) -> Array:
    """What is given, as floats or as a tensor that may be of doubles."""
    if tensor is not None and floats:
        raise ModelError("it has numbers as floats and as a tensor; expected one kind")
    return np.array(floats, np.float32) if tensor is None else tensor.reshape(-1)


def _aggregated(c: Importer, x: T, forest: Forest, size: int, aggregate: str = "SUM") -> Any:
    """(rows, size): what the trees give each target; in doubles where the rows or the trees have them."""
    value = rows_of(c, x)
    value = cast_to(value, float64) if forest.is_double else value
    constant, dtype = c.builder.constant, value.type.dtype.numpy
    how = "sum" if aggregate == "AVERAGE" else aggregate.lower()
    found = ops.tree_ensemble(
        value,
        constant(forest.nodes),
        constant(forest.thresholds.astype(dtype)),
        constant(forest.starts),
        constant(forest.leaves),
        constant(forest.targets),
        constant(forest.weights.astype(dtype)),
        size=size,
        aggregate=how,
    )
    return ops.div(found, float(len(forest.starts))) if aggregate == "AVERAGE" else found


@operator("TreeEnsemble", 5)
def TreeEnsemble(
    c: Importer,
    x: T,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Sequence[int],
    leaf_weights: Array,
    membership_values: Array | None = None,
    n_targets: int = 1,
    nodes_falseleafs: Sequence[int],
    nodes_falsenodeids: Sequence[int],
    nodes_featureids: Sequence[int],
    nodes_hitrates: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: Array,
    nodes_splits: Array,
    nodes_trueleafs: Sequence[int],
    nodes_truenodeids: Sequence[int],
    post_transform: int = 0,
    tree_roots: Sequence[int],
) -> Any:
    forest = forest_of_5(
        features=nodes_featureids, modes=nodes_modes, thresholds=nodes_splits.reshape(-1), yes=nodes_truenodeids,
        no=nodes_falsenodeids, yes_leaf=nodes_trueleafs, no_leaf=nodes_falseleafs,
        missing=nodes_missing_value_tracks_true, members=membership_values, starts=tree_roots, targets=leaf_targetids,
        weights=leaf_weights.reshape(-1), size=n_targets,
    )  # fmt: skip
    found = _aggregated(c, x, forest, n_targets, _AGGREGATES[aggregate_function])
    return cast_to(_of_targets(found, n_targets, _TRANSFORMS[post_transform]), x.type.dtype)


def _of_targets(scores: Any, count: int, transform: str) -> Any:
    """Scores of targets after a transform; ONNX Runtime leaves that of a single target out, so it is refused."""
    if count == 1 and transform not in ("NONE", "PROBIT"):
        raise ModelError(f"post_transform {transform} of one target has no agreed meaning")
    return transformed(scores, transform)


@operator("TreeEnsembleRegressor")
def TreeEnsembleRegressor(
    c: Importer,
    x: T,
    *,
    aggregate_function: str = "SUM",
    base_values: Sequence[float] = (),
    base_values_as_tensor: Array | None = None,
    n_targets: int = 1,
    nodes_falsenodeids: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
    nodes_hitrates: Sequence[float] = (),
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: Sequence[str] = (),
    nodes_nodeids: Sequence[int] = (),
    nodes_treeids: Sequence[int] = (),
    nodes_truenodeids: Sequence[int] = (),
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: Array | None = None,
    post_transform: str = "NONE",
    target_ids: Sequence[int] = (),
    target_nodeids: Sequence[int] = (),
    target_treeids: Sequence[int] = (),
    target_weights: Sequence[float] = (),
    target_weights_as_tensor: Array | None = None,
) -> Any:
    forest = forest_of(
        tree_ids=nodes_treeids, node_ids=nodes_nodeids, features=nodes_featureids, modes=nodes_modes,
        thresholds=_numbers(nodes_values, nodes_values_as_tensor), yes=nodes_truenodeids, no=nodes_falsenodeids,
        missing=nodes_missing_value_tracks_true, entry_trees=target_treeids, entry_nodes=target_nodeids,
        targets=target_ids, weights=_numbers(target_weights, target_weights_as_tensor), size=n_targets,
        once=n_targets == 1,  # as in ONNX Runtime; skl2onnx repeats the number of a leaf for each class
    )  # fmt: skip
    found = _aggregated(c, x, forest, n_targets, aggregate_function)
    base = _numbers(base_values, base_values_as_tensor)
    found = ops.add(found, stored(c, found, base, n_targets)) if base.size else found
    return cast_to(_of_targets(found, n_targets, post_transform), float32)


@operator("TreeEnsembleClassifier")
def TreeEnsembleClassifier(
    c: Importer,
    x: T,
    *,
    base_values: Sequence[float] = (),
    base_values_as_tensor: Array | None = None,
    class_ids: Sequence[int] = (),
    class_nodeids: Sequence[int] = (),
    class_treeids: Sequence[int] = (),
    class_weights: Sequence[float] = (),
    class_weights_as_tensor: Array | None = None,
    classlabels_int64s: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    nodes_falsenodeids: Sequence[int] = (),
    nodes_featureids: Sequence[int] = (),
    nodes_hitrates: Sequence[float] = (),
    nodes_hitrates_as_tensor: Array | None = None,
    nodes_missing_value_tracks_true: Sequence[int] = (),
    nodes_modes: Sequence[str] = (),
    nodes_nodeids: Sequence[int] = (),
    nodes_treeids: Sequence[int] = (),
    nodes_truenodeids: Sequence[int] = (),
    nodes_values: Sequence[float] = (),
    nodes_values_as_tensor: Array | None = None,
    post_transform: str = "NONE",
) -> Any:
    labels = Labels(classlabels_int64s, classlabels_strings)
    classes, voted = len(labels), {*class_ids}
    binary = classes == 2 and len(voted) == 1
    weights = _numbers(class_weights, class_weights_as_tensor)
    base = _numbers(base_values, base_values_as_tensor)
    if classes < 2 or (binary and (voted != {0} or base.size > 1)):
        raise ModelError(
            f"votes for {len(voted)} of {classes} classes with {base.size} base values have no agreed meaning; "
            "expected two classes or more, and of two either both or the first"
        )
    size = 1 if binary else classes
    forest = forest_of(
        tree_ids=nodes_treeids, node_ids=nodes_nodeids, features=nodes_featureids, modes=nodes_modes,
        thresholds=_numbers(nodes_values, nodes_values_as_tensor), yes=nodes_truenodeids, no=nodes_falsenodeids,
        missing=nodes_missing_value_tracks_true, entry_trees=class_treeids, entry_nodes=class_nodeids,
        targets=class_ids, weights=weights, size=size,
    )  # fmt: skip
    scores = _aggregated(c, x, forest, size)
    scores = ops.add(scores, stored(c, scores, base, size)) if base.size else scores
    if not binary:
        return labels.of(c, best(scores)), cast_to(transformed(scores, post_transform), float32)
    if (weights >= 0).all():  # shares of the votes
        return labels.of(c, above(scores, 0.5)), cast_to(both_classes(scores, post_transform), float32)
    given = ops.concat(ops.neg(scores), scores, axis=1) if post_transform == "NONE" else None
    given = both_classes(scores, post_transform) if given is None else given
    return labels.of(c, above(scores, 0.0)), cast_to(given, float32)
