"""Computes at compile time what depends on constants alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np

from ..device import Kernel
from ..graph import Array, Graph, Initializer, Value
from ..limits import poll

LIMIT = 1 << 24  # bytes; a larger result is computed at each run instead of kept


def fold(graph: Graph, kernels: Mapping[str, tuple[Kernel, ...]], keep: Collection[str] = ()) -> Graph:
    """The graph with nodes of constant inputs replaced by their results.

    Views are not folded: they cost nothing. A node stays where an input is named in ``keep`` (what is
    trained or updated), where it has effects, or where its result is larger than its inputs and ``LIMIT``.

    Args:
        graph: bound.
        kernels: the reference's, by op.
        keep: names of initializers whose data may change.
    """
    known: dict[Value, Array] = {
        value: data.array for value, data in graph.initializers.items() if value.name not in keep
    }
    made: dict[Value, Initializer] = {}
    kept = []
    boundary = graph.boundary
    for index, node in enumerate(graph.nodes):
        poll(node)
        kernel = kernels.get(node.op.name)
        inputs = [v for v in node.inputs if v is not None]
        constant = bool(inputs) and all(v in known for v in inputs) and node.op.effects == "none"
        size = sum(v.type.nbytes for v in node.outputs if v is not None)
        grows = size > max(LIMIT, sum(v.type.nbytes for v in inputs))
        if not constant or kernel is None or node.bodies or grows:
            kept.append(node)
            continue
        arrays = [None if v is None else known[v] for v in node.inputs]
        results = kernel[0].code(node.attributes, *arrays)
        found = results if isinstance(results, tuple) else (results,)
        for value, array in zip(node.outputs, found, strict=False):
            if value is not None:
                data = np.asarray(array, value.type.dtype.numpy).view()
                data.flags.writeable = False
                known[value], made[value] = data, Initializer(data)
        if node.op.view is not None:
            kept.append(node)  # a reader that stays sees the view; one that was folded has used the array
            for value in node.outputs:
                made.pop(value, None)  # type: ignore[arg-type]
        elif boundary is not None and graph.boundary is not None and index < graph.boundary:
            boundary -= 1
    stored = {**graph.initializers, **made}
    return dataclasses.replace(graph, nodes=tuple(kept), initializers=stored, boundary=boundary)
