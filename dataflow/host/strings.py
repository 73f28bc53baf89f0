"""Strings in memory that only holds numbers: a table of this process has the arrays of strings that were given.

A number is that of such an array, above 32 bits, and an index into it: no string is looked at by itself. It is valid
until what holds it is gone: the run that made it, or the memory of a constant. Number 0, as of memory that was only
cleared, stands for the empty string.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import InputError

Array = np.ndarray[Any, Any]

_BITS = 32  # of an index; an array of so many strings has no memory
_INDEX = np.uint64((1 << _BITS) - 1)
_arrays: dict[int, Array] = {0: np.array([""], object)}
_next = itertools.count(1)
_held = threading.local()  # stack: the arrays that each run in progress on this thread has entered


@contextlib.contextmanager
def strings_of_a_run() -> Iterator[None]:
    """What ``numbers_of`` makes inside, on this thread, is forgotten at the end."""
    stack = _held.__dict__.setdefault("stack", [])
    made: list[int] = []
    stack.append(made)
    try:
        yield
    finally:
        stack.pop()
        _forget(made)


def _forget(entered: list[int]) -> None:
    for array in entered:
        _arrays.pop(array, None)


def numbers_of(strings: Array, holder: Any = None) -> Array:
    """Numbers (uint64) for an array of strings, of its shape; equal strings may have different ones.

    Args:
        strings: an array of dtype object; it may be changed later.
        holder: an object that takes weak references: the numbers are valid as long as it lives; None: until the run
            ends that is in progress on this thread.

    Raises:
        InputError: an element is no string.
    """
    made: list[int] = _held.stack[-1] if holder is None else []
    if holder is not None:
        weakref.finalize(holder, _forget, made)
    texts = strings.reshape(-1).copy()
    listed = texts.tolist()
    if operator.countOf(map(type, listed), str) < len(listed):
        texts[:] = [_checked(index, text) for index, text in enumerate(listed)]
    if not listed:
        return np.empty(strings.shape, np.uint64)
    array = next(_next) % (1 << _BITS)
    while array in _arrays:  # it has been round
        array = next(_next) % (1 << _BITS)
    made.append(array)
    _arrays[array] = texts
    return (np.arange(len(listed), dtype=np.uint64) + np.uint64(array << _BITS)).reshape(strings.shape)


def _checked(index: int, text: object) -> str:
    if not isinstance(text, str):
        raise InputError(f"element {index} of an array of strings is {text!r:.60}; expected a str")
    return str(text)


def strings_of(numbers: Array) -> Array:
    """The strings (dtype object) that numbers stand for."""
    flat = numbers.reshape(-1)
    if not flat.size:
        return np.empty(numbers.shape, object)
    arrays, indices = flat >> np.uint64(_BITS), flat & _INDEX
    if (arrays == arrays[0]).all():
        found: Array = _arrays[int(arrays[0])][indices]
        return found.reshape(numbers.shape)
    found = np.empty(flat.size, object)
    order = np.argsort(arrays, kind="stable")
    arrays = arrays[order]
    for alike in np.split(order, np.flatnonzero(arrays[1:] != arrays[:-1]) + 1):
        found[alike] = _arrays[int(flat[alike[0]]) >> _BITS][indices[alike]]
    return found.reshape(numbers.shape)


def known_strings() -> int:
    """How many numbers are valid, in this process."""
    return sum(map(len, list(_arrays.values())))
