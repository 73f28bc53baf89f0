"""Gradients of gradients: the gradients of the random graphs, differentiated and compared as any graph is."""

from __future__ import annotations

import dataclasses
import functools
import random as standard

import numpy as np

from .findings import Outcome
from .gradients import INSTRUCTION_SETS as INSTRUCTION_SETS
from .gradients import check, differentiated
from .graphs import of_graph
from .making import Made


@functools.partial(of_graph, nests=False)  # second gradients of bodies in bodies take long
def target(graph: Made, random: standard.Random) -> Outcome:
    """The gradients of the gradients of the graph of a case; see ``campaign.Target``."""
    first = differentiated(graph.graph, graph.feeds, np.random.default_rng(random.getrandbits(32)))
    if isinstance(first, Outcome):
        return first
    gradients = {f"first.{n}": v for n, v in first.joint.outputs.items() if n not in first.graph.outputs}
    return check(dataclasses.replace(first.joint, outputs=gradients), {**first.feeds, **first.seeds}, random)
