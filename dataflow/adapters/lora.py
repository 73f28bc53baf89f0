"""``df.lora``: a model whose weights stay and whose layers learn a change of low rank (arXiv:2106.09685)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError, ModelError
from ..host import checks
from ..host.numbers import integer
from ..ir.edits import edited
from ..ir.graph import Graph
from ..ir.specialize import Given, Listed, Specialize, Wanted
from ..ir.types import Array
from ..layers.layers import Layer, layers_of
from ..layers.targets import chosen
from ..model import Model
from ..train.parameters import select
from .adapter import AdaptedModel, Adapter, as_matrix
from .attach import attach

MOST_RANK = 1 << 16


def lora(
    model: Model,
    rank: int = 8,
    alpha: float = 16,
    targets: Sequence[str] | str | None = None,
    dropout: float = 0.0,
    rank_stabilized: bool = False,
    dora: bool = False,
    seed: int = 0,
    also: Sequence[str] | str = (),
) -> AdaptedModel:
    """A model with adapters: ``y = layer(x) + (alpha / rank) b (a x)``, of which ``a``, ``b`` and ``also`` are trained.

    ``a`` is random as PEFT makes it (uniform within 1 / sqrt(inputs)) and ``b`` zero, so the results are those of the
    model; of a look-up ``a`` is zero and ``b`` normal. Layers that share a weight share its adapter.

    Args:
        model: it is not changed.
        rank: of the change.
        alpha: its factor, times the rank.
        targets: names and patterns of layers, see ``targets.chosen``; queries, keys and values of attention by default.
        dropout: the share of a layer's inputs that its adapter doesn't see in training, with ``Trainer(dropout=True)``.
        rank_stabilized: the factor is alpha / sqrt(rank) (arXiv:2312.03732).
        dora: magnitudes are trained beside the directions (arXiv:2402.09353).
        seed: of the random tensors.
        also: names and patterns of parameters that are trained too, see ``Trainer``.

    Raises:
        InputError: an option doesn't fit, or matches nothing.
        ModelError: a layer can't have such an adapter.
    """
    checks.instance("model", model, Model)
    rank, seed = integer("rank", rank, 1, MOST_RANK), integer("seed", seed, 0)
    alpha, dropout = checks.number("alpha", alpha), checks.number("dropout", dropout, 0.0, 1.0)
    for name, flag in (("rank_stabilized", rank_stabilized), ("dora", dora)):
        checks.instance(name, flag, bool, np.bool_)
    scale = alpha / (math.sqrt(rank) if rank_stabilized else rank)
    layers = chosen(model.graph, candidates(model), targets)
    arrays = model.arrays()
    adapters: list[Adapter] = []
    data: dict[str, Array] = {}
    for index, layer in enumerate(layers):
        adapter = adapter_of(layer, rank, scale, dropout, dora)
        data |= _first_data(adapter, layer, np.random.default_rng([seed, index]))
        if dora:
            data |= magnitudes(adapter, layer, arrays)
        adapters.append(adapter)
    settings = {"r": rank, "lora_alpha": alpha, "lora_dropout": dropout, "use_rslora": bool(rank_stabilized)}
    return adapted(model, adapters, data, settings | {"use_dora": bool(dora)}, also)


def candidates(model: Model) -> list[Layer]:
    """The layers of a model that could have adapters.

    Raises:
        InputError: it has adapters already.
    """
    if isinstance(model, AdaptedModel):
        raise InputError("the model has adapters already; merge them first, with df.merge_lora")
    return layers_of(model.graph, model.aliases)


def adapter_of(layer: Layer, rank: int, scale: float, dropout: float, dora: bool) -> Adapter:
    """The adapter of a layer, its tensors named as PEFT does.

    Raises:
        ModelError: the layer can't have magnitudes.
    """
    path = layer.path
    if layer.kind == "embedding":
        names = (f"{path}.lora_embedding_A", f"{path}.lora_embedding_B")
        dropout = 0.0  # as in PEFT: an index can't be dropped
    else:
        names = (f"{path}.lora_A.weight", f"{path}.lora_B.weight")
    found = Adapter(path, layer.weight.name, layer.kind, rank, scale, *names, dropout=dropout)
    if not dora:
        return found
    if any(use.swapped for use in layer.uses):
        raise ModelError(f"layer {path!r} is read as it is and transposed, so that it has no magnitudes of its outputs")
    made = dataclasses.replace(found, magnitude=f"{path}.lora_magnitude_vector", squares=f"{path}.lora_squares")
    if not layer.stored:
        raise ModelError(f"layer {path!r} computes its weight, from {layer.weight.name!r}; dora needs a stored one")
    return made


def shapes_of(adapter: Adapter, layer: Layer) -> dict[str, tuple[int, ...]]:
    """The shapes of an adapter's tensors, by name."""
    sizes = layer.sizes
    if layer.kind == "conv":
        outputs, spatial = sizes[0], sizes[2:]
        shapes = {adapter.a: (adapter.rank, *sizes[1:]), adapter.b: (outputs, adapter.rank, *(1,) * len(spatial))}
        magnitude = (1, outputs, *(1,) * len(spatial))
    else:
        inputs, outputs = sizes
        shapes = {adapter.a: (adapter.rank, inputs), adapter.b: (outputs, adapter.rank)}
        magnitude = (outputs,)
    return shapes if adapter.magnitude is None else {**shapes, adapter.magnitude: magnitude}


