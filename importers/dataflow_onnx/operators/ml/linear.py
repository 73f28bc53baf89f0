"""Converters of linear models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import Dim, Value, float32, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to
from ...importer import Importer
from ...tensor import Tensor
from .scores import DOMAIN, Labels, above, best, both_classes, rows_of, stored, transformed

T = Tensor
operator = Collector(DOMAIN)


def _scores(c: Importer, x: Value, coefficients: Sequence[float], intercepts: Sequence[float], count: int) -> Any:
    """(rows, count): products with the rows of coefficients, and intercepts."""
    if count < 1 or len(coefficients) % count:
        raise ModelError(f"it has {len(coefficients)} coefficients for {count} targets")
    features = len(coefficients) // count
    weight = stored(c, x, coefficients, count, features, attribute="coefficients")
    scores = ops.matmul(x, ops.transpose(weight, perm=(1, 0)))
    return ops.add(scores, stored(c, x, intercepts, count, attribute="intercepts")) if intercepts else scores


@operator("LinearRegressor")
def LinearRegressor(
    c: Importer,
    x: T,
    *,
    coefficients: Sequence[float] = (),
    intercepts: Sequence[float] = (),
    post_transform: str = "NONE",
    targets: int = 1,
) -> Any:
    if targets == 1 and post_transform not in ("NONE", "PROBIT"):
        raise ModelError(f"post_transform {post_transform} of one target has no agreed meaning")
    scores = _scores(c, rows_of(c, x), coefficients, intercepts, targets)
    return cast_to(transformed(scores, post_transform), float32)


@operator("LinearClassifier")
def LinearClassifier(
    c: Importer,
    x: T,
    *,
    coefficients: Sequence[float],
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    intercepts: Sequence[float] = (),
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> Any:
    value = rows_of(c, x)
    features = value.type.shape[1]
    if not intercepts and isinstance(features, Dim):
        raise ModelError("the number of classes isn't known: it has no intercepts, and the number of features is named")
    count = len(intercepts) or len(coefficients) // max(int(features), 1)
    scores = _scores(c, value, coefficients, intercepts, count)
    labels = Labels(classlabels_ints, classlabels_strings, max(count, 2))
    named = bool(classlabels_ints or classlabels_strings)
    if len(labels) != max(count, 2):
        raise ModelError(f"it has {len(labels)} labels for {max(count, 2)} classes")
    if count > 1:
        return labels.of(c, best(scores)), cast_to(transformed(scores, post_transform), float32)
    if not named and post_transform != "NONE":
        raise ModelError(f"post_transform {post_transform} of one score without labels has no agreed meaning")
    given = both_classes(scores, post_transform) if named else scores
    return labels.of(c, above(scores, 0.0)), cast_to(given, float32)
