"""Graphs, differentially: devices and options against float64, every plan past its checker, named sizes bound anew."""

from __future__ import annotations

import dataclasses
import random as standard
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import dataflow as df
from dataflow.passes.bind_shapes import bind
from dataflow.planning.verify import check_plan

from .campaign import Target
from .comparing import wrong
from .findings import Finding, Outcome, allowed, ended_by, finding_of
from .making import Array, Made, make_graph
from .naming import named

MOST_ELEMENTS = 1 << 22  # of a value: broadcasts of views grow beyond what the reference can hold
INSTRUCTION_SETS = ("avx512", "avx2", "portable")
VARIANTS: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("cpu", {"threads": 1}),
    ("cpu", {"threads": 2, "fold": False}),
    ("cpu", {"threads": 1, "fuse": False}),
    ("numpy", {"threads": 1}),
)


def made(seed: int, case: int, nests: bool = True) -> tuple[Made, standard.Random]:
    """The graph of a case, and what decides about the rest of it; ``nests``: bodies may have bodies."""
    random = standard.Random(f"{seed}:{case}")
    return make_graph(random, nests), random


def of_graph(check: Callable[[Made, standard.Random], Outcome], nests: bool = True) -> Target:
    """The target that checks the graph of a case, where there is one of a size that the reference can hold."""

    def target(seed: int, case: int) -> Outcome:
        try:
            graph, random = made(seed, case, nests)
        except Exception as error:
            return ended_by(error, "building")
        return Outcome("large") if too_large(graph.graph) else check(graph, random)

    return target


def too_large(graph: df.Graph) -> bool:
    """Whether the reference can't hold a value."""
    return any(value.type.elements > MOST_ELEMENTS for value in graph.values())


@of_graph
def target(graph: Made, random: standard.Random) -> Outcome:
    """Builds the graph of a case and compares; see ``campaign.Target``."""
    found = minimized(graph.graph, graph.feeds)
    if not found and random.random() < 0.4:
        found = check_named(graph, random)
    return Outcome("different" if found else "ran", tuple(found))


def check(graph: df.Graph, feeds: Mapping[str, Array]) -> Iterator[Finding]:
    """The first finding of a bound graph with these inputs, if there is one."""
    for device, options in VARIANTS:
        label = " ".join([device, *(f"{k}={v}" for k, v in options.items())])
        try:
            session = df.Session(graph, devices=[device], **options)
            results = session.run({n: a.copy() for n, a in feeds.items()})
            for plan in session.plans:
                if plan.peak_bytes < 1_000_000:
                    check_plan(plan)
            text = wrong(graph, feeds, results)
        except Exception as error:
            if not allowed(error):
                yield finding_of(error, label)
                return
            if not _refused_by_reference(graph, feeds):
                yield Finding("refused", f"{type(error).__name__}: {str(error)[:60]}", f"{label}: {error}")
                return
            continue
        if text:
            yield Finding("different", label.partition(" ")[0], f"{label}: {text}")
            return


def check_named(made: Made, random: standard.Random) -> list[Finding]:
    """The same graph with named sizes: bound as it was, and to other sizes."""
    try:
        graph, sizes = named(made.graph, random)
    except Exception as error:
        return [] if allowed(error) else [finding_of(error, "naming sizes")]
    session = df.Session(graph, devices=["cpu"], threads=1)
    arrays = np.random.default_rng(random.getrandbits(32))
    for round_ in range(3 if sizes else 0):
        chosen = sizes if not round_ else {n: random.choice((0, 1, 2, 3, s + 1, 2 * s)) for n, s in sizes.items()}
        feeds = dict(made.feeds)
        for value in graph.inputs if round_ else ():
            operand = made.operands[value.name]
            if operand.value is None:
                shape = value.type.bind(chosen).sizes
                feeds[value.name] = dataclasses.replace(operand, shape=shape).array(arrays)
        if any(feeds[v.name].shape != v.type.bind(chosen).sizes for v in graph.inputs):
            continue  # its data are given
        finding = _named_finding(graph, session, chosen, feeds)
        if finding is not None:
            bound = bind(graph, chosen)
            return minimized(bound, feeds) or [finding]  # it may not be the names that matter
    return []


def _named_finding(
    graph: df.Graph, session: df.Session, chosen: Mapping[str, int], feeds: Mapping[str, Array]
) -> Finding | None:
    try:
        bound = bind(graph, chosen)
        if _refused_by_reference(bound, feeds):
            return None
        text = wrong(bound, feeds, session.run(feeds))
    except Exception as error:
        return None if allowed(error) else finding_of(error, f"named sizes {dict(chosen)}")
    names = " ".join(sorted({node.op.name for node in graph.nodes}))
    return Finding("different", f"named sizes | {names}", f"{dict(chosen)}: {text}\n{graph}") if text else None


def minimized(graph: df.Graph, feeds: Mapping[str, Array]) -> list[Finding]:
    """The findings of a bound graph, grouped by the ops of the smallest graph that has them."""
    from .minimizing import shrink_graph

    found = []
    for finding in check(graph, feeds):

        def fails(smaller: df.Graph, data: Mapping[str, Array], kind: str = finding.kind) -> bool:
            return any(f.kind == kind for f in check(smaller, data))

        small, data = shrink_graph(graph, feeds, fails)
        again = next((f for f in check(small, data) if f.kind == finding.kind), finding)
        names = " ".join(sorted({node.op.name for node in small.nodes}))
        found.append(Finding(finding.kind, f"{again.where} | {names}", f"{again.text}\n{small}"))
    return found


def _refused_by_reference(graph: df.Graph, feeds: Mapping[str, Array]) -> bool:
    from dataflow_numpy.evaluate import evaluate

    try:
        evaluate(graph, feeds)
    except df.DataflowError:
        return True
    return False


def reproduce(seed: int, case: int, path: Path) -> None:
    """Writes the smallest graph that has the finding of a case, as a test."""
    from .minimizing import shrink_graph
    from .writing import as_test

    graph, _ = made(seed, case)
    kinds = {f.kind for f in check(graph.graph, graph.feeds)}

    def fails(smaller: df.Graph, data: Mapping[str, Array]) -> bool:
        return any(f.kind in kinds for f in check(smaller, data))

    small, data = shrink_graph(graph.graph, graph.feeds, fails) if kinds else (graph.graph, graph.feeds)
    path.write_text(as_test(small, data))
