"""What a sample's results should be: those of the reference in float64, else of the op's decomposition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import PluginError
from ..execute.python_device import call_kernel
from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.types import Array, dtype, float32, float64
from ..ir.value import Value
from ..plugin.registry import Registry
from .layouts import Layouts
from .sample import Sample


def expected_of(
    sample: Sample, registry: Registry, layouts: Layouts = (), arrays: Sequence[Array | None] | None = None
) -> dict[str, Array]:
    """The outputs, computed in float64 and rounded to the declared dtypes; of ``arrays`` instead of the sample's."""
    node = sample.node
    given = sample.arrays(layouts) if arrays is None else arrays
    results = computed(node, [_as_float64(array) for array in given], registry)
    return {
        f"y{index}": np.asarray(result).astype(value.type.dtype.numpy)
        for index, (value, result) in enumerate(zip(node.outputs, results, strict=False))
        if value is not None
    }


def computed(node: Node, arrays: Sequence[Array | None], registry: Registry) -> Sequence[Array | None]:
    """The results of a node of float64 arrays by the reference's kernel, else by its decomposition.

    Raises:
        PluginError: it has neither.
    """
    kernels = registry.reference_kernels.get(node.op.name)
    if kernels:
        attributes = {key: float64 if value == float32 else value for key, value in node.attributes.items()}
        return call_kernel(kernels[0].code, node, arrays, attributes)
    return decomposed(node, arrays, registry)


def decomposed(node: Node, arrays: Sequence[Array | None], registry: Registry) -> Sequence[Array | None]:
    """The results of a node of float64 arrays by its op's decomposition.

    Raises:
        PluginError: it has none.
    """
    if node.op.decompose is None:
        raise PluginError(f"op {node.op.name!r} has neither a kernel on the reference nor a decomposition")
    g = GraphBuilder(node.op.name)
    values: list[Value | None] = []
    feeds: dict[str, Array] = {}
    for index, array in enumerate(arrays):
        values.append(None if array is None else g.input(f"x{index}", dtype(array), array.shape))
        if array is not None:
            feeds[f"x{index}"] = array
    attributes = {key: float64 if value == float32 else value for key, value in node.attributes.items()}
    found = node.op.decompose(*values, **attributes)
    several = found if isinstance(found, (tuple, list)) else (found,)
    for index, value in enumerate(several):
        g.output(f"y{index}", value)
    made = evaluated(g.build(), feeds, registry)
    return [made[f"y{index}"] for index in range(len(several))]


def evaluated(graph: Graph, feeds: Mapping[str, Array], registry: Registry) -> dict[str, Array]:
    """The outputs of a graph, node by node on the reference, of arrays of any float dtype."""
    known: dict[Value, Array | None] = {value: feeds[value.name] for value in graph.inputs}
    for value, stored in graph.initializers.items():
        array = stored.array if stored.factor is None else stored.array * stored.factor
        known[value] = _as_float64(np.asarray(array))
    for node in graph.nodes:
        results = computed(node, [None if v is None else known[v] for v in node.inputs], registry)
        known.update((v, r) for v, r in zip(node.outputs, results, strict=False) if v is not None)
    return {name: np.asarray(known[value]) for name, value in graph.outputs.items()}


def _as_float64(array: Array | None) -> Array | None:
    return array.astype(np.float64) if array is not None and array.dtype == np.float32 else array
