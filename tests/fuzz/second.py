"""Gradients of gradients: the gradients of the random graphs, differentiated and compared as any graph is."""

from __future__ import annotations

import dataclasses

import numpy as np

from .findings import Outcome, allowed, finding_of
from .gradients import INSTRUCTION_SETS as INSTRUCTION_SETS
from .gradients import check, differentiated
from .graphs import made


def target(seed: int, case: int) -> Outcome:
    """The gradients of the gradients of the graph of a case; see ``campaign.Target``."""
    try:
        graph, random = made(seed, case)
    except Exception as error:
        return Outcome("refused") if allowed(error) else Outcome("failed", (finding_of(error, "building"),))
    first = differentiated(graph.graph, graph.feeds, np.random.default_rng(random.getrandbits(32)))
    if isinstance(first, Outcome):
        return first
    gradients = {f"first.{n}": v for n, v in first.joint.outputs.items() if n not in first.graph.outputs}
    return check(dataclasses.replace(first.joint, outputs=gradients), {**first.feeds, **first.seeds}, random)