def _first_data(adapter: Adapter, layer: Layer, generator: np.random.Generator) -> dict[str, Array]:
    """Tensors with which the change is zero."""
    shapes = shapes_of(adapter, layer)
    a, b = shapes[adapter.a], shapes[adapter.b]
    if layer.kind == "embedding":
        drawn = generator.standard_normal(b).astype(np.float32)
        return {adapter.a: np.zeros(a, np.float32), adapter.b: drawn}
    bound = 1.0 / math.sqrt(max(math.prod(a[1:]), 1))
    return {adapter.a: generator.uniform(-bound, bound, a).astype(np.float32), adapter.b: np.zeros(b, np.float32)}


def magnitudes(adapter: Adapter, layer: Layer, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The magnitudes of the weight as it is, and their squares, as DoRA's adapters begin."""
    assert adapter.magnitude is not None and adapter.squares is not None
    rows = layer.by_output(arrays[layer.weight.name])
    squares = np.square(as_matrix(rows), dtype=np.float64).sum(1)
    shape = shapes_of(adapter, layer)[adapter.magnitude]
    return {
        adapter.magnitude: np.sqrt(squares).astype(np.float32).reshape(shape),
        adapter.squares: squares.astype(np.float32),
    }


def adapted(
    model: Model,
    adapters: Sequence[Adapter],
    data: Mapping[str, Array],
    settings: Mapping[str, Any],
    also: Sequence[str] | str,
) -> AdaptedModel:
    """The model with adapters.

    Args:
        model: it is not changed.
        adapters: of its layers.
        data: of their tensors.
        settings: how they were made.
        also: names and patterns of parameters that are trained too.

    Raises:
        InputError: ``also`` matches nothing, or a weight that has an adapter.
        ModelError: a name of an adapter's tensor is taken.
    """
    trained = set(select(model, also)) if also else set()
    for adapter in adapters:
        if adapter.weight in trained:
            raise InputError(
                f"also={also!r} trains {adapter.weight!r}, which has an adapter; leave it out of one of them"
            )
    base = model.copy()
    graph = base.graph_with_data()
    stored = {
        value: dataclasses.replace(initializer, trainable=value.name in trained)
        for value, initializer in graph.initializers.items()
        if initializer.trainable != (value.name in trained)
    }
    attached = attach(graph, adapters, data, stored)
    again = None if base.specialize is None else functools.partial(_specialized, base.specialize, adapters, data)
    source = edited(base.source, attached.edits, attached.added)
    return AdaptedModel(attached.graph, base, tuple(adapters), settings, source=source, specialize=again)


def _specialized(
    specialize: Specialize,
    adapters: Sequence[Adapter],
    data: Mapping[str, Array],
    types: Mapping[str, Given],
    values: Mapping[str, Array],
) -> Graph | Wanted | Listed:
    made = specialize(types, values)
    if isinstance(made, Wanted):
        return made
    if isinstance(made, Graph):
        return attach(made, adapters, data).graph
    return Listed(None if made.graph is None else attach(made.graph, adapters, data).graph, made.lengths)
