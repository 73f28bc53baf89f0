"""Random nodes without a key or a seed get a key that is an input: another for each run, or step of training."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import ModelError
from ..ir.builder import GraphBuilder
from ..ir.graph import Graph, Node
from ..ir.rewrite import rewrite
from ..ir.types import Array
from ..ir.value import Value
from ..ops.arithmetic import add, mul
from ..ops.control_flow import if_, loop, scan
from ..ops.dynamic_shape import deferred
from ..ops.random import KEY, UNSEEDED, dropout, random_normal, random_uniform

KEY_INPUT, _NEXT = "dataflow.random/key", "dataflow.random/next"


def insert_dropout(graph: Graph, ratios: Mapping[str, float]) -> tuple[Graph, dict[str, str]]:
    """The graph with dropout nodes behind some values, which readers see under the old names; and the new names.

    Args:
        graph: any.
        ratios: the share that is dropped, by the name of the value.

    Raises:
        ModelError: no node computes such a value.
    """
    stream = sum(is_inactive(node) for node in graph.nodes)
    renamed: dict[str, str] = {}

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        names = {value.name for value in node.outputs if value is not None} & ratios.keys()
        if not names:
            return None
        for name in names:
            renamed[name] = builder.free_name(f"{name}.kept")
        outputs = [None if v is None else renamed.get(v.name, v.name) for v in node.outputs]
        made = builder.add(node.op, inputs, node.attributes, bodies=node.bodies, name=node.name, output_names=outputs)
        results = list(made.outputs)
        for index, old in enumerate(node.outputs):
            value = results[index]
            if old is not None and value is not None and old.name in names:
                dropped = dropout(value, None, ratio=ratios[old.name], stream=stream + list(renamed).index(old.name))
                builder.rename(dropped, old.name)
                results[index] = dropped
        return results

    made = rewrite(graph, replace)
    missing = ratios.keys() - renamed.keys()
    if missing:
        raise ModelError(
            f"no node of this form of the model computes {sorted(missing)[0]!r}, behind which dropout goes"
        )
    return made, renamed


def with_key(graph: Graph, *, drops: bool) -> Graph:
    """The graph whose random nodes without a seed draw by a key, ``KEY_INPUT``, that is its last input.

    Nodes of one stream would draw the same numbers: each but the first gets another. A loop carries a key of its own
    from iteration to iteration, and branches get one.

    Args:
        graph: any.
        drops: dropout nodes drop, by that key too.
    """
    return _with_key(graph, drops, None)


def _with_key(graph: Graph, drops: bool, ahead: str | None) -> Graph:
    """See ``with_key``; ``ahead``: the name of an output that comes first and is the key of the next iteration."""
    keys: list[Value] = []

    def by_key(node: Node) -> bool:
        return (drops and is_inactive(node)) or is_unseeded(graph, node)

    given = [int(node.attributes["stream"]) for node in graph.nodes if by_key(node)]
    taken: set[int] = set()
    free = itertools.count(max(given, default=0) + 1)

    def replace(builder: GraphBuilder, node: Node, inputs: list[Value | None]) -> Sequence[Value | None] | None:
        if not keys:
            keys.append(builder.input(KEY_INPUT, KEY.dtype, KEY.shape))
            if ahead is not None:
                builder.output(ahead, _after(keys[0]))
        if node.op in _KEYED and any(draws(body) or (drops and has_dropout(body)) for body in node.bodies):
            return _KEYED[node.op](builder, node, inputs, _entered(keys[0], node), drops)
        if not by_key(node):
            return None
        names = [None if v is None else v.name for v in node.outputs]
        stream = int(node.attributes["stream"])
        attributes = {**node.attributes, "stream": next(free) if stream in taken else stream}
        taken.add(stream)
        operands = (inputs[0], keys[0]) if node.op is dropout else (keys[0],)
        return builder.add(node.op, operands, attributes, name=node.name, output_names=names).outputs

    made = rewrite(graph, replace)
    if keys:
        return made
    return dataclasses.replace(made, inputs=(*made.inputs, Value(KEY_INPUT, KEY)))


# ---- bodies ---------------------------------------------------------------------------------------------

# An iteration adds to the seed, and a node with bodies multiplies it first: sums alone would be the same for the second
# iteration of a loop in the first of another and for the first in the second.
_ITERATION, _ENTRY = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95


def _after(key: Value) -> Value:
    """The key of the next iteration."""
    return _with_seed(key, 1, _ITERATION)


def _entered(key: Value, node: Node) -> Value:
    """The key of the first iteration, or of branches: by the name of the node, which a graph of fewer nodes has too."""
    number = int.from_bytes(hashlib.blake2b(node.name.encode(), digest_size=8).digest(), "little")
    return _with_seed(key, _ENTRY, number)


def _with_seed(key: Value, factor: int, summand: int) -> Value:
    """A key of the same step with another seed."""
    assert key.builder is not None
    factors, summands = (key.builder.constant(np.array(n, np.uint64)) for n in ([factor, 1], [summand, 0]))
    made: Value = add(mul(key, factors) if factor != 1 else key, summands)
    return made


def _carrying(body: Graph, drops: bool, at: int, result: int) -> Graph:
    """A loop's body with a key as input number ``at``, whose successor is output number ``result``."""
    found = _with_key(body, drops, _NEXT)
    *inputs, key = found.inputs
    names = [name for name in found.outputs if name != _NEXT]
    names.insert(result, _NEXT)
    outputs = {name: found.outputs[name] for name in names}
    return dataclasses.replace(found, inputs=(*inputs[:at], key, *inputs[at:]), outputs=outputs)


