"""Converters of support vector machines: kernels with the support vectors are products."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dataflow import GraphBuilder, Value, bool_, float32, int64, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import cast_to, iota, number, slice_axis
from ...file.records import Array
from ...importer import Importer
from ...tensor import Tensor
from .scores import DOMAIN, Labels, best, both_classes, rows_of, stored, transformed

T = Tensor
operator = Collector(DOMAIN)


def _kernel(c: Importer, x: Value, vectors: Array, kind: str, parameters: Sequence[float]) -> Any:
    """(rows, vectors): the kernel of each row with each vector."""
    if kind != "LINEAR" and len(parameters) != 3:
        raise ModelError(f"kernel_params are {tuple(parameters)}; expected gamma, coef0 and degree")
    if kind == "RBF":
        return _rbf(c, x, vectors, parameters[0])
    product = ops.matmul(x, stored(c, x, vectors.T, *vectors.T.shape))
    if kind == "LINEAR":
        return product
    gamma, offset, degree = parameters
    inner = ops.add(ops.mul(product, gamma), offset)
    return ops.tanh(inner) if kind == "SIGMOID" else ops.pow(inner, degree)


def _rbf(c: Importer, x: Value, vectors: Array, gamma: float) -> Any:
    """exp(-gamma |x - v|^2), the square by its three products; about the mean of the vectors, where least cancels."""
    mean = vectors.astype(np.float64).mean(axis=0)
    about = vectors - mean
    x = ops.sub(x, stored(c, x, mean, len(mean)))
    squares = ops.reduce_sum(ops.mul(x, x), axes=(1,), keepdims=1)
    products = ops.matmul(x, stored(c, x, -2 * about.T, *about.T.shape))
    distance = ops.add(ops.add(products, squares), stored(c, x, (about * about).sum(axis=1), len(about)))
    distance = ops.where(ops.is_inf(squares), squares, distance)  # products may be as infinite, of the other sign
    return ops.exp(ops.mul(ops.maximum(distance, 0.0), -gamma))


def _vectors(numbers: Sequence[float], count: int) -> Array:
    """Support vectors, one per row."""
    if count < 1 or len(numbers) % count or not numbers:
        raise ModelError(f"{len(numbers)} numbers are no {count} support vectors")
    return np.array(numbers, np.float32).reshape(count, -1)


@operator("SVMRegressor")
def SVMRegressor(
    c: Importer,
    x: T,
    *,
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
) -> Any:
    if post_transform != "NONE":
        raise ModelError(f"post_transform {post_transform} of one target has no agreed meaning")
    value = rows_of(c, x)
    terms = value
    if n_supports:
        terms = _kernel(c, value, _vectors(support_vectors, n_supports), kernel_type, kernel_params)
    score = ops.matmul(terms, stored(c, value, coefficients, len(coefficients), 1))
    score = ops.add(score, stored(c, value, rho, 1))
    if one_class:
        score = ops.where(ops.greater(score, 0.0), ops.add(ops.mul(score, 0.0), 1.0), ops.sub(ops.mul(score, 0.0), 1.0))
    return cast_to(score, float32)


@operator("SVMClassifier")
def SVMClassifier(
    c: Importer,
    x: T,
    *,
    classlabels_ints: Sequence[int] = (),
    classlabels_strings: Sequence[str] = (),
    coefficients: Sequence[float] = (),
    kernel_params: Sequence[float] = (),
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Sequence[float] = (),
    prob_b: Sequence[float] = (),
    rho: Sequence[float] = (),
    support_vectors: Sequence[float] = (),
    vectors_per_class: Sequence[int] = (),
) -> Any:
    labels = Labels(classlabels_ints, classlabels_strings)
    classes = len(labels)
    if not vectors_per_class or len(vectors_per_class) != classes or classes < 2 or min(vectors_per_class) < 0:
        raise ModelError(
            f"it has {classes} classes and support vectors of {len(vectors_per_class)}; expected two classes or more, "
            "with vectors of each"
        )
    value = rows_of(c, x)
    vectors = _vectors(support_vectors, sum(vectors_per_class))
    pairs = list(itertools.combinations(range(classes), 2))
    weights = _pair_weights(coefficients, vectors_per_class, pairs)
    kernels = _kernel(c, value, vectors, kernel_type, kernel_params)
    scores = ops.add(ops.matmul(kernels, stored(c, value, weights, *weights.shape)), stored(c, value, rho, len(pairs)))
    index = best(_votes(c, scores, pairs, classes))
    if prob_a:
        scores = _probabilities(c, scores, pairs, classes, prob_a, prob_b)
    elif classes == 2:
        return labels.of(c, index), cast_to(_of_two(scores, post_transform), float32)
    return labels.of(c, index), cast_to(transformed(scores, post_transform), float32)


def _of_two(score: Value, transform: str) -> Any:
    """(rows, 2): the score of two classes, which is positive for the first, with its opposite before it."""
    if transform == "NONE":
        return ops.concat(ops.neg(score), score, axis=1)
    return both_classes(score, transform)


def _pair_weights(coefficients: Sequence[float], counts: Sequence[int], pairs: Sequence[tuple[int, int]]) -> Array:
    """(vectors, pairs): what each support vector adds to the decision between two classes, as libsvm stores it."""
    total = sum(counts)
    if len(coefficients) != (len(counts) - 1) * total:
        raise ModelError(f"it has {len(coefficients)} coefficients; expected {len(counts) - 1} x {total}")
    table = np.array(coefficients, np.float32).reshape(-1, total)
    ends = np.cumsum(counts)
    own = [slice(int(end) - count, int(end)) for end, count in zip(ends, counts, strict=True)]
    found = np.zeros((total, len(pairs)), np.float32)
    for column, (i, j) in enumerate(pairs):
        found[own[i], column] = table[j - 1, own[i]]
        found[own[j], column] = table[i, own[j]]
    return found


def _votes(c: Importer, scores: Value, pairs: Sequence[tuple[int, int]], classes: int) -> Any:
    """(rows, classes): how many pairs each class wins."""
    first, second = (np.eye(classes)[[pair[i] for pair in pairs]] for i in (0, 1))
    wins = ops.cast(ops.greater(scores, 0.0), to=scores.type.dtype)
    moved = ops.matmul(wins, stored(c, scores, first - second, *first.shape))
    return ops.add(moved, stored(c, scores, second.sum(axis=0), classes))


# ---- probabilities ------------------------------------------------------------------------------------


def _probabilities(
    c: Importer,
    scores: Value,
    pairs: Sequence[tuple[int, int]],
    classes: int,
    a: Sequence[float],
    b: Sequence[float],
) -> Any:
    """(rows, classes): of a class by those of pairs, as in libsvm: Wu, Lin, Weng 2004, the second method."""
    scaled = ops.add(ops.mul(scores, stored(c, scores, a, len(pairs))), stored(c, scores, b, len(pairs)))
    wins = ops.minimum(ops.maximum(ops.sigmoid(ops.neg(scaled)), 1e-7), 1 - 1e-7)
    losses = ops.sub(1.0, wins)
    columns: dict[tuple[int, int], Any] = {}
    for index, (i, j) in enumerate(pairs):
        columns[i, j] = slice_axis(wins, 1, index, index + 1)
        columns[j, i] = slice_axis(losses, 1, index, index + 1)
    return _coupled(c, columns, classes)


def _coupled(c: Importer, r: dict[tuple[int, int], Any], k: int) -> Any:
    """The p that minimize the sum of (r_ji p_i - r_ij p_j)^2, by libsvm's iterations: at most 100, or ``k``."""
    q: list[list[Any]] = []
    for t in range(k):
        squares = [ops.mul(r[j, t], r[j, t]) for j in range(k) if j != t]
        q.append([_sum(squares) if j == t else ops.neg(ops.mul(r[j, t], r[t, j])) for j in range(k)])
    table = ops.concat(*(cell for row in q for cell in row), axis=1)
    first = ops.add(ops.mul(slice_axis(table, 1, 0, k), 0.0), 1 / k)
    bodies = []
    builds: tuple[tuple[str, Any], ...] = (("step", functools.partial(_iterated, k=k)), ("done", _left))
    for name, build in builds:
        inner = GraphBuilder(name)
        given = [inner.input(n, v.type.dtype, v.type.shape) for n, v in (("p", first), ("q", table))]
        for output, value in zip(("next", "goes"), build(inner, *given), strict=True):
            inner.output(output, value)
        bodies.append(inner.build())
    g = GraphBuilder("coupling")
    p, goes = g.input("p", first.type.dtype, first.type.shape), g.input("goes", bool_, ())
    g.input("iteration", int64, ())
    cells = g.input("q", table.type.dtype, table.type.shape)
    made = g.add(ops.if_, [goes, p, cells], {}, bodies=tuple(bodies)).outputs
    for output, value in zip(("next", "on"), made, strict=True):
        assert value is not None
        g.output(output, value)
    operands = [first, number(c.builder, True, bool_), iota(c.builder, max(100, k)), table]
    attributes = {"n_carries": 2, "n_xs": 1, "reverse": 0}
    return c.builder.add(ops.scan, operands, attributes, bodies=(g.build(),)).outputs[0]


