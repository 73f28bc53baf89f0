"""Statistics of the tensors of a training: parameters, gradients, and values between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from ...errors import InputError
from ...host import checks
from ...ir.types import Array, dtype
from ..freezing import named
from ..stepper import Stepper
from .statistics import Statistics, statistics_of

KINDS = ("parameters", "gradients", "values")


def tensor_statistics(
    trainer: Stepper, of: str, names: Sequence[str] | str, batch: Mapping[str, Any] | None
) -> dict[str, Statistics]:
    """Statistics by name; see ``Trainer.statistics``."""
    checks.text("statistics: of", of, KINDS)
    if (of == "values") != (batch is not None):
        raise InputError("statistics: a batch is needed for 'values', and for nothing else")
    with trainer.model.lock:
        return {name: statistics_of(array) for name, array in _arrays(trainer, of, names, batch).items()}


def _arrays(trainer: Stepper, of: str, names: Sequence[str] | str, batch: Mapping[str, Any] | None) -> dict[str, Array]:
    if batch is not None:
        return _values(trainer, names, batch)
    chosen = named(trainer.model, names, trainer.trainable, trainer.ties)
    if of == "parameters":
        return {name: trainer.model.parameters[name].array for name in chosen}
    weight = trainer.gradient_weight
    if weight == 0.0:
        raise InputError("statistics: there are no gradients before the first step")
    known = set(trainer.programs.own)
    return {name: trainer.programs.gradient(name) / weight for name in chosen if name in known}


def _values(trainer: Stepper, names: Sequence[str] | str, batch: Mapping[str, Any]) -> dict[str, Array]:
    """Values of the forward program on a batch, after which training stands where it stood."""
    if trainer.pending:
        raise InputError(f"statistics: {trainer.pending} micro-batches wait for update(), and would lose gradients")
    graph = trainer.model.graph
    known = [v.name for node in graph.nodes for v in node.outputs if v is not None and v.type.dtype.is_float]
    chosen: dict[str, None] = {}
    for pattern in checks.texts("statistics: names", names):
        matched = [name for name in known if fnmatchcase(name, pattern)]
        if not matched:
            raise InputError(f"statistics: {pattern!r} matches no float value of a node of the model")
        chosen |= dict.fromkeys(matched)
    try:
        found = trainer.forward(batch, list(chosen))
    finally:
        trainer.discard()
    return {name: found[name] for name in chosen if dtype(found[name]).is_float}
