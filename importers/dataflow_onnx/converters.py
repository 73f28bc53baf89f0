"""The converters, by domain, operator and the opset since which they hold."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Converter = Callable[..., Any]
"""``Operator(importer, *operands, **attributes)``: a value, tensor or object array of sizes per output."""

_TABLE: dict[tuple[str, str], list[tuple[int, Converter]]] = {}


def operator(name: str, since: int = 1, domain: str = "") -> Callable[[Converter], Converter]:
    """Enters the decorated function into the table; it holds until the next higher ``since``."""

    def enter(function: Converter) -> Converter:
        versions = _TABLE.setdefault((domain, name), [])
        versions.append((since, function))
        versions.sort(key=lambda entry: entry[0])
        return function

    return enter


@functools.cache
def table() -> Mapping[tuple[str, str], Sequence[tuple[int, Converter]]]:
    """All converters; loads their modules at the first call."""
    from .operators import (  # noqa: F401
        arithmetic,
        attention,
        control_flow,
        derived,
        dynamic_shape,
        einsum,
        gather,
        layers,
        norm,
        quantized,
        recurrent,
        resize,
        shape,
    )

    return _TABLE


@functools.cache
def find(domain: str, name: str, version: int) -> Converter | None:
    """The newest converter not newer than ``version``."""
    fitting = [function for since, function in table().get((domain, name), ()) if since <= version]
    return fitting[-1] if fitting else None
