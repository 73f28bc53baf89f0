"""Converters of operators with bodies: Scan, Loop and If."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dataflow import Dim, Graph, TensorType, Value, bool_, int64, ops
from dataflow.errors import ModelError
from dataflow.plugin import Size, least_size

from ..accumulators import accumulators, appended, hoisted, stacking
from ..converters import Collector
from ..emit import iota, moved, number, slice_axis
from ..file.records import GraphRecord, passed_on_as
from ..importer import Importer
from ..iteration_count import iterations
from ..operands import Undetermined, repeating
from ..shape_eval import axis_in
from ..subgraphs import Body
from ..tensor import NotATensor, Tensor
from ..unrolled import MOST_UNROLLED, stacked, unrolled, unrolled_scan

T = Tensor
operator = Collector()


def _captures(c: Importer, *bodies: Body) -> list[Value]:
    """What bodies read of the graph around them; each body gets all of it."""
    names = list(dict.fromkeys(name for body in bodies for name in body.captured))
    for body in bodies:
        body.take(names)
    return [c.data(c.tensors[name]) for name in names]


def _reversed(value: Value) -> Any:
    """With the entries of the first axis in reverse order."""
    return slice_axis(value, 0, value.type.shape[0] - 1, -1, -1)


def _directions(given: Sequence[int] | None, count: int, what: str) -> list[int]:
    found = [0] * count if given is None else list(given)
    if len(found) != count or any(d not in (0, 1) for d in found):
        raise ModelError(f"{what} is {tuple(found)}; expected {count} times 0 or 1")
    return found


def _axes(given: Sequence[int] | None, count: int, what: str) -> list[int]:
    found = [0] * count if given is None else list(given)
    if len(found) != count:
        raise ModelError(f"{what} is {tuple(found)}; expected {count} axes")
    return found


@operator("Scan", 8)
def Scan_8(
    c: Importer,
    lengths: T | None,
    *operands: T,
    body: GraphRecord,
    num_scan_inputs: int,
    directions: Sequence[int] | None = None,
) -> Any:
    """A scan per example: the first axis is the batch. What lies behind the length of an example is 0."""
    values = [c.value(t) for t in operands]
    first = values[-1].type.shape if values else ()
    if len(first) < 2 or not 1 <= num_scan_inputs <= len(values):
        raise ModelError(
            f"num_scan_inputs is {num_scan_inputs}, with {len(values)} inputs; expected (batch, length, …)"
        )
    if isinstance(first[0], Dim):
        c.ask(operands[-1], "the number of examples in")
    if first[0] > MOST_UNROLLED:
        raise ModelError(f"it has {first[0]} examples; expected at most {MOST_UNROLLED}")
    made = [first[1]] * first[0] if lengths is None else c.ints(lengths, "the lengths")
    if len(made) != first[0]:
        raise ModelError(f"there are {len(made)} lengths for {first[0]} examples")
    carried = len(values) - num_scan_inputs
    results: list[list[Value]] = [[] for _ in body.outputs]
    for index, length in enumerate(made):
        rows = [ops.reshape(slice_axis(v, 0, index, index + 1), shape=v.type.shape[1:]) for v in values]
        rows[carried:] = [slice_axis(row, 0, 0, length) for row in rows[carried:]]
        given = (Tensor(t.name, row) for t, row in zip(operands, rows, strict=True))
        found = Scan(c, *given, body=body, num_scan_inputs=num_scan_inputs, scan_input_directions=directions)
        for row, (at, value) in zip(results, enumerate(found), strict=True):
            if at >= carried and length != first[1]:
                value = ops.pad(value, pads=(*(0,) * value.type.rank, first[1] - length, *(0,) * (value.type.rank - 1)))
            row.append(value)
    return tuple(map(stacked, results))


@operator("Scan", 9)
def Scan(
    c: Importer,
    *operands: T,
    body: GraphRecord,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
) -> Any:
    carried = len(operands) - num_scan_inputs
    rows = len(body.outputs) - carried
    if num_scan_inputs < 1 or carried < 0 or rows < 0:
        raise ModelError(
            f"num_scan_inputs is {num_scan_inputs}, with {len(operands)} inputs and {len(body.outputs)} results of the "
            "body; expected at least one, and a result for every carried value"
        )
    carries, xs = [c.value(t) for t in operands[:carried]], [c.value(t) for t in operands[carried:]]
    forth = _directions(scan_input_directions, len(xs), "scan_input_directions")
    back = _directions(scan_output_directions, rows, "scan_output_directions")
    axes = _axes(scan_input_axes, len(xs), "scan_input_axes")
    xs = [moved(x, axis_in(axis, x.type.rank), 0) for x, axis in zip(xs, axes, strict=True)]
    reverse = int(all(forth))  # the op runs backwards itself, without a copy
    xs = [x if d == reverse else _reversed(x) for x, d in zip(xs, forth, strict=True)]
    row_types = [TensorType(x.type.dtype, x.type.shape[1:]) for x in xs]
    try:
        inner = Body(c, body, [*(v.type for v in carries), *row_types])
        captures = _captures(c, inner)
        attributes = {"n_carries": carried, "n_xs": len(xs), "reverse": reverse}
        results = _results(c, ops.scan, [*carries, *xs, *captures], attributes, [inner.graph()])
    except (NotATensor, Undetermined) as error:  # it reads a sequence, or what it computes decides about shapes
        if (isinstance(error, Undetermined) and error.value.builder is c.builder) or not c.outermost.unrolls:
            raise
        if isinstance(xs[0].type.shape[0], Dim):
            c.ask(operands[carried], "the number of iterations over", repeats=True)
        with repeating():
            results = unrolled_scan(c, carries, xs, body, reverse)
    targets = _axes(scan_output_axes, rows, "scan_output_axes")
    stacked = []
    for value, direction, axis in zip(results[carried : carried + rows], back, targets, strict=True):
        straight = value if direction == reverse else _reversed(value)
        stacked.append(moved(straight, 0, axis_in(axis, value.type.rank)))
    return (*results[:carried], *stacked)


def _results(
    c: Importer, op: Any, operands: Sequence[Value], attributes: dict[str, Any], bodies: Sequence[Graph]
) -> list[Any]:
    return list(c.builder.add(op, operands, attributes, bodies=tuple(bodies)).outputs)


@operator("Loop")
def Loop(c: Importer, limit: T | None = None, condition: T | None = None, *operands: T, body: GraphRecord) -> Any:
    rows = len(body.outputs) - 1 - len(operands)
    if rows < 0 or len(body.inputs) != 2 + len(operands):
        raise ModelError(
            f"the body has {len(body.inputs)} inputs and {len(body.outputs)} results for {len(operands)} carried values"
        )
    kept = _passed_on(body)
    with _known_as(c, {name: operands[position] for position, name in kept.items()}):
        changing = [t for position, t in enumerate(operands) if position not in kept]
        results = iter(_accumulated(c, limit, condition, changing, _without(body, kept), rows))
    carried = [t if position in kept else next(results) for position, t in enumerate(operands)]
    return (*carried, *results)


def _passed_on(body: GraphRecord) -> dict[int, str]:
    """By its position, the input of each carried value that no iteration changes: a weight that a converter carries."""
    names = {name: name for name in body.inputs}
    for node in body.nodes:
        if node.op == "Identity" and not node.domain and node.inputs[0] in names:
            names[node.outputs[0]] = names[node.inputs[0]]
    pairs = enumerate(zip([*body.inputs][2:], body.outputs[1:], strict=False))
    return {position: name for position, (name, result) in pairs if names.get(result) == name}


def _without(body: GraphRecord, kept: Mapping[int, str]) -> GraphRecord:
    """The body, reading some values of the graph around it instead of carrying them."""
    inputs = {name: type_ for name, type_ in body.inputs.items() if name not in kept.values()}
    outputs = tuple(name for position, name in enumerate(body.outputs) if position - 1 not in kept)
    return dataclasses.replace(body, inputs=inputs, outputs=outputs)


@contextlib.contextmanager
def _known_as(c: Importer, given: Mapping[str, T]) -> Iterator[None]:
    """Tensors of a graph, under names that a body in it reads."""
    hidden = {name: c.tensors[name] for name in given if name in c.tensors}
    c.tensors.update(given)
    try:
        yield
    finally:
        for name in given:
            del c.tensors[name]
        c.tensors.update(hidden)


def _accumulated(
    c: Importer, limit: T | None, condition: T | None, operands: Sequence[T], body: GraphRecord, rows: int
) -> Any:
    """A loop that stacks what it only appends, where it can be one node then."""
    apart = hoisted(body)
    found = {p: one for p, one in accumulators(apart).items() if (one.axis is None) == operands[p].is_sequence}
    others = [t for position, t in enumerate(operands) if position not in found]
    try:
        if found:
            made = _loop(c, limit, condition, others, stacking(apart, found), rows + len(found))
            kept, stacked = iter(made[: len(others)]), iter(made[len(others) + rows :])
            pairs = ((operand, found.get(position)) for position, operand in enumerate(operands))
            carried = [next(kept) if one is None else appended(c, one, t, next(stacked)) for t, one in pairs]
            return (*carried, *made[len(others) : len(others) + rows])
    except ModelError as error:
        if isinstance(error, Undetermined) and error.value.builder is c.builder:
            raise
    return _iterated(c, limit, condition, operands, body, rows)


def _iterated(
    c: Importer, limit: T | None, condition: T | None, operands: Sequence[T], body: GraphRecord, rows: int
) -> Any:
    try:
        return _loop(c, limit, condition, operands, body, rows)
    except ModelError as error:  # shapes that change from one iteration to the next, or decide about something else
        if (isinstance(error, Undetermined) and error.value.builder is c.builder) or not c.outermost.unrolls:
            raise
        with repeating():
            return unrolled(c, limit, condition, operands, body, rows)


def _loop(
    c: Importer, limit: T | None, condition: T | None, operands: Sequence[T], body: GraphRecord, rows: int
) -> Any:
    """A loop as one node: the types of what it carries stay."""
    carries = [c.value(t) for t in operands]
    types = [TensorType(int64, ()), *(v.type for v in carries)]
    count = None
    if limit is not None and (limit.known is not None or c.static.is_static(c.value(limit))):
        count = c.sizes(limit, "the number of iterations")[0]
    if isinstance(count, int):
        count = max(count, 0)
    made = iterations(c, condition, operands, body, types)
    reads = bool(rows) and limit is not None and c.around is None  # instead of a loop with memory for the most
    passed = condition if made is None and reads and condition is not None and _passes_condition_on(body) else None
    if passed is not None or (reads and made == -1 and count is None):
        assert limit is not None
        most: Any = ops.maximum(c.value(limit), number(c.builder, 0, int64))
        if passed is not None:  # what it is at first, it is in every iteration
            most = ops.where(ops.reshape(c.value(passed), shape=()), most, number(c.builder, 0, int64))
        made = c.count(most, "number of iterations")
    elif made is not None and limit is not None:
        made = count if made == -1 or count is None else least_size((made, count))
    if made is not None and made != -1:
        inner = Body(c, body, types, loop=True, always=True)
        _check_carried(inner, carries)
        captures = _captures(c, inner)
        index = iota(c.builder, made)
        attributes = {"n_carries": len(carries), "n_xs": 1, "reverse": 0}
        graph = inner.graph(results=[*range(1, len(body.outputs))], order=[*range(1, len(types)), 0])
        found = _results(c, ops.scan, [*carries, index, *captures], attributes, [graph])
        return tuple(found[: len(carries) + rows])
    if rows and (limit is None or (isinstance(count, int) and count > _MOST_STACKED)):
        raise ModelError("its number of iterations depends on data alone and it stacks results; expected a limit")
    inner = Body(c, body, [types[0], TensorType(bool_, ()), *types[1:]], loop=True)
    _check_carried(inner, carries)
    if rows and limit is not None and not isinstance(count, int):
        count = max(c.ints(limit, "the number of iterations")[0], 0)
    on = inner.inner.value(inner.results[0])
    if on.type.rank:  # Paddle's converter writes conditions of one element
        inner.results[0] = Tensor(inner.results[0].name, ops.reshape(on, shape=()))
    captures = _captures(c, inner)
    most = count if isinstance(count, int) else (1 << 31) - 1
    first = c.value(limit) if limit is not None else number(c.builder, most, int64)
    go = c.value(condition) if condition is not None else number(c.builder, True, bool_)
    start = [ops.reshape(v, shape=()) if v.type.rank else v for v in (first, go)]
    attributes = {"n_carries": len(carries), "max_iterations": most}
    found = _results(c, ops.loop, [*start, *carries, *captures], attributes, [inner.graph()])
    stacked = found[1 + len(carries) : 1 + len(carries) + rows]
    if stacked:
        made = c.count(found[0], "number of iterations")
        stacked = [slice_axis(row, 0, 0, made) for row in stacked]
    return (*found[1 : 1 + len(carries)], *stacked)


def _passes_condition_on(body: GraphRecord) -> bool:
    """Whether each iteration gives the condition on that it got."""
    return passed_on_as(body.outputs[0], body.nodes) == [*body.inputs][1]


_MOST_STACKED = 1 << 24  # iterations of which the last is not known; there is memory for the results of all


def _check_carried(inner: Body, carries: Sequence[Value]) -> None:
    for given, result in zip(carries, inner.results[1:], strict=False):
        if not _may_be(inner.outer, given.type, result.type):
            raise ModelError(f"a carried value is {given.type}, and {result.type} after an iteration")


def _may_be(c: Importer, a: TensorType, b: TensorType) -> bool:
    """Whether two types can be one, once sizes are known; with those that are read from data nothing is tried again."""

    def alike(m: Size, n: Size) -> bool:
        if m == n:
            return True
        named = [size for size in (m, n) if isinstance(size, Dim)]
        return bool(named) and not any(map(c.is_read, named))

    return a.dtype == b.dtype and a.rank == b.rank and all(map(alike, a.shape, b.shape))


@operator("If")
def If(c: Importer, condition: T, *, then_branch: GraphRecord, else_branch: GraphRecord) -> Any:
    for branch in (then_branch, else_branch):
        if branch.inputs or len(branch.outputs) != len(c.node.outputs):
            raise ModelError(
                f"the branch {branch.name!r} has {len(branch.inputs)} inputs and {len(branch.outputs)} results; "
                f"expected none, and {len(c.node.outputs)}"
            )
    known = c.constant(condition)
    if known is not None:
        return tuple(c.inlined(then_branch if known.reshape(())[()] else else_branch))
    try:
        yes, no = Body(c, then_branch, []), Body(c, else_branch, [])
        decides = _decides(c, condition)
        pairs = [(a.type, b.type) for a, b in zip(yes.results, no.results, strict=True)]
        alike = all(a == b if decides else _may_be(c, a, b) for a, b in pairs)
    except ModelError:  # one that isn't taken need not be possible; a sequence is no value
        alike = False
    if not alike:
        c.ask(condition, "the condition")
    captures = _captures(c, yes, no)
    value = c.value(condition)
    if value.type.rank:
        value = ops.reshape(value, shape=())
    return tuple(_results(c, ops.if_, [value, *captures], {}, [yes.graph(), no.graph()]))


def _decides(c: Importer, condition: T) -> bool:
    """Whether a branch of which the other gives other sizes is taken for a known value: in graphs for such values."""
    main = c.outermost
    return main.is_for_values and c.outer_value(condition).builder is main.builder
