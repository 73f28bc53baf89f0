"""The random graphs, and their gradients, in other dtypes: float32 is float64, float16 or bfloat16 throughout."""

from __future__ import annotations

import dataclasses
import random as standard
from typing import Any

import numpy as np

import dataflow as df
from dataflow.ir.graph import Node
from dataflow.ir.rewrite import rewrite
from dataflow.ir.types import TensorType
from dataflow.ir.value import Value
from dataflow.passes.autodiff import vjp_graph

from .findings import Outcome, ended_by, finding_of
from .graphs import INSTRUCTION_SETS as INSTRUCTION_SETS
from .graphs import minimized, of_graph
from .making import Array, Made

# Of 16 bits, roundings decide what these give, and no error that differs from roundings remains.
STEPS = {"equal", "less", "less_equal", "greater", "greater_equal", "floor", "ceil", "round", "sign", "cast",
         "fused_elementwise", "argmax", "argmin", "top_k", "mod", "quantize"}  # fmt: skip
DTYPES = (df.float64, df.float64, df.float16, df.bfloat16)


@of_graph
def target(graph: Made, random: standard.Random) -> Outcome:
    """The graph of a case in another dtype, and its gradients; see ``campaign.Target``."""
    dtype = random.choice(DTYPES)
    if dtype.bits < 32 and any(node.op.name in STEPS for node in graph.graph.nodes):
        return Outcome("steps")
    try:
        given = in_dtype(graph.graph, dtype)
    except Exception as error:
        return ended_by(error, f"in {dtype}")
    feeds = {name: _cast(array, dtype) for name, array in graph.feeds.items()}
    findings = minimized(given, feeds)
    if not findings:
        findings = _of_gradients(given, feeds, dtype, random)
    return Outcome("different" if findings else "ran", tuple(findings))


def in_dtype(graph: df.Graph, dtype: df.DType) -> df.Graph:
    """The graph with this dtype wherever it has float32, in bodies too.

    Raises:
        ModelError: an op doesn't take it.
    """

    def of(value: Any) -> Any:
        return dtype if isinstance(value, df.DType) and value == df.float32 else value

    def copy(builder: df.GraphBuilder, node: Node, inputs: list[Value | None]) -> tuple[Value | None, ...]:
        attributes = {key: of(value) for key, value in node.attributes.items()}
        bodies = tuple(in_dtype(body, dtype) for body in node.bodies)
        names = [None if v is None else v.name for v in node.outputs]
        return builder.add(node.op, inputs, attributes, bodies=bodies, name=node.name, output_names=names).outputs

    stored = {v: dataclasses.replace(d, array=_cast(d.array, dtype)) for v, d in graph.initializers.items()}
    return rewrite(graph, copy, input_type=lambda t: TensorType(of(t.dtype), t.shape), initializers=stored)


def _of_gradients(graph: df.Graph, feeds: dict[str, Array], dtype: df.DType, random: standard.Random) -> list[Any]:
    """The findings of the graph with its gradients by all inputs of the dtype."""
    results = {name: v for name, v in graph.outputs.items() if v.type.dtype == dtype}
    inputs = [v for v in graph.inputs if v.type.dtype == dtype]
    if not (results and inputs) or not all(np.isfinite(feeds[v.name].astype(np.float64)).all() for v in inputs):
        return []
    try:
        joint = vjp_graph(dataclasses.replace(graph, outputs=results), inputs)
    except df.GradientError:
        return []
    except Exception as error:
        return [finding_of(error, f"differentiating in {dtype}")]
    if dtype.bits < 32 and any(node.op.name in STEPS for node in joint.nodes):
        return []  # as where two are the largest
    arrays = np.random.default_rng(random.getrandbits(32))
    seeds = {f"grad.{n}": _cast(arrays.standard_normal(v.type.sizes).astype(np.float32), dtype)
             for n, v in results.items()}  # fmt: skip
    return minimized(joint, {**feeds, **seeds})


def _cast(array: Array, dtype: df.DType) -> Array:
    with np.errstate(over="ignore"):
        return array.astype(dtype.numpy) if array.dtype == np.float32 else array
