"""Gradients: the random graphs through their vjp, on devices against float64 and in float64 against differences."""

from __future__ import annotations

import dataclasses
import random as standard
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import dataflow as df
from dataflow.ir.graph import Node
from dataflow.passes.autodiff import vjp_graph

from .comparing import evaluate_noisy
from .findings import Outcome, different, finding_of
from .graphs import INSTRUCTION_SETS as INSTRUCTION_SETS
from .graphs import minimized, of_graph
from .making import Array, Made

STEPS = (1e-5, 1e-6, 1e-7)
LIMIT = 1e-5  # of the size of the terms
# Weights of taps, and regions, are constants; one op is there to have no gradient; two sum in float32 always.
WITHOUT = {
    "resample",
    "resample_grad",
    "roi_align",
    "roi_align_grad",
    "max_roi_pool",
    "stop_gradient",
    "square_sum",
    "square_sums",
}


@of_graph
def target(made: Made, random: standard.Random) -> Outcome:
    """The gradients of the graph of a case; see ``campaign.Target``."""
    return check(made.graph, made.feeds, random)


def unlike(node: Node) -> bool:
    """Whether the gradient isn't that of the function: by choice, or as statistics are given that x doesn't have."""
    given = node.op.name in ("batch_norm_train", "batch_norm_train_relu") and len(node.inputs) > 5
    return given or node.op.name in WITHOUT


@dataclass(frozen=True, repr=False)
class Differentiated:
    """A graph of float outputs, its joint graph by all float inputs, and what both are fed."""

    graph: df.Graph
    joint: df.Graph
    feeds: Mapping[str, Array]
    seeds: Mapping[str, Array]


def differentiated(
    graph: df.Graph, feeds: Mapping[str, Array], arrays: np.random.Generator
) -> Differentiated | Outcome:
    """The graph with its gradient, and random cotangents; or what comes instead."""
    results = {name: v for name, v in graph.outputs.items() if v.type.dtype == df.float32}
    inputs = [v for v in graph.inputs if v.type.dtype == df.float32]
    usable = all(np.isfinite(feeds[v.name]).all() for v in inputs)
    if not (results and inputs and usable) or any(map(unlike, graph.nodes)):
        return Outcome("no gradient")
    graph = dataclasses.replace(graph, outputs=results)
    try:
        joint = vjp_graph(graph, inputs)
    except df.GradientError:
        return Outcome("no gradient")
    except Exception as error:
        return Outcome("failed", (finding_of(error, "differentiating"),))
    seeds = {f"grad.{n}": arrays.standard_normal(v.type.sizes).astype(np.float32) for n, v in results.items()}
    return Differentiated(graph, joint, feeds, seeds)


def check(graph: df.Graph, feeds: Mapping[str, Array], random: standard.Random) -> Outcome:
    """What comes of the joint graph of float inputs and outputs."""
    arrays = np.random.default_rng(random.getrandbits(32))
    found = differentiated(graph, feeds, arrays)
    if isinstance(found, Outcome):
        return found
    text = differences(found.graph, found.joint, found.feeds, found.seeds, arrays)
    if text:
        return different("differences", graph, text)
    findings = minimized(found.joint, {**found.feeds, **found.seeds})
    return Outcome("different" if findings else "ran", tuple(findings))


def differences(
    graph: df.Graph,
    joint: df.Graph,
    feeds: Mapping[str, Array],
    seeds: Mapping[str, Array],
    arrays: np.random.Generator,
    wrt: Sequence[str] | None = None,
) -> str:
    """How the vjp differs from central differences along a random direction, both in float64; or nothing.

    Where differences of several lengths or to both sides don't agree, the function has a kink or a jump there, or bends
    much, and they say nothing.

    Args:
        graph: of float outputs.
        joint: it with its vjp.
        feeds: of its inputs.
        seeds: cotangents of its outputs.
        arrays: gives the direction.
        wrt: names of inputs to which it belongs; all of float32 by default.
    """
    exact = {n: a.astype(np.float64) if a.dtype == np.float32 else a for n, a in feeds.items()}
    given = {**exact, **{n: a.astype(np.float64) for n, a in seeds.items()}}
    names = [n for n in exact if feeds[n].dtype == np.float32] if wrt is None else [*wrt]
    direction = {n: arrays.standard_normal(exact[n].shape) for n in names}

    def moved(by: float) -> float:
        at = {n: a + by * direction[n] if n in direction else a for n, a in exact.items()}
        found = evaluate_noisy(graph, at, arrays, 0.0)
        return float(sum((given[f"grad.{n}"] * a).sum() for n, a in found.items()))

    with np.errstate(all="ignore"):
        try:
            gradients = evaluate_noisy(joint, given, arrays, 0.0)
            here = moved(0.0)
            slopes = [(moved(step) - moved(-step)) / (2 * step) for step in STEPS]
            slopes += [(moved(sign * STEPS[0]) - here) / (sign * STEPS[0]) for sign in (1, -1)]
        except df.DataflowError:
            return ""
        terms = [(direction[n] * gradients[f"grad.{n}"]) for n in names]
        along = float(sum(t.sum() for t in terms))
        size = max(1.0, float(sum(np.abs(t).sum() for t in terms)), abs(here))
    if not np.isfinite([along, *slopes, size]).all() or max(slopes) - min(slopes) > 0.3 * LIMIT * size:
        return ""
    if abs(along - slopes[1]) > LIMIT * size:
        return f"the vjp gives {along}, differences {slopes[1]}"
    return ""