def _left(g: GraphBuilder, probabilities: Value, cells: Value) -> tuple[Any, Any]:
    """What follows the last iteration."""
    return ops.copy(probabilities), number(g, False, bool_)


def _sum(terms: Sequence[Any]) -> Any:
    return functools.reduce(ops.add, terms)


def _iterated(g: GraphBuilder, probabilities: Value, cells: Value, k: int) -> tuple[Any, Any]:
    """One iteration over all classes, and whether another follows; rows that are done stay as they are."""
    q = [[slice_axis(cells, 1, t * k + j, t * k + j + 1) for j in range(k)] for t in range(k)]
    p = [slice_axis(probabilities, 1, t, t + 1) for t in range(k)]
    qp = [_sum([ops.mul(q[t][j], p[j]) for j in range(k)]) for t in range(k)]
    pqp = _sum([ops.mul(p[t], qp[t]) for t in range(k)])
    errors = functools.reduce(ops.maximum, [ops.abs(ops.sub(value, pqp)) for value in qp])
    done = ops.less(errors, 0.005 / k)
    for t in range(k):
        step = ops.div(ops.sub(pqp, qp[t]), q[t][t])
        scale = ops.add(step, 1.0)
        moved = ops.mul(step, ops.add(ops.mul(step, q[t][t]), ops.mul(qp[t], 2.0)))
        pqp = ops.div(ops.add(pqp, moved), ops.mul(scale, scale))
        p = [ops.div(ops.add(value, step) if j == t else value, scale) for j, value in enumerate(p)]
        qp = [ops.div(ops.add(qp[j], ops.mul(step, q[t][j])), scale) for j in range(k)]
    left = ops.reduce_sum(ops.cast(ops.logical_not(done), to=int64), axes=(0, 1), keepdims=0)
    return ops.where(done, probabilities, ops.concat(*p, axis=1)), ops.greater(left, 0)
