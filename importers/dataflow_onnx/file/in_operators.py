"""A graph whose ops all have a form in ONNX: others are replaced by smaller ones, in bodies too."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from dataflow import Graph, GraphBuilder, Node, Value
from dataflow.errors import DataflowError, ModelError
from dataflow.plugin import Exporter, rewrite

from .forms import FORMS
from .forms.smaller import smaller_of


def in_operators(graph: Graph, exporters: Mapping[str, Exporter]) -> Graph:
    """The graph with smaller ops where an op has no form, in bodies too."""

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        smaller = _smaller(node, read, exporters)
        if smaller is not None:
            given = (*inputs, *(None,) * (len(node.op.inputs) - len(inputs)))
            with builder.scope(node.name), _named(node):
                made = smaller(*given, **({"bodies": node.bodies} if node.op.bodies else {}), **node.attributes)
            return (made,) if isinstance(made, Value) else tuple(made)
        if not node.bodies:
            return None
        bodies = tuple(in_operators(body, exporters) for body in node.bodies)
        names = [None if v is None else v.name for v in node.outputs]
        return builder.add(node.op, inputs, node.attributes, bodies=bodies, name=node.name, output_names=names).outputs

    read = values_read(graph)
    wanted = any(node.bodies or _smaller(node, read, exporters) for node in graph.nodes)
    while wanted:
        graph = rewrite(graph, replace)
        read = values_read(graph)
        wanted = any(_smaller(node, read, exporters) for node in graph.nodes)
    return graph


@contextlib.contextmanager
def _named(node: Node) -> Iterator[None]:
    """What is raised within names the node.

    Raises:
        ModelError: it has no smaller ops.
    """
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{node.describe()}: {error}") from None
    except DataflowError as error:
        raise ModelError(f"{node.describe()}: it has no ONNX form with these attributes and sizes: {error}") from None


def values_read(graph: Graph) -> set[Value | None]:
    """What nodes and outputs read."""
    return {v for node in graph.nodes for v in node.inputs} | set(graph.outputs.values())


def _smaller(node: Node, read: Collection[Value | None], exporters: Mapping[str, Exporter]) -> Any:
    extra = node.outputs[len(plain_outputs(node)) :]
    has_form = node.op.name in FORMS or node.op.name in exporters
    return smaller_of(node, any(v in read for v in extra if v is not None), has_form)


def plain_outputs(node: Node) -> list[str]:
    """The outputs that aren't extra."""
    return [name for name in node.op.output_names(node) if not name.startswith("+")]
