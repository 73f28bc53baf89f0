"""Options of sessions over random graphs: small memory, limits, out=, inner values, state, reload, several threads.

No option changes results: each run is compared with float64 as any other, state with that of a caller who feeds it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random as standard
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

import dataflow as df
from dataflow.passes.bind_shapes import bind

from .comparing import wrong
from .findings import Outcome, allowed, different, ended_by
from .graphs import of_graph
from .making import Array, Made, ops
from .naming import named

LIMITS = df.Limits(bytes=1 << 30, seconds=60)


@of_graph
def target(graph: Made, random: standard.Random) -> Outcome:
    """Sessions over the graph of a case; see ``campaign.Target``."""
    if any(node.op.name == "keyed" for node in graph.graph.nodes):
        return Outcome("maps")  # results that are no arrays
    options = options_of(random)
    check = random.choice((_runs, _runs, _reloads, _states, _caches, _threads))
    label = f"{check.__name__[1:]} " + " ".join(f"{k}={v}" for k, v in options.items())
    try:
        for text in check(graph, options, random):
            return different(check.__name__[1:], graph.graph, f"{label}: {text}")
    except Exception as error:
        return ended_by(error, label)
    return Outcome("ran")


def options_of(random: standard.Random) -> dict[str, Any]:
    """Those of a session that leave results as they are."""
    return {
        "devices": random.choice((["cpu"], ["cpu"], ["cpu"], ["numpy"])),
        "threads": random.choice((1, 2)),
        "memory": random.choice((None, "small")),
        "plans": random.choice((0, 1, 2, 16)),
        "concurrency": random.choice((1, 4)),
        "limits": random.choice((None, LIMITS)),
        "fold": random.random() < 0.8,
        "fuse": random.random() < 0.8,
    }


def _runs(given: Made, options: dict[str, Any], random: standard.Random) -> Iterator[str]:
    """Some outputs and inner values, into arrays of the caller's."""
    graph = given.graph
    inner = [v for node in graph.nodes for v in node.outputs if v is not None and v not in graph.outputs.values()]
    chosen = random.sample(inner, min(len(inner), random.randint(0, 3)))
    wanted = {**{n: v for n, v in graph.outputs.items() if random.random() < 0.7}, **{v.name: v for v in chosen}}
    if not wanted:
        return
    reference = dataclasses.replace(graph, outputs=wanted)
    with df.Session(graph, **options) as session:
        for _ in range(2):
            out = {n: _array(v.type) for n, v in wanted.items() if random.random() < 0.5}
            found = session.run(given.feeds, list(wanted), out=out)
            for name, array in out.items():
                if found[name] is not array:
                    yield f"{name!r} isn't the array given by out="
            if text := wrong(reference, given.feeds, found):
                yield text


def _array(type_: df.TensorType) -> Array:
    """An array of a type that is full of what must not stay."""
    array = np.empty(type_.sizes, type_.dtype.numpy)
    array.reshape(-1).view(np.uint8)[:] = 0xA5
    return array


def _reloads(given: Made, options: dict[str, Any], random: standard.Random) -> Iterator[str]:
    """Other weights between runs: they come with ``reload``, not before."""
    model = df.Model(given.graph)
    arrays = np.random.default_rng(random.getrandbits(32))
    with df.Session(model, **options) as session:
        before = session.run(given.feeds)
        if text := wrong(given.graph, given.feeds, before):
            yield text
        for _ in range(2):
            old = model.graph_with_data()
            for parameter in model.parameters.values():
                if parameter.type.dtype == df.float32 and random.random() < 0.7:
                    noise = arrays.standard_normal(parameter.array.shape) / 8
                    parameter.set(np.asarray(parameter.array * 1.25 + noise, np.float32))
            if text := wrong(old, given.feeds, session.run(given.feeds)):
                yield f"before reload: {text}"
            session.reload()
            if text := wrong(model.graph_with_data(), given.feeds, session.run(given.feeds)):
                yield f"after reload: {text}"


def _states(given: Made, options: dict[str, Any], random: standard.Random) -> Iterator[str]:
    """Some inputs are state, which outputs leave for the next run."""
    graph = given.graph
    kept = [v for v in graph.inputs if v.type.dtype == df.float32 and random.random() < 0.7]
    results = [v for v in graph.outputs.values() if v.type.dtype == df.float32 and v.type.elements]
    if not kept or not results:
        return
    g = df.GraphBuilder("states")
    new = g.adopt(graph)
    for name, value in graph.outputs.items():
        g.output(name, new[value])
    pairs = {}
    for index, value in enumerate(kept):
        other = new[random.choice(results)]
        mean = ops.reduce_mean(other, axes=tuple(range(other.type.rank)), keepdims=False) if other.type.rank else other
        made_ = random.choice((ops.tanh, ops.sin))(ops.add(new[value], mean))
        if random.random() < 0.2:
            made_ = ops.copy(new[random.choice([v for v in kept if v.type == value.type])])  # they may change places
        g.output(f"next{index}", made_)
        pairs[f"next{index}"] = value.name
    built = g.build()
    fed = {n: a for n, a in given.feeds.items() if n not in pairs.values()}
    state = {v.name: np.asarray(given.feeds[v.name]) for v in kept}
    session = df.Session(built, state=pairs, **options)
    session.reset(state)
    yield from _followed(session, built, pairs, state, [fed] * 4, random)


