"""Loops as the nodes of their iterations, where shapes change from one to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import Value, bool_, int64, ops
from dataflow.errors import ModelError

from .emit import slice_axis, stack
from .file.records import GraphRecord, passed_on_as, shapes_of_progress, stored_by
from .importer import Importer
from .shape_eval import Known, filled
from .tensor import Tensor

MOST_UNROLLED = 1 << 12  # iterations
_MANY = 1 << 9  # of all loops of a graph for some inputs alone


def unrolled(
    c: Importer,
    limit: Tensor | None,
    condition: Tensor | None,
    operands: Sequence[Tensor],
    body: GraphRecord,
    rows: int,
) -> Any:
    """A loop as the nodes of its iterations, which may differ in shapes; how many there are is known or asked for."""
    count = None if limit is None else c.ints(limit, "the number of iterations")[0]
    carried: list[Any] = list(operands)
    rows_of: list[list[Any]] = [[] for _ in range(rows)]
    go = condition
    index, shapes = 0, shapes_of_progress(body)
    while (count is None or index < count) and (go is None or bool(c.numbers(go, "the condition").reshape(())[()])):
        if index == 0 and count is None and _is_endless(body):
            raise ModelError("nothing ends it: it has no number of iterations, and its body returns that it goes on")
        if index == MOST_UNROLLED:
            raise ModelError(f"it makes more than {MOST_UNROLLED} iterations, whose shapes differ")
        _count(c, (limit, condition, *operands))
        pairs = zip(shapes, (index, True), (int64, bool_), strict=True)
        at, true = (Known(filled(shape, n), dtype) for shape, n, dtype in pairs)
        go, *results = c.inlined(body, [at, true, *carried])
        carried = results[: len(carried)]
        for row, result in zip(rows_of, results[len(carried) :], strict=True):
            row.append(c.value(result))
        index += 1
    return (*carried, *map(stacked, rows_of))


def _is_endless(body: GraphRecord) -> bool:
    """Whether the condition that a body returns is the one that it gets, which is true, or a tensor that is stored."""
    name = passed_on_as(body.outputs[0], body.nodes)
    made = next((stored_by(node) for node in body.nodes if name in node.outputs), None)
    stored = body.initializers.get(name, made)
    return name in [*body.inputs][1:2] or (stored is not None and stored.dtype == bool and bool(stored.all()))


def _count(c: Importer, operands: Sequence[Tensor | None]) -> None:
    """Counts an iteration of a graph for some inputs alone. Where they are many, a session runs them on the host.

    It is asked for something that the loop reads, as if that decided; whoever wants a graph computes it, and goes on.
    """
    outermost = c.outermost
    outermost.iterations += 1
    if outermost.iterations > outermost.most_iterations:
        raise ModelError(f"with this loop more than {outermost.most_iterations} iterations become nodes")
    if outermost.iterations < _MANY or not outermost.types:
        return
    for tensor in operands:
        if tensor is None or tensor.value is None or outermost.builder.producer(c.outer_value(tensor)) is None:
            continue  # nothing computes it
        if c.outer_value(tensor).name not in outermost.values:
            c.ask(tensor, f"{outermost.iterations} iterations, whose shapes differ, of a loop over", repeats=True)
        return


def unrolled_scan(
    c: Importer, carries: Sequence[Value], xs: Sequence[Value], body: GraphRecord, reverse: int
) -> list[Any]:
    """The results of a scan as the nodes of its iterations."""
    count = int(xs[0].type.shape[0])
    if count > MOST_UNROLLED:
        raise ModelError(f"it makes {count} iterations, whose shapes differ; expected at most {MOST_UNROLLED}")
    carried: list[Any] = list(carries)
    rows_of: list[list[Any]] = [[] for _ in body.outputs[len(carried) :]]
    for index in reversed(range(count)) if reverse else range(count):
        _count(c, [Tensor(value.name, value) for value in (*carries, *xs)])
        rows = [ops.reshape(slice_axis(x, 0, index, index + 1), shape=x.type.shape[1:]) for x in xs]
        results = c.inlined(body, [*carried, *rows])
        carried = results[: len(carried)]
        for row, result in zip(rows_of, results[len(carried) :], strict=True):
            row.insert(0 if reverse else len(row), c.value(result))
    last = [c.value(result) for result in carried] if count else carries
    return [*last, *map(stacked, rows_of)]


def stacked(rows: Sequence[Value]) -> Any:
    """Results of iterations along a new first axis.

    Raises:
        ModelError: there are none.
    """
    if not rows:
        raise ModelError("it makes no iteration, so the shape of what it stacks is not known")
    return stack(rows)
