"""How many iterations a loop makes whose condition compares what counts them with a bound.

TensorFlow's converter writes each recurrence as such a loop: its condition, ``k + 1 < n and i + 1 < n``, turns false
with the last iteration. A loop whose number of iterations is known beforehand is a scan, which has kernels and a
gradient.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dataflow import Dim, TensorType, Value, float32, float64, int32, int64, ops
from dataflow.plugin import Size, at_least, least_size

from .file.records import Array, GraphRecord
from .importer import Importer
from .subgraphs import Body
from .tensor import Tensor

_MOST = 1 << 23  # iterations and bounds: sums of two are exact in float32, in which exporters compare them
_STEPS = (-1, 0, 1)  # of what counts iterations
_DEEPEST = 64  # nodes from a condition to what it compares
_COMPARISONS = {ops.less: (1, 0, 1), ops.less_equal: (1, 0, 0), ops.greater: (0, 1, 1), ops.greater_equal: (0, 1, 0)}
_SAME = (ops.cast, ops.reshape, ops.copy)
_EXACT = (int32, int64, float32, float64)  # dtypes that have all whole numbers up to ``_MOST``


@dataclass(frozen=True, slots=True)
class _Term:
    """A whole number: that of an input of the body, if there is one, and an offset."""

    base: Value | None
    offset: Size


@dataclass(frozen=True, slots=True)
class _Line:
    """A comparison: it holds in iteration k where ``start + slope * k`` isn't negative."""

    start: Size
    slope: int


def iterations(
    c: Importer, condition: Tensor | None, operands: Sequence[Tensor], body: GraphRecord, types: Sequence[TensorType]
) -> Size | None:
    """How many iterations the condition of a loop lets it make; None where that isn't known at load.

    Args:
        c: importer of the graph around the loop.
        condition: before the first iteration; None: true.
        operands: what it carries, before the first iteration.
        body: with the iteration, the condition and what is carried as inputs.
        types: of the iteration and of what is carried.

    Returns:
        -1 where it ends by its limit alone.

    Raises:
        ModelError: what computes the condition can't be imported.
    """
    alone, positions = _condition_alone(body)
    if any(node.bodies for node in alone.nodes):
        return None
    before = [] if condition is None else _before(c, condition)
    if before is None:
        return None
    inner = Body(c, alone, types, loop=True, always=True)
    after = _compared(inner.inner, inner.results[0])
    if after is None:
        return None
    counts = {inner.inputs[0]: _Line(0, 1)}
    for position, result in zip(positions, inner.results[1:], strict=True):
        value, start = inner.inputs[position - 1], _number(c, operands[position - 2])
        found = _term(inner.inner, inner.inner.value(result))
        step = None if found is None or found.base is not value else found.offset
        if start is not None and isinstance(step, int) and step in _STEPS:
            counts[value] = _Line(start, step)
    lines = [_line(left, right, counts) for left, right in after]
    return None if None in lines else _total(before, [line for line in lines if line is not None])


def _condition_alone(body: GraphRecord) -> tuple[GraphRecord, list[int]]:
    """What computes the condition of a loop from one iteration to the next; and which of its inputs are carried.

    To convert the entire body for this would convert each nested loop twice per level.
    """
    names, wanted, kept = list(body.inputs), {body.outputs[0]}, set[int]()
    while True:
        for index in reversed(range(len(body.nodes))):
            if index not in kept and not wanted.isdisjoint(body.nodes[index].outputs):
                kept.add(index)
                wanted.update(body.nodes[index].inputs)
        positions = [position for position in range(2, len(names)) if names[position] in wanted]
        results = [body.outputs[position - 1] for position in positions]
        if wanted.issuperset(results):
            break
        wanted.update(results)
    nodes = tuple(node for index, node in enumerate(body.nodes) if index in kept)
    arrays = {name: array for name, array in body.initializers.items() if name in wanted}
    outputs = (body.outputs[0], *results)
    return dataclasses.replace(body, nodes=nodes, outputs=outputs, initializers=arrays), positions


