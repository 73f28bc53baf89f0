"""Weights that are rounded in a graph become stored integers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .. import ops
from ..errors import InputError
from ..ir.builder import GraphBuilder
from ..ir.edits import Edit, dropped, edited, in_file
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.value import Value
from ..layers.layers import constants_of
from ..model import Model
from ..passes.dead_code import eliminate_dead_code
from ..session import Session


def fold_rounded(model: Model) -> Model:
    """The model with the integers of each ``quantize`` that reads stored tensors alone in the place of these.

    Raises:
        InputError: no stored tensor is quantized.
    """
    source, graph = in_file(model.source, model.graph_with_data())
    constants = constants_of(graph)
    rounded = [node for node in graph.nodes if node.op is ops.quantize and node.outputs[0] in constants]
    if not rounded:
        raise InputError(
            "data is None, and no stored tensor is quantized in the graph; expected samples, or a model that "
            "quantize_static(train=True) gave, saved and loaded again where straight_through was trained"
        )
    results = {value.name: value for node in rounded if (value := node.outputs[0]) is not None}
    alone = eliminate_dead_code(dataclasses.replace(graph, inputs=(), outputs=results, states=()), extras=False)
    with Session(alone, fallback="allow") as session:
        integers = session.run({})
    names, sources = {value.name for value in graph.values()}, _sources(graph)
    aliases, edits = dict(model.aliases), list[Edit]()

    def replace(builder: GraphBuilder, node: Node, _: list[Value | None]) -> Sequence[Value | None] | None:
        if node.op is not ops.quantize or node.outputs[0] not in constants:
            return None
        old = node.outputs[0]
        assert old is not None
        weight = sources[old]
        aliases[old.name] = (weight, *aliases.get(weight, ()))
        edits.append(Edit(old.name, dropped(source, old.name, names)))
        return (builder.initializer(old.name, integers[old.name]),)

    changed = eliminate_dead_code(rewrite(graph, replace), extras=False)
    made = edited(source, edits, {edit.old for edit in edits})
    return Model(changed, aliases=aliases, source=made, metadata=model.metadata)


def _sources(graph: Graph) -> dict[Value | None, str]:
    """The name of the stored tensor that a value comes from by first operands."""
    found: dict[Value | None, str] = {value: value.name for value in graph.initializers}
    for node in graph.nodes:
        if node.inputs and node.inputs[0] in found:
            found.update(dict.fromkeys(node.outputs, found[node.inputs[0]]))
    return found
