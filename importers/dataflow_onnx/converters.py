"""Converters of operators: collected by decoration, found by domain, operator and opset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Function = Callable[..., Any]
"""``function(importer, *operands, **attributes)``: a value, tensor, array or known sizes per output."""


@dataclass(frozen=True, slots=True)
class Converter:
    """How an operator becomes nodes of a graph.

    Attributes:
        domain: of the operator; "" is ONNX's own.
        operator: its name in files.
        since: the opset from which on it holds, until the next higher ``since``.
        function: converts one node.
    """

    domain: str
    operator: str
    since: int
    function: Function


class Collector:
    """Collects the converters of a domain: ``@operator("Relu", since=6)`` enters the function below it.

    Attributes:
        converters: those collected so far.
    """

    def __init__(self, domain: str = "") -> None:
        self.domain = domain
        self.converters: list[Converter] = []

    def __call__(self, operator: str, since: int = 1) -> Callable[[Function], Function]:
        """A decorator that enters its function and returns it as it is."""

        def enter(function: Function) -> Function:
            self.converters.append(Converter(self.domain, operator, since, function))
            return function

        return enter


class Table:
    """Converters by domain and operator; it doesn't change.

    Attributes:
        versions: all converters of an operator, by ascending ``since``.
    """

    def __init__(self, converters: Iterable[Converter]) -> None:
        self.versions: dict[tuple[str, str], list[Converter]] = {}
        for converter in sorted(converters, key=lambda c: c.since):
            self.versions.setdefault((converter.domain, converter.operator), []).append(converter)

    def find(self, domain: str, operator: str, version: int) -> Converter | None:
        """The newest converter of an operator that isn't newer than ``version`` of its domain."""
        found = None
        for converter in self.versions.get((domain, operator), ()):
            if converter.since <= version:
                found = converter
        return found
