"""What forms share: the writer that they are given, and forms of one operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dataflow import Dim, Graph, Node, Value
from dataflow.errors import ModelError


class Writer(Protocol):
    """What a form writes to."""

    def need(self, opset: int) -> None:
        """The file has this opset, or a later one."""

    def domain(self, name: str, version: int) -> str:
        """The name, of a domain whose version is written to the file."""

    def add(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any) -> None:
        """Adds an operator."""

    def made(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Adds an operator between those of a node; the name of its result."""

    def name(self, value: Value | None) -> str:
        """The name of a value in the file; nothing for one that is absent."""

    def inputs(self, node: Node) -> list[str]:
        """The names of the operands."""

    def outputs(self, node: Node) -> list[str]:
        """The names of the results but for the extra ones."""

    def reads(self, value: Value | None) -> bool:
        """Whether a node or an output of the graph reads a value."""

    def stored(self, array: Any) -> str:
        """The name of a stored tensor."""

    def tensor(self, array: Any) -> Any:
        """A tensor as the value of an attribute."""

    def ints(self, values: Sequence[int] | range) -> str:
        """The name of a stored list of integers."""

    def sizes(self, sizes: Sequence[Any]) -> str:
        """The name of numbers and named sizes as one tensor."""

    def size(self, size: Any) -> str:
        """The name of a size as a tensor of one element."""

    def unique(self, name: str) -> str:
        """A name that nothing has."""

    def body(
        self,
        graph: Graph,
        given: Mapping[Value, str],
        fixed: Sequence[Value],
        outputs: Sequence[Value],
        counted: bool = False,
    ) -> Any:
        """A subgraph; see ``to_onnx``."""


Form = Callable[[Writer, Node], None]
"""Adds what a node is written as."""


def same(kind: str, renamed: Mapping[str, str]) -> Form:
    """An operator of the same operands, with attributes by the op's own names for them."""

    def form(w: Writer, node: Node) -> None:
        a = node.attributes
        w.add(kind, w.inputs(node), w.outputs(node), node.name, **{there: a[own] for own, there in renamed.items()})

    return form


def since(opset: int, form: Form) -> Form:
    """A form that needs an opset."""

    def later(w: Writer, node: Node) -> None:
        w.need(opset)
        form(w, node)

    return later


def unless_nothing(form: Form, attribute: str = "") -> Form:
    """An operator that isn't needed for a scalar, or without an axis, of which ONNX would take all."""

    def checked(w: Writer, node: Node) -> None:
        if (attribute and not tuple(node.attributes[attribute])) or (not attribute and operand(node).type.rank == 0):
            w.add("Identity", w.inputs(node)[:1], w.outputs(node), node.name)
        else:
            form(w, node)

    return checked


def operand(node: Node, index: int = 0) -> Value:
    """An operand that is there."""
    value = node.inputs[index]
    assert value is not None
    return value


def result(node: Node) -> Value:
    """The first result."""
    value = node.outputs[0]
    assert value is not None
    return value


def numbers(sizes: Sequence[Any], what: str) -> list[int]:
    """Sizes that an attribute holds.

    Raises:
        ModelError: one is named.
    """
    if any(isinstance(n, Dim) for n in sizes):
        listed = ", ".join(map(str, sizes))
        raise ModelError(f"{what} that depend on a named size, ({listed}), have no ONNX form; fix the size")
    return [int(n) for n in sizes]
