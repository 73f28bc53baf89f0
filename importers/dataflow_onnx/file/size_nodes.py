"""Expressions of named sizes, as nodes compute them from the sizes of values."""

from __future__ import annotations

import itertools
from typing import Any

from dataflow import Dim
from dataflow.plugin import at_least, terms_of

from .forms.writer import Writer


def computed(w: Writer, size: Any) -> str:
    """The name of a size as a tensor of one element; a sum of products of names and quotients of sizes.

    Raises:
        ModelError: a name in it is the size of no value.
    """
    summands = []
    for factors, times in terms_of(size):
        product = [_factor(w, factor) for factor in factors]
        product += [w.ints([times])] if times != 1 or not factors else []
        summands.append(_joined(w, "Mul", product))
    return _joined(w, "Add", summands) if summands else w.ints([0])


def _factor(w: Writer, factor: Any) -> str:
    if isinstance(factor, str):
        return w.size(Dim(factor))
    kind, *sizes = factor
    given = [w.size(size) for size in sizes]
    if kind == "min":
        return _joined(w, "Min", given)
    if kind == "broadcast":  # of sizes that differ, one is 1
        found, one = given[0], w.ints([1])
        for other in given[1:]:
            found = w.made("Where", [w.made("Equal", [found, one]), other, found])
        return found
    assert kind == "//"
    a, b = given
    if not all((least := at_least(size)) is not None and least >= 0 for size in sizes):  # Div rounds towards zero
        a = w.made("Sub", [a, w.made("Mod", [a, b])])
    return w.made("Div", [a, b])


def _joined(w: Writer, kind: str, names: list[str]) -> str:
    return list(itertools.accumulate(names, lambda a, b: w.made(kind, [a, b])))[-1]
