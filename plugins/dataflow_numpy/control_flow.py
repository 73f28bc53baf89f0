"""Reference of nodes with bodies: the body is evaluated node by node, iteration by iteration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dataflow import Graph
from dataflow.errors import InputError

from .arrays import Array, Attributes, Code

Evaluate = Callable[[Graph, Mapping[str, Array], Any], dict[str, Array]]
"""The outputs of a body by name, from its inputs by name, in the dtype given for floats or in their own (None)."""


def _run(evaluate: Evaluate, body: Graph, operands: Sequence[Array]) -> list[Array]:
    feeds = {value.name: array for value, array in zip(body.inputs, operands, strict=True)}
    results = evaluate(body, feeds, np.float64 if _is_doubled(body, operands) else None)
    return [results[name] for name in body.outputs]


def _is_doubled(body: Graph, operands: Sequence[Array]) -> bool:
    """Whether floats are computed in float64 where the body has others."""
    return any(a.dtype == np.float64 != v.type.dtype.numpy for a, v in zip(operands, body.inputs, strict=True))


def _rows(body: Graph, operands: Sequence[Array], count: int, first: int) -> list[Array]:
    """Zeros for ``count`` rows of each result of a body from ``first`` on."""
    doubled = _is_doubled(body, operands)
    types = [v.type for v in body.outputs.values()][first:]
    dtypes = [np.float64 if doubled and t.dtype.numpy.kind == "f" else t.dtype.numpy for t in types]
    return [np.zeros((count, *t.sizes), dtype) for t, dtype in zip(types, dtypes, strict=True)]


def _scan(evaluate: Evaluate, attributes: Attributes, *operands: Array, bodies: tuple[Graph, ...]) -> tuple[Array, ...]:
    (body,) = bodies
    n_carries, n_xs = attributes["n_carries"], attributes["n_xs"]
    carries = list(operands[:n_carries])
    xs, captures = operands[n_carries : n_carries + n_xs], operands[n_carries + n_xs :]
    iterations = len(xs[0])
    rows = _rows(body, operands, iterations, n_carries)
    saved = [np.empty((iterations, *c.shape), c.dtype) for c in carries]
    for iteration in reversed(range(iterations)) if attributes["reverse"] else range(iterations):
        for kept, carry in zip(saved, carries, strict=True):
            kept[iteration] = carry
        results = _run(evaluate, body, [*carries, *(x[iteration] for x in xs), *captures])
        carries = results[:n_carries]
        for row, result in zip(rows, results[n_carries:], strict=True):
            row[iteration] = result
    return (*carries, *rows, *saved)


def _if(
    evaluate: Evaluate, attributes: Attributes, condition: Array, *captures: Array, bodies: tuple[Graph, ...]
) -> tuple[Array, ...]:
    return tuple(_run(evaluate, bodies[0] if condition else bodies[1], captures))


def _loop(evaluate: Evaluate, attributes: Attributes, *operands: Array, bodies: tuple[Graph, ...]) -> tuple[Array, ...]:
    (body,) = bodies
    n_carries, limit = attributes["n_carries"], attributes["max_iterations"]
    wanted, condition = int(operands[0]), bool(operands[1])
    carries, captures = list(operands[2 : 2 + n_carries]), operands[2 + n_carries :]
    rows = _rows(body, operands, limit, 1 + n_carries)
    iteration = 0
    while iteration < wanted and condition:
        if iteration >= limit:
            raise InputError(
                f"the loop makes more than {limit} iterations; raise max_iterations, or correct its condition"
            )
        start = [np.asarray(iteration, np.int64), np.asarray(condition, np.bool_)]
        results = _run(evaluate, body, [*start, *carries, *captures])
        condition, carries = bool(results[0]), results[1 : 1 + n_carries]
        for row, result in zip(rows, results[1 + n_carries :], strict=True):
            row[iteration] = result
        iteration += 1
    return (np.asarray(iteration, np.int64), *carries, *rows)


def kernels(evaluate: Evaluate) -> dict[str, Code]:
    """The kernels of nodes with bodies, which ``evaluate`` runs: it needs every kernel, these too."""
    codes: dict[str, Code] = {"scan": _scan, "if_": _if, "loop": _loop}
    return {name: partial(code, evaluate) for name, code in codes.items()}
