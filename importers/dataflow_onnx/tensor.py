"""Tensors of the file while its graph is imported."""

from __future__ import annotations

from dataclasses import dataclass

from dataflow import TensorType, Value
from dataflow.plugin import dtype as as_dtype

from .file.records import Array
from .shape_eval import Known


@dataclass(slots=True)
class Tensor:
    """A name of the file, with all that is known of it.

    Attributes:
        name: in the file.
        value: in the graph; None until somebody needs it.
        array: stored data; None when computed.
        known: integers and dims, where they are known at load.
        outer: in a body, the tensor of the graph around it that this is.
        stored: the tensor with data that this shows in another shape, order or dtype.
    """

    name: str
    value: Value | None = None
    array: Array | None = None
    known: Known | None = None
    outer: Tensor | None = None
    stored: Tensor | None = None

    @property
    def type(self) -> TensorType:
        """The dtype and shape."""
        if self.value is not None:
            return self.value.type
        if self.array is not None:
            return TensorType(as_dtype(self.array), self.array.shape)
        assert self.known is not None
        return TensorType(self.known.dtype, self.known.numbers.shape)