def _total(before: Sequence[Size], after: Sequence[_Line]) -> Size | None:
    """How many iterations are made if ``before`` aren't negative, and no line is after each but the last.

    The condition of the first iteration may be the same one, a step earlier: both then say the same of the number.
    """
    totals: list[Size] = []
    earlier: set[Size] = set()
    for line in after:
        if line.slope >= 0 and _never_negative(line.start):
            continue  # it always holds
        if line.slope < 0 and isinstance(line.start, int):
            totals.append(1 + max(0, line.start // -line.slope + 1))
        elif line.slope == -1 and _never_negative(line.start + 1):
            totals.append(line.start + 2)
        elif line.slope == -1 and line.start + 1 in before and _never_negative(line.start + 2):
            totals.append(line.start + 2)
            earlier.add(line.start + 1)
        else:
            return None
    if not all(first in earlier or _never_negative(first) for first in before):
        return None
    total = least_size(totals) if totals else -1
    return total if isinstance(total, Dim) or total <= _MOST else None


def _never_negative(size: Size) -> bool:
    least = at_least(size)
    return least is not None and least >= 0


def _before(c: Importer, condition: Tensor) -> list[Size] | None:
    """What must not be negative for the condition of the first iteration to be true."""
    compared = _compared(c, condition)
    lines = None if compared is None else [_line(left, right, {}) for left, right in compared]
    return None if lines is None or None in lines else [line.start for line in lines if line is not None]


def _compared(c: Importer, condition: Tensor) -> list[tuple[_Term, _Term]] | None:
    """The comparisons that a condition is, each as what must not be less than the other; None of another condition."""
    array = c.constant(condition)
    if array is not None:
        return [] if array.size == 1 and bool(array.reshape(())[()]) else None
    found: list[tuple[_Term, _Term]] = []
    for value in _conjunction(c, c.value(condition)):
        node = c.builder.producer(value)
        if node is None or node.op not in _COMPARISONS:
            return None
        low, high, apart = _COMPARISONS[node.op]
        terms = [None if v is None else _term(c, v) for v in node.inputs]
        right, left = terms[low], terms[high]
        if left is None or right is None:
            return None
        found.append((_Term(right.base, right.offset - apart), left))
    return found


def _conjunction(c: Importer, value: Value) -> Iterator[Value]:
    """The conditions that all have to hold."""
    waiting, seen = [value], 0
    while waiting and seen < _DEEPEST:
        value, seen = waiting.pop(), seen + 1
        node = c.builder.producer(value)
        if node is not None and (node.op is ops.logical_and or node.op in _SAME):
            waiting += [v for v in node.inputs if v is not None]
        else:
            yield value
    yield from waiting


def _line(right: _Term, left: _Term, counts: dict[Value, _Line]) -> _Line | None:
    """``right - left`` over the iterations."""
    start, slope = right.offset - left.offset, 0
    for term, sign in ((right, 1), (left, -1)):
        if term.base is not None:
            if term.base not in counts:
                return None
            line = counts[term.base]
            start, slope = start + line.start * sign, slope + line.slope * sign
    return _Line(start, slope)


def _number(c: Importer, tensor: Tensor) -> Size | None:
    """The whole number that a tensor holds; None where that isn't known."""
    if tensor.type.rank and tensor.type.shape != (1,) * tensor.type.rank:
        return None
    sizes = c.known_sizes(tensor)
    if sizes is not None:
        size: Size = sizes[0]
        return size if isinstance(size, Dim) or abs(size) <= _MOST else None
    array = c.constant(tensor)
    if array is not None:
        return _integer_in(array)
    found = _term(c, c.value(tensor))
    return None if found is None or found.base is not None else found.offset


def difference(c: Importer, start: Tensor, end: Tensor) -> int | None:
    """How much larger the one whole number is than the other, whatever they are; None where that isn't known."""
    values = [c.value(tensor) for tensor in (start, end)]
    terms = [_term(c, v) if v.type.is_bound and v.type.elements == 1 else None for v in values]
    first, last = terms
    if first is None or last is None or first.base is not last.base:
        return None
    apart = last.offset - first.offset
    return apart if isinstance(apart, int) else None


def _integer_in(array: Array) -> int | None:
    if array.size != 1 or array.dtype.kind not in "iuf":
        return None
    number = float(array.reshape(())[()])
    return int(number) if number.is_integer() and abs(number) <= _MOST else None


def _term(c: Importer, value: Value, deep: int = 0) -> _Term | None:
    """The whole number that a value of one element is; None of another."""
    if deep == _DEEPEST or value.type.dtype not in _EXACT or value.type.shape != (1,) * value.type.rank:
        return None
    stored, node = c.builder.initializer_of(value), c.builder.producer(value)
    if stored is not None:
        number = None if stored.factor is not None else _integer_in(stored.array)
        return None if number is None else _Term(None, number)
    if node is None:
        tensor = c.tensors.get(value.name)
        if tensor is None or tensor.outer is None or tensor.value is not value or c.around is None:
            return _Term(value, 0)
        known = _number(c.around, tensor.outer)
        return None if known is None else _Term(None, known)
    if node.op is ops.sizes:
        return _Term(None, node.attributes["values"][0])
    if node.op in _SAME and node.inputs[0] is not None:
        return _term(c, node.inputs[0], deep + 1)
    if node.op not in (ops.add, ops.sub, ops.mul):
        return None
    left, right = (None if v is None else _term(c, v, deep + 1) for v in node.inputs)
    if left is None or right is None:
        return None
    if node.op is not ops.sub and left.base is None:
        left, right = right, left
    if node.op is ops.mul:
        return left if right == _Term(None, 1) else None
    if right.base is not None:
        return None
    return _Term(left.base, left.offset + right.offset if node.op is ops.add else left.offset - right.offset)
