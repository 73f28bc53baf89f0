"""What an adapter is, and the model that has some."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import InputError
from ..ir.graph import Graph
from ..ir.specialize import Specialize
from ..ir.types import Array
from ..layers.layers import Kind
from ..model import Model

LEAST_SQUARE = 1e-30  # of the norm of a row: one of zeros has the magnitude 0, and 0 / 0 is none


@dataclass(frozen=True, slots=True)
class Adapter:
    """A change of low rank to one weight: ``scale b a`` beside it; ``a`` is (rank, inputs), ``b`` (outputs, rank).

    Attributes:
        path: the name of its module.
        weight: the name of the stored tensor that it changes.
        kind: of the layer.
        rank: of the change.
        scale: its factor.
        a, b: names of its tensors, which lie as PEFT's do.
        magnitude: name of the tensor of DoRA's magnitudes, one per output, or None.
        squares: name of the constant that holds the sums of the squares of the weight per output; with magnitudes.
        dropout: the share of the layer's inputs that it doesn't see in training.
    """

    path: str
    weight: str
    kind: Kind
    rank: int
    scale: float
    a: str
    b: str
    magnitude: str | None = None
    squares: str | None = None
    dropout: float = 0.0

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of what is trained."""
        return (self.a, self.b) if self.magnitude is None else (self.a, self.b, self.magnitude)


def as_matrix(array: Array) -> Array:
    """All axes but the first as one; an array may have no elements."""
    return array.reshape(array.shape[0], math.prod(array.shape[1:]))


class AdaptedModel(Model):
    """A model with adapters; made by ``df.lora`` and ``df.load_adapters``.

    Attributes:
        base: the model without them, with the weights of then.
        adapters: in the order of the graph.
        settings: how they were made, as PEFT's configuration calls it.
    """

    def __init__(
        self,
        graph: Graph,
        base: Model,
        adapters: tuple[Adapter, ...],
        settings: Mapping[str, Any],
        *,
        source: object,
        specialize: Specialize | None,
    ) -> None:
        super().__init__(graph, aliases=base.aliases, source=source, specialize=specialize, metadata=base.metadata)
        self.base, self.adapters, self.settings = base, adapters, dict(settings)

    def copy(self) -> AdaptedModel:
        """An independent model with today's data."""
        twin = AdaptedModel(
            self.graph, self.base, self.adapters, self.settings, source=self.source, specialize=self.specialize
        )
        self.copy_data(twin)
        return twin


def with_adapters(model: Model) -> AdaptedModel:
    """The model itself, where it is known which adapters it has.

    Raises:
        InputError: it has none, or was edited since it has them.
    """
    if not isinstance(model, AdaptedModel):
        raise InputError(
            "the model has no adapters; df.lora makes a model with some, and edits of a model, such as with_outputs, "
            "come before it"
        )
    return model
