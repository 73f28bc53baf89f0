"""Random nodes with bodies: scans, branches and loops, whose bodies are random graphs too, with such nodes in them."""

from __future__ import annotations

from typing import Any

import numpy as np

import dataflow as df
from dataflow.ir.types import TensorType
from dataflow.ir.value import Value
from dataflow.testing import Operand

from .making import Maker, ops

_DEEPEST = 3  # bodies around a node


def with_body(maker: Maker) -> tuple[Any, ...]:
    """The results of a scan, a branch or a loop over values of the graph that fit."""
    often = (_scan, _scan, _branch, _loop)
    within = (_scan, _scan, _scan, _branch, _branch, _branch, _branch, _loop)  # which has no gradient
    return maker.random.choice(within if maker.depth else often)(maker)


def _scan(maker: Maker) -> tuple[Any, ...]:
    random = maker.random
    sequence = maker.pick(lambda v: v.type.shape)
    if random.random() < 0.4:
        sequence = maker.slice_to(sequence, sequence.type.sizes if random.random() < 0.5 else
                             (random.randint(0, sequence.type.sizes[0]), *sequence.type.sizes[1:]))  # fmt: skip
    iterations = sequence.type.sizes[0]
    others = [v for v in maker.floats() if v.type.shape and v.type.sizes[0] == iterations]
    xs = [sequence, *random.sample(others, min(len(others), random.randint(0, 1)))]
    carries = [maker.pick() for _ in range(random.randint(0, 2))]
    captures = [maker.pick() for _ in range(random.randint(0, 2))]
    if captures and random.random() < 0.3:  # one that is computed from another outside
        captures.append(random.choice((ops.tanh, ops.copy, ops.neg))(captures[0]))
    rows = [TensorType(x.type.dtype, x.type.shape[1:]) for x in xs]
    types = [v.type for v in carries] + rows + [v.type for v in captures]
    stacked = random.randint(0 if carries else 1, 2)
    body = _body(maker, types, [v.type for v in carries], stacked, [])
    attributes = {"n_carries": len(carries), "n_xs": len(xs), "reverse": random.randint(0, 1)}
    made = maker.g.add(ops.scan, [*carries, *xs, *captures], attributes, bodies=(body,))
    return tuple(made.outputs[: len(carries) + stacked])


def _branch(maker: Maker) -> tuple[Any, ...]:
    captures = [maker.pick() for _ in range(maker.random.randint(1, 3))]
    condition = _condition(maker)
    results = [maker.random.choice(captures).type for _ in range(maker.random.randint(1, 2))]
    bodies = tuple(_body(maker, [v.type for v in captures], results, 0, []) for _ in range(2))
    return tuple(maker.g.add(ops.if_, [condition, *captures], {}, bodies=bodies).outputs)


def _condition(maker: Maker) -> Value:
    """A bool; in a body mostly one that changes from iteration to iteration."""
    if maker.depth and maker.random.random() < 0.8:
        return ops.less(maker.fit(maker.pick(), Operand(())), 0.123)
    return maker.leaf(Operand((), df.bool_))


def _loop(maker: Maker) -> tuple[Any, ...]:
    carries = [maker.pick() for _ in range(maker.random.randint(1, 2))]
    captures = [maker.pick() for _ in range(maker.random.randint(0, 1))]
    most = maker.random.randint(0, 6)
    count = maker.leaf(Operand((), df.int64, value=maker.random.randint(0, most)))
    go = maker.leaf(Operand((), df.bool_, value=maker.random.random() < 0.9))
    counter = [TensorType(df.int64, ()), TensorType(df.bool_, ())]
    types = [*counter, *[v.type for v in carries], *[v.type for v in captures]]
    stacked = maker.random.randint(0, 1)
    body = _body(maker, types, [v.type for v in carries], stacked, [maker.random.randint(1, 6)])
    made = maker.g.add(
        ops.loop, [count, go, *carries, *captures], {"n_carries": len(carries), "max_iterations": most}, bodies=(body,)
    )
    return tuple(made.outputs[1:])


def _body(maker: Maker, given: list[TensorType], results: list[TensorType], stacked: int, until: list[int]) -> df.Graph:
    """A random body: results of these types, then ``stacked`` of any; with ``until``, first a condition."""
    g = df.GraphBuilder("body")
    inner = Maker(maker.random, g, maker.depth + 1, maker.nests)
    inputs = [g.input(f"a{index}", t.dtype, t.shape) for index, t in enumerate(given)]
    inner.values += [v for v in inputs if v.type.shape or v.type.dtype == df.float32]
    for _ in range(maker.random.randint(0, 4)):
        if maker.nests and inner.depth < _DEEPEST and maker.random.random() < 0.15:
            for value in with_body(inner):
                inner.keep(value)
            continue
        made = maker.random.choice((inner.unary, inner.binary, inner.view, inner.reduce, inner.matmul))()
        if made is not None and np.prod(made.type.sizes) <= 500:
            inner.keep(made)
    if until:
        g.output("go", ops.less(inputs[0], until[0]))
    for index, type_ in enumerate(results):
        g.output(f"r{index}", _of_type(inner, type_))
    for index in range(stacked):
        g.output(f"s{index}", maker.random.choice(inner.values))
    return g.build()


def _of_type(inner: Maker, type_: TensorType) -> Value:
    """A value of this type, bounded, so that what is carried doesn't grow from iteration to iteration."""
    same = [v for v in inner.values if v.type == type_]
    if same and inner.random.random() < 0.5:
        return ops.tanh(same[-1]) if inner.random.random() < 0.5 else same[-1]
    return inner.fit(ops.tanh(inner.pick()), Operand(type_.sizes, type_.dtype))
