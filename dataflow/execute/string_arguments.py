"""Arguments and results of a run that are strings: devices see numbers in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

import numpy as np

from ..errors import InputError
from ..host.strings import numbers_of, strings_of, strings_of_a_run
from ..ir.plan import Plan, Segment
from ..ir.types import Array


def has_strings(plan: Plan) -> bool:
    """Whether a value of the plan is one of strings."""
    steps = [step for item in plan.items if isinstance(item, Segment) for step in item.steps]
    computed = (operand for step in steps for operand in step.outputs if operand is not None)
    operands = (*plan.inputs.values(), *plan.outputs.values(), *computed)
    return any(operand.type.dtype.kind == "s" for operand in operands)


@contextlib.contextmanager
def as_numbers(
    inputs: Mapping[str, Array], outputs: Mapping[str, Array]
) -> Iterator[tuple[Mapping[str, Array], Mapping[str, Array]]]:
    """Arrays with numbers in place of strings; at the end the strings are written into those of the results.

    Raises:
        InputError: an element of an argument is no string.
    """
    with strings_of_a_run():
        given = {name: _numbers(name, array) for name, array in inputs.items()}
        made = {name: np.empty(a.shape, np.uint64) if a.dtype.hasobject else a for name, a in outputs.items()}
        yield given, made
        for name, array in outputs.items():
            if array.dtype.hasobject:
                array[...] = strings_of(made[name])


def _numbers(name: str, array: Array) -> Array:
    if not array.dtype.hasobject:
        return array
    try:
        return numbers_of(array)
    except InputError as error:
        raise InputError(f"input {name!r}: {error}") from None
