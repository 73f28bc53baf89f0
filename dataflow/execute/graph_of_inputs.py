"""The one graph that a model is for some inputs, for those who take it apart or differentiate it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..errors import InputError
from ..ir.graph import Graph, with_data_of
from ..ir.specialize import Given, Listed, Wanted
from ..ir.types import Array
from ..passes.bind_shapes import bind
from ..passes.dynamic_regions import depends_on_data
from ..passes.size_values import Kernels
from .arguments import sizes_of
from .regions import with_wanted
from .sequences import types_of


def graph_of_inputs(
    graph: Graph,
    convert: Callable[[Mapping[str, Given], Mapping[str, Array]], Graph | Wanted | Listed | None],
    arguments: Mapping[str, Array],
    kernels: Kernels,
    run: Callable[[Graph], Mapping[str, Array]],
) -> Graph:
    """The graph with the sizes of these inputs; of shapes that depend on data, as it is: no size is bound then.

    Args:
        graph: the model's, with its data.
        convert: makes the model for inputs of given types, where ``graph`` can't be bound; see ``ir.specialize``.
        arguments: the inputs, checked.
        kernels: the reference's, by op.
        run: runs a graph with these inputs; for values that decide what the model is.

    Raises:
        InputError: the model takes no such inputs.
    """

    def make(values: Mapping[str, Array], known: object) -> Graph | Wanted:
        made = convert(types_of(graph, arguments), values)
        if made is None or isinstance(made, Listed):
            raise cause
        return made

    def compute(wanted: Wanted, known: object) -> Array:
        return run(with_data_of(wanted.graph, graph))[wanted.name]

    if depends_on_data(graph):
        return graph
    try:
        return bind(graph, sizes_of(graph, arguments), kernels)
    except InputError as error:
        cause = error
    return with_wanted(make, compute)
