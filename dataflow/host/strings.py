"""Strings in memory that only holds numbers: a table of this process gives each string a number.

A number is valid until what holds it is gone: the run that made it, or the memory of a constant. Number 0, as of memory
that was only cleared, stands for the empty string.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..errors import InputError

Array = np.ndarray[Any, Any]

_texts: dict[int, str] = {0: ""}
_numbers = itertools.count(1)
_held = threading.local()  # stack: the numbers that each run in progress on this thread has made


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


def _forget(numbers: list[int]) -> None:
    for number in numbers:
        _texts.pop(number, None)


def numbers_of(strings: Array, holder: Any = None) -> Array:
    """Numbers (uint64) for an array of strings, of its shape; equal strings of the array have one number.

    Args:
        strings: an array of dtype object.
        holder: an object that takes weak references: the numbers are valid as long as it lives; None: until the run
            ends that is in progress on this thread.

    Raises:
        InputError: an element is no string.
    """
    made: list[int] = _held.stack[-1] if holder is None else []
    if holder is not None:
        weakref.finalize(holder, _forget, made)
    texts = strings.reshape(-1).tolist()
    if not set(map(type, texts)) <= {str}:
        texts = [_checked(index, text) for index, text in enumerate(texts)]
    found: dict[str, int] = {"": 0}
    for text in dict.fromkeys(texts):
        if text:
            number = found[text] = next(_numbers)
            made.append(number)
            _texts[number] = text
    return np.fromiter(map(found.__getitem__, texts), np.uint64, len(texts)).reshape(strings.shape)


def _checked(index: int, text: object) -> str:
    if not isinstance(text, str):
        raise InputError(f"element {index} of an array of strings is {text!r:.60}; expected a str")
    return str(text)


def strings_of(numbers: Array) -> Array:
    """The strings (dtype object) that numbers stand for."""
    found = np.empty(numbers.size, object)
    found[:] = list(map(_texts.__getitem__, numbers.reshape(-1).tolist()))
    return found.reshape(numbers.shape)


def known_strings() -> int:
    """How many numbers are valid, in this process."""
    return len(_texts)
