"""Adapters folded into the weights that they change, and taken out again."""

from __future__ import annotations

import numpy as np

from ..errors import InputError, ModelError
from ..host import checks
from ..ir.types import Array
from ..layers.layers import Layer, layers_of
from ..model import Model, Parameter
from .adapter import LEAST_SQUARE, AdaptedModel, Adapter, as_matrix, with_adapters


class MergedModel(Model):
    """A model into whose weights adapters were folded.

    Attributes:
        adapted: the model with them.
    """

    adapted: AdaptedModel
    merged_version: int


def merge_lora(model: Model) -> MergedModel:
    """A model without adapters, whose weights contain them: it has the nodes of the model that ``df.lora`` was given.

    Args:
        model: with adapters; it is not changed.

    Raises:
        InputError: it has none.
        ModelError: a weight is computed from others, as a quantized one is, or nodes that are no such layers read it.
    """
    checks.instance("model", model, Model)
    adapted = with_adapters(model)
    arrays, base = adapted.arrays(), adapted.base
    layers = {layer.weight.name: layer for layer in layers_of(base.graph, base.aliases)}
    found = MergedModel(base.graph, aliases=base.aliases, source=base.source, specialize=base.specialize)
    base.copy_data(found)
    found.metadata = dict(adapted.metadata)
    changed = {name: arrays[name] for name in adapted.newest_names() if name in base.arrays()}
    for adapter in adapted.adapters:
        changed[adapter.weight] = merged_weight(adapter, layers[adapter.weight], arrays)
    values = {value.name: value for value in base.graph.initializers}
    for name, array in changed.items():
        Parameter(found, values[name], ()).set(array)  # constants too, which aren't parameters
    found.adapted, found.merged_version = adapted, found.version
    return found


def can_merge(model: AdaptedModel) -> bool:
    """Whether every weight that has an adapter is stored as it is, and read by its layer alone."""
    layers = {layer.weight.name: layer for layer in layers_of(model.base.graph, model.base.aliases)}
    return all(layers[adapter.weight].stored and layers[adapter.weight].alone for adapter in model.adapters)


def unmerge_lora(model: Model) -> AdaptedModel:
    """The model with adapters that ``merge_lora`` folded into this one, every bit of its weights as before.

    Args:
        model: merged, and not changed since.

    Raises:
        InputError: it isn't.
    """
    if not isinstance(model, MergedModel):
        raise InputError("the model is none that df.merge_lora gave")
    if model.version != model.merged_version or model._owner is not None:
        raise InputError("the model's weights have changed since adapters were merged; they can't be taken out of them")
    return model.adapted.copy()


def merged_weight(adapter: Adapter, layer: Layer, arrays: dict[str, Array]) -> Array:
    """The stored weight with the change, computed in float64.

    Raises:
        ModelError: it is not stored, or something else reads it too.
    """
    if not layer.stored:
        raise ModelError(
            f"layer {adapter.path!r} computes its weight, from {adapter.weight!r}, so that no change can be stored in "
            "it; save the adapters as nodes or alone"
        )
    if not layer.alone:
        raise ModelError(
            f"layer {adapter.path!r}: other nodes read its weight {adapter.weight!r} too, and would change with it; "
            "save the adapters as nodes or alone"
        )
    weight = arrays[adapter.weight]
    a, b = (as_matrix(arrays[name].astype(np.float64)) for name in (adapter.a, adapter.b))
    change = adapter.scale * (b @ a)  # (outputs, inputs)
    rows = layer.by_output(weight.astype(np.float64))
    made = as_matrix(rows) + change
    if adapter.magnitude is not None:
        square = np.maximum(np.square(made).sum(1, keepdims=True), LEAST_SQUARE)
        factor = arrays[adapter.magnitude].reshape(-1, 1) / np.sqrt(square)
        made = made * factor
    made = made if layer.kind == "conv" or layer.transposed else made.T
    return made.reshape(weight.shape).astype(weight.dtype)