def _followed(
    session: df.Session,
    graph: df.Graph,
    pairs: dict[str, str],
    state: dict[str, Array],
    runs: list[dict[str, Array]],
    random: standard.Random,
) -> Iterator[str]:
    """Runs with state against runs whose caller feeds what the session says that it kept."""
    for number, fed in enumerate(runs):
        sizes = {}
        for value in graph.inputs:
            have = {**fed, **state}[value.name]
            sizes |= {str(d): s for d, s in zip(value.type.shape, have.shape, strict=True) if not isinstance(d, int)}
        bound = bind(graph, sizes) if sizes else graph
        shown = [*pairs] if random.random() < 0.5 else []
        others = [name for name in graph.outputs if name not in pairs]
        found = session.run(fed, [*others, *shown])
        left = dict(session.state)
        complete = {**{n: found[n] for n in others}, **{out: left[name] for out, name in pairs.items()}}
        if text := wrong(bound, {**fed, **state}, complete):
            yield f"run {number}: {text}"
        if not all(found[out].tobytes() == left[pairs[out]].tobytes() for out in shown):
            yield f"run {number}: the state is not what the run returned"
        state = left
        if random.random() < 0.1:
            session.reset(state)


def _caches(given: Made, options: dict[str, Any], random: standard.Random) -> Iterator[str]:
    """A cache that grows with each run by some rows, as a decoder's."""
    results = [v for v in given.graph.outputs.values() if v.type.dtype == df.float32 and v.type.elements]
    if not results:
        return
    g = df.GraphBuilder("caches")
    new = g.adopt(given.graph)
    for name, value in given.graph.outputs.items():
        g.output(name, new[value])
    value = random.choice(results)
    columns = value.type.sizes[-1] if value.type.rank else 1
    rows = ops.reshape(new[value], shape=(value.type.elements // columns, columns))
    past = g.input("past", df.float32, ("P", columns))
    present = ops.concat(past, rows, axis=0) if random.random() < 0.8 else ops.concat(rows, past, axis=0)
    g.output("present", present)
    scores = ops.softmax(ops.matmul(rows, ops.transpose(present, perm=(1, 0))), axis=-1)
    g.output("attended", ops.matmul(scores, present) if random.random() < 0.7 else ops.reduce_mean(present, axes=(0,)))
    built = g.build()
    pairs = {"present": "past"}
    first = np.random.default_rng(1).standard_normal((random.choice((0, 0, 3)), columns)).astype(np.float32)
    session = df.Session(built, state=pairs, **options)
    session.reset({"past": first})
    yield from _followed(session, built, pairs, {"past": first}, [given.feeds] * random.choice((3, 8)), random)


def _threads(given: Made, options: dict[str, Any], random: standard.Random) -> Iterator[str]:
    """Several threads with other sizes each, and few plans."""
    graph, sizes = named(given.graph, random)
    runs = []
    arrays = np.random.default_rng(random.getrandbits(32))
    for number in range(4):
        chosen = {n: s if not number else random.choice((1, 2, 3, s + 1)) for n, s in sizes.items()}
        feeds = dict(given.feeds)
        for value in graph.inputs if number else ():
            operand = given.operands[value.name]
            if operand.value is None:
                feeds[value.name] = dataclasses.replace(operand, shape=value.type.bind(chosen).sizes).array(arrays)
        if all(np.shape(feeds[v.name]) == v.type.bind(chosen).sizes for v in graph.inputs):
            with contextlib.suppress(df.DataflowError):  # it doesn't fit these sizes
                runs.append((bind(graph, chosen) if sizes else graph, feeds))
    session = df.Session(graph, **options)
    found: list[list[Any]] = [[] for _ in runs]

    def work(index: int) -> None:
        for _ in range(3):
            try:
                found[index].append(session.run(runs[index][1]))
            except Exception as error:
                found[index].append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for (bound, feeds), results in zip(runs, found, strict=True):
        for result in results:
            if isinstance(result, Exception):
                if not allowed(result):
                    raise result
            elif text := wrong(bound, feeds, result):
                yield text
