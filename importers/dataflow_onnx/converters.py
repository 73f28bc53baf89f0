"""Converters of operators: collected by decoration, found by domain, operator and opset.

A plugin collects its own like this and offers them with the hook ``onnx_converters``::

    operator = Collector("org.example")

    @operator("Shift", since=2)
    def shift(c: Importer, x: Tensor, *, by: float = 1.0) -> Value:
        return c.value(x) + by

    @hookimpl
    def onnx_converters() -> Iterable[Converter]:
        return operator.converters

Its operands are tensors by position, its attributes keywords of which the annotation says the kind (``signatures``).
What it calls of the importer stands in ``operands``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dataflow.errors import PluginError
from dataflow.plugin import Converter

from .file.records import plain_domain

Function = Callable[..., Any]
"""``function(importer, *operands, **attributes)``: a value, tensor, array or known sizes, or a tuple of them."""

_OWN = __name__.partition(".")[0]
DOMAINS = frozenset(
    ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training", "before_opset_7", "com.microsoft",
     "com.microsoft.nchwc")
)  # fmt: skip
"""The domains of which this package converts operators."""


def name_of(converter: Converter) -> str:
    """The qualified name of a converter's function, for messages."""
    function = converter.function
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', repr(function))}"


def is_own(converter: Converter) -> bool:
    """Whether the converter belongs to this package and not to a plugin."""
    return str(getattr(converter.function, "__module__", "")).partition(".")[0] == _OWN


class Collector:
    """Collects the converters of a domain: ``@operator("Relu", since=6)`` adds the function below it.

    Attributes:
        converters: those collected so far.
    """

    def __init__(self, domain: str = "") -> None:
        self.domain = domain
        self.converters: list[Converter] = []

    def __call__(self, operator: str, since: int = 1, domain: str | None = None) -> Callable[[Function], Function]:
        """A decorator that adds its function and returns it as it is.

        Args:
            operator: its name.
            since: the first opset that has it like this.
            domain: of the operator, where it isn't the collector's.
        """

        def add(function: Function) -> Function:
            self.converters.append(Converter(self.domain if domain is None else domain, operator, since, function))
            return function

        return add


class Table:
    """Converters by domain and operator; it doesn't change.

    Attributes:
        versions: all converters of an operator, by ascending ``since``.
    """

    def __init__(self, converters: Iterable[Converter]) -> None:
        self.versions: dict[tuple[str, str], list[Converter]] = {}
        for converter in sorted(converters, key=lambda c: c.since):
            self.versions.setdefault((plain_domain(converter.domain), converter.operator), []).append(converter)

    def refuses(self, converter: Converter) -> str | None:
        """Why a plugin's converter isn't used, or None: this table has one of the operator."""
        if (plain_domain(converter.domain), converter.operator) not in self.versions:
            return None
        return (
            f"{name_of(converter)} converts {converter.operator!r}, which dataflow converts itself: give an operator "
            "of one's own a domain of one's own"
        )

    def extended(self, converters: Sequence[Converter]) -> Table:
        """A table with converters of plugins too.

        Raises:
            PluginError: this table has a converter of the operator; a registry sets such a plugin aside.
        """
        problem = next(filter(None, map(self.refuses, converters)), None)
        if problem is not None:
            raise PluginError(problem)
        return Table([*(c for versions in self.versions.values() for c in versions), *converters])

    def find(self, domain: str, operator: str, version: int) -> Converter | None:
        """The newest converter of an operator that isn't newer than ``version`` of its domain."""
        found = None
        for converter in self.versions.get((domain, operator), ()):
            if converter.since <= version:
                found = converter
        return found