def _names(node: Node) -> list[str | None]:
    return [None if v is None else v.name for v in node.outputs]


def _keyed_scan(
    builder: GraphBuilder, node: Node, inputs: list[Value | None], key: Value, drops: bool
) -> Sequence[Value | None]:
    """The key is the last carry; what it was before each iteration is the last result."""
    n, names = int(node.attributes["n_carries"]), _names(node)
    body = _carrying(node.bodies[0], drops, n, n)
    operands, results = [*inputs[:n], key, *inputs[n:]], [*names[:n], None, *names[n:], None]
    how = {**node.attributes, "n_carries": n + 1}
    made = builder.add(scan, operands, how, bodies=(body,), name=node.name, output_names=results).outputs
    return [*made[:n], *made[n + 1 : -1]]


def _keyed_loop(
    builder: GraphBuilder, node: Node, inputs: list[Value | None], key: Value, drops: bool
) -> Sequence[Value | None]:
    """The key is the last carry."""
    n, names = int(node.attributes["n_carries"]), _names(node)
    body = _carrying(node.bodies[0], drops, n + 2, n + 1)
    operands, results = [*inputs[: n + 2], key, *inputs[n + 2 :]], [*names[: n + 1], None, *names[n + 1 :]]
    how = {**node.attributes, "n_carries": n + 1}
    made = builder.add(loop, operands, how, bodies=(body,), name=node.name, output_names=results).outputs
    return [*made[: n + 1], *made[n + 2 :]]


def _keyed_if(
    builder: GraphBuilder, node: Node, inputs: list[Value | None], key: Value, drops: bool
) -> Sequence[Value | None]:
    """The key is the last capture of both."""
    bodies = tuple([_with_key(body, drops, None) for body in node.bodies])
    return builder.add(if_, [*inputs, key], {}, bodies=bodies, name=node.name, output_names=_names(node)).outputs


_KEYED = {scan: _keyed_scan, loop: _keyed_loop, if_: _keyed_if}


def is_unseeded(graph: Graph, node: Node) -> bool:
    """Whether a node draws random numbers, and nothing says by which seed."""
    if node.op is not random_uniform and node.op is not random_normal:
        return False
    stored = graph.initializers.get(node.inputs[0]) if node.inputs[0] is not None else None
    return stored is not None and int(stored.array[0]) == UNSEEDED


def may_draw(graph: Graph) -> bool:
    """Whether there is such a node, or may be one in a graph that is made for its inputs."""
    return draws(graph) or any(node.op is deferred for node in graph.nodes)


def draws(graph: Graph) -> bool:
    """Whether there is such a node, in bodies too."""
    return any(is_unseeded(graph, node) or any(map(draws, node.bodies)) for node in graph.nodes)


def has_dropout(graph: Graph) -> bool:
    """Whether there is a node that drops in training, in bodies too."""
    return any(is_inactive(node) or any(map(has_dropout, node.bodies)) for node in graph.nodes)


def is_inactive(node: Node) -> bool:
    """Whether a dropout node has no key, so that its result is its operand."""
    index = node.op.identity_without
    return index is not None and (len(node.inputs) <= index or node.inputs[index] is None)


class RunKeys:
    """The keys of a session's runs, in order; see ``ops.random`` for what is drawn by one.

    Safe to use from several threads.

    Args:
        seed: at least 0, below 2^63.
    """

    def __init__(self, seed: int) -> None:
        self._seed, self._runs = seed, itertools.count()

    def next(self) -> Array:
        """The key of a run: the seed, and how many runs came before."""
        return np.array([self._seed, next(self._runs)], np.uint64)
