"""Graphs whose shapes depend on data: regions planned when their sizes are known, and values known before a graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..errors import InputError
from ..ir.graph import Graph
from ..ir.specialize import Wanted
from ..ir.types import Array
from ..lower.templates import Sized
from ..passes.bind_shapes import bind
from ..passes.dead_code import eliminate_dead_code
from ..passes.dynamic_regions import Region
from ..passes.size_values import MOST_BYTES, Kernels, take_sizes
from .program import Program

Sizes = Mapping[str, int]
Form = tuple[Hashable, ...]
ValueKey = tuple[str, str, tuple[int, ...], bytes]  # a value's name, dtype, shape and data
_T = TypeVar("_T")
ProgramOf = Callable[[int, Region, Mapping[str, Array], Sizes, Form], Program]
"""``program_of(index, region, arguments, sizes, form)``; of one region and ``form`` it is always the same program."""


def run_regions(
    regions: Sequence[Region],
    arguments: Mapping[str, Array],
    sizes: Sizes,
    complete: Callable[[Sizes], dict[str, int]],
    program_of: ProgramOf,
    call: Callable[[Program, Mapping[str, Array], Mapping[str, Array]], None],
) -> tuple[dict[str, Array], dict[str, int]]:
    """What the regions give, by name, beside the arguments; and all sizes.

    Args:
        regions: in order.
        arguments: by names of inputs of the graph.
        sizes: that its inputs have.
        complete: adds sizes that are computed from others.
        program_of: see ``ProgramOf``.
        call: runs a program: its arguments, and the arrays that it writes.

    Raises:
        InputError: a size that was computed is negative.
    """
    values = dict(arguments)
    for index, region in enumerate(regions):
        known = complete(sizes)
        given = {v.name: values[v.name] for v in region.graph.inputs}
        needed = tuple((name, known[name]) for name in region.sizes)
        program = program_of(index, region, given, known, (tuple(np.shape(a) for a in given.values()), needed))
        results = program.results.arrays()
        call(program, given, results)
        values.update(results)
        for node, value in region.reads:
            take_sizes(node, values[value.name], known)
        sizes = known
    return values, complete(sizes)


def sized_region(region: Region, given: Mapping[str, Array], sizes: Sizes, kernels: Kernels) -> Sized:
    """The graph of a region, without dead nodes, for what the regions before it gave.

    Raises:
        InputError: that doesn't fit its nodes with these sizes.
    """
    for value in region.graph.inputs:
        wanted, found = value.type.bind(sizes), given[value.name].shape
        if wanted.shape != found:
            raise InputError(f"{value.name!r} has shape {found}; the nodes that read it were made for {wanted}")

    def made(at: Mapping[str, Any]) -> Graph:
        return eliminate_dead_code(bind(region.graph, at, kernels))

    return Sized(region, {name: sizes[name] for name in region.sizes}, made)


def with_wanted(
    make: Callable[[Mapping[str, Array], Form], _T | Wanted], compute: Callable[[Wanted, Form], Array]
) -> _T:
    """What a model is, once the values are known that it wants to know.

    Args:
        make: what it is with these values; they are given as what tells them from others, too.
        compute: a value that is wanted.

    Raises:
        InputError: a value is too large to be known.
    """
    values: dict[str, Array] = {}
    while True:
        known = tuple(value_key(name, array) for name, array in values.items())
        made = make(values, known)
        if not isinstance(made, Wanted):
            return made
        found = compute(made, known)
        if found.nbytes > MOST_BYTES:
            raise InputError(f"{made.why}: it takes {found.nbytes} bytes; expected at most {MOST_BYTES}")
        values[made.name] = found


def value_key(name: str, array: Array) -> ValueKey:
    """What tells a value from others."""
    return name, array.dtype.str, array.shape, array.tobytes()
