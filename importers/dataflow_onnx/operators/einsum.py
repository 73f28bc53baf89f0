"""Einsum as products of matrices: operands are taken two at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from dataflow import Value, ops
from dataflow.errors import ModelError

from ..converters import Collector
from ..emit import along, iota, number
from ..importer import Importer
from ..shape_eval import product
from ..tensor import Tensor

T = Tensor
operator = Collector()
_SPARE = "αβγδεζηθικλμνξοπρστυφχψω"  # stand for the axes of an ellipsis, the last one for the last


def _terms(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The labels of each operand and of the result, without ellipses."""
    text = equation.replace(" ", "")
    if not re.fullmatch(r"[A-Za-z.,]*(->[A-Za-z.]*)?", text):
        raise ModelError(f"the equation {equation!r} has letters that are not known")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise ModelError(f"the equation {equation!r} has {len(terms)} terms for {len(ranks)} operands")
    opened, widest = [], 0
    for term, rank in zip(terms, ranks, strict=True):
        if "..." in term:
            extra = rank - len(term.replace("...", ""))
            if extra < 0 or extra > len(_SPARE) or term.count(".") != 3:
                raise ModelError(f"the term {term!r} does not fit an operand of rank {rank}")
            widest = max(widest, extra)
            term = term.replace("...", _SPARE[len(_SPARE) - extra :])
        if len(term) != rank:
            raise ModelError(f"the term {term!r} does not fit an operand of rank {rank}")
        opened.append(term)
    rest = _SPARE[len(_SPARE) - widest :]
    if arrow:
        result = right.replace("...", rest)
    else:  # what occurs once, in order of the alphabet
        labels = "".join(opened)
        result = rest + "".join(sorted(n for n in set(labels) if labels.count(n) == 1 and n not in _SPARE))
    unknown = [n for n in result if not any(n in term for term in opened)]
    if unknown or len(set(result)) != len(result):
        raise ModelError(f"the result of {equation!r} names {unknown or 'an axis twice'}")
    return opened, result


def _diagonal(c: Importer, value: Value, labels: str) -> tuple[Value, str]:
    """Merges axes that share a label: only elements whose indices along both are equal remain."""
    for label in labels:
        while labels.count(label) > 1:
            first = labels.index(label)
            second = labels.index(label, first + 1)
            size, rank = value.type.shape[first], value.type.rank
            indices = [along(iota(c.builder, size), axis, rank) for axis in (first, second)]
            zero = number(c.builder, 0, value.type.dtype)
            value = ops.reduce_sum(ops.where(ops.equal(*indices), value, zero), axes=(second,), keepdims=0)
            labels = labels[:second] + labels[second + 1 :]
    return value, labels


def _summed(value: Value, labels: str, kept: set[str]) -> tuple[Value, str]:
    """Without the axes that nobody else reads."""
    gone = tuple(i for i, label in enumerate(labels) if label not in kept)
    if gone:
        value = ops.reduce_sum(value, axes=gone, keepdims=0)
    return value, "".join(label for label in labels if label in kept)


def _ordered(value: Value, labels: str, wanted: str) -> Any:
    order = tuple(labels.index(label) for label in wanted)
    return value if order == tuple(range(len(order))) else ops.transpose(value, perm=order)


def _pair(a: Value, left: str, b: Value, right: str, kept: set[str]) -> tuple[Value, str]:
    """The product of two operands, summed over the labels that both have and nobody else needs."""
    size_a, size_b = (dict(zip(labels, v.type.shape, strict=True)) for labels, v in ((left, a), (right, b)))
    shared = [n for n in left if n in right]
    summed = [n for n in shared if n not in kept and size_a[n] == size_b[n]]
    batch = [n for n in shared if n not in summed]
    rows, columns = [n for n in left if n not in right], [n for n in right if n not in left]
    one = _ordered(a, left, "".join([*batch, *rows, *summed]))
    two = _ordered(b, right, "".join([*batch, *summed, *columns]))
    one_shape = (*(size_a[n] for n in batch), product(size_a[n] for n in rows), product(size_a[n] for n in summed))
    two_shape = (*(size_b[n] for n in batch), product(size_b[n] for n in summed), product(size_b[n] for n in columns))
    y = ops.matmul(ops.reshape(one, shape=one_shape), ops.reshape(two, shape=two_shape))
    sizes = [*y.type.shape[: len(batch)], *(size_a[n] for n in rows), *(size_b[n] for n in columns)]
    labels = "".join([*batch, *rows, *columns])
    return _summed(ops.reshape(y, shape=tuple(sizes)), labels, kept)


@operator("Einsum", 12)
def Einsum(c: Importer, *operands: T, equation: str) -> Any:
    values = [c.weight(t) for t in operands]
    terms, result = _terms(equation, [v.type.rank for v in values])
    remaining = [_diagonal(c, value, labels) for value, labels in zip(values, terms, strict=True)]
    while True:
        for i, (value, labels) in enumerate(remaining):
            others = {n for j, (_, other) in enumerate(remaining) if j != i for n in other}
            remaining[i] = _summed(value, labels, {*result, *others})
        if len(remaining) == 1:
            value, labels = remaining[0]
            return _ordered(value, labels, result)
        (a, left), (b, right), *rest = remaining
        kept = {*result, *(n for _, other in rest for n in other)}
        remaining = [_pair(a, left, b, right, kept), *rest]
