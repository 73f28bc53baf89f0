"""Mappings by name whose errors have the nearest names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

from ..errors import InputError

T = TypeVar("T")


class UnknownName(InputError, KeyError):
    """A mapping has no such name."""

    __str__ = Exception.__str__  # KeyError's shows a repr


def unknown_name(what: str, name: Any, known: Iterable[str]) -> UnknownName:
    """The error of a look-up; ``what`` is looked up, as ``parameter``."""
    names = list(known)
    near = difflib.get_close_matches(name, names, 3, cutoff=0.3) if isinstance(name, str) else []
    listed = ", ".join(map(repr, near or names[:3])) or "none"
    return UnknownName(f"there is no {what} {name!r}; {'nearest' if near else 'there are'}: {listed}")


class Named(dict[str, T]):
    """A dict whose look-ups of unknown names raise ``UnknownName``.

    Args:
        what: is looked up, as ``parameter``.
        entries: by name.
    """

    def __init__(self, what: str, entries: dict[str, T]) -> None:
        super().__init__(entries)
        self._what = what

    def __missing__(self, name: str) -> T:
        raise unknown_name(self._what, name, self)
