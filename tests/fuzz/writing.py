"""Writes a graph with its inputs as a test that builds it anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import dataflow as df

Array = np.ndarray[Any, Any]

_HEAD = """import numpy as np

import dataflow as df
from dataflow.planning.verify import check_plan
from tests.fuzz.comparing import wrong


def test_it_is_right_on_every_device():
"""
_TAIL = """    for options in ({}, {"fold": False}, {"fuse": False}, {"devices": ["numpy"]}):
        session = df.Session(graph, **{"devices": ["cpu"], **options})
        results = session.run(feeds)
        for plan in session.plans:
            check_plan(plan)
        assert not wrong(graph, feeds, results), options
"""


def as_test(graph: df.Graph, feeds: Mapping[str, Array]) -> str:
    """The text of a test module."""
    lines = [*_lines(graph, "graph"), "feeds = {"]
    lines += [f"    {name!r}: {_array(array)}," for name, array in feeds.items()]
    return _HEAD + "".join(f"    {line}\n" for line in [*lines, "}"]) + _TAIL


def _lines(graph: df.Graph, name: str) -> Iterator[str]:
    """Statements that leave the graph in a variable."""
    g = f"{name}_builder"
    names = {value: f"{name}_v{number}" for number, value in enumerate(graph.values())}
    yield f"{g} = df.GraphBuilder()"
    for value in graph.inputs:
        shape = tuple(d if isinstance(d, int) else str(d) for d in value.type.shape)
        yield f"{names[value]} = {g}.input({value.name!r}, df.{value.type.dtype.name.rstrip('_')}, {shape})".replace(
            "df.bool,", "df.bool_,"
        )
    for value, data in graph.initializers.items():
        yield f"{names[value]} = {g}.constant({_array(data.array)})"
    for number, node in enumerate(graph.nodes):
        bodies = [f"{name}_body{number}_{index}" for index in range(len(node.bodies))]
        for body, text in zip(node.bodies, bodies, strict=True):
            yield from _lines(body, text)
        inputs = ", ".join("None" if v is None else names[v] for v in node.inputs)
        attributes = ", ".join(f"{key!r}: {_attribute(value)}" for key, value in node.attributes.items())
        more = f", bodies=({', '.join(bodies)},)" if bodies else ""
        results = ", ".join("_" if v is None else names[v] for v in node.outputs)
        yield f"{results}, = {g}.add(df.ops.{node.op.name}, [{inputs}], {{{attributes}}}{more}).outputs"
    for key, value in graph.outputs.items():
        yield f"{g}.output({key!r}, {names[value]})"
    yield f"{name} = {g}.build()"


def _attribute(value: Any) -> str:
    return f"df.{'bool_' if value.name == 'bool' else value.name}" if isinstance(value, df.DType) else repr(value)


def _array(array: Array) -> str:
    """The data where they are few, else random ones of the same kind."""
    dtype = array.dtype.name
    if array.size <= 64 and array.size:
        return f"np.array({np.array(array.tolist(), object).tolist()}, {dtype!r})".replace("nan", "np.nan").replace(
            "inf", "np.inf"
        )
    if array.dtype.kind == "f":
        return f"np.random.default_rng(0).standard_normal({array.shape}).astype({dtype!r})"
    return f"np.zeros({array.shape}, {dtype!r})"
