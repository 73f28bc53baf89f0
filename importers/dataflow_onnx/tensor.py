"""Tensors of the file while its graph is imported."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from dataflow import Dim, GraphBuilder, TensorType, Value
from dataflow.errors import ModelError
from dataflow.plugin import Size, SizeNotKnown
from dataflow.plugin import dtype as as_dtype

from .file.records import Array
from .shape_eval import Known


class NotATensor(ModelError):
    """A sequence, or nothing, stands where a tensor is expected."""


class Unsized(ModelError):
    """A node can't be converted before a size is known that the file only names."""


@dataclass(slots=True)
class Tensor:
    """A name of the file, with all that is known of it.

    It may be a sequence of tensors, or the absence of an optional one, too: these are known when nodes are converted,
    and have no value in the graph.

    Attributes:
        name: in the file.
        value: in the graph; None until somebody needs it.
        array: stored data; None when computed.
        known: integers and dims, where they are known at load.
        outer: in a body, the tensor of the graph around it that this is.
        stored: the tensor with data, or of the graph around it, that this or a part of it shows in another shape,
            order or dtype.
        elements: of a sequence; None for all else.
        rows: of a sequence whose tensors are alike, these, stacked along a new first axis; it has no ``elements`` then.
    """

    name: str
    value: Value | None = None
    array: Array | None = None
    known: Known | None = None
    outer: Tensor | None = None
    stored: Tensor | None = None
    elements: tuple[Tensor, ...] | None = None
    rows: Value | None = None

    @property
    def is_sequence(self) -> bool:
        """Whether this is a sequence."""
        return self.elements is not None or self.rows is not None

    @property
    def is_absent(self) -> bool:
        """Whether this is an optional without an element."""
        return self.value is None and self.array is None and self.known is None and not self.is_sequence

    def check(self) -> None:
        """Raises NotATensor where this is none."""
        if self.is_sequence:
            count = len(self.elements) if self.elements is not None else self.rows.type.shape[0]  # type: ignore[union-attr]
            raise NotATensor(f"{self.name!r} is a sequence of {count} tensors; expected a tensor")
        if self.is_absent:
            raise NotATensor(f"{self.name!r} is an optional without an element; expected a tensor")

    @property
    def type(self) -> TensorType:
        """The dtype and shape."""
        if self.value is not None:
            return self.value.type
        if self.array is not None:
            return TensorType(as_dtype(self.array), self.array.shape)
        self.check()
        assert self.known is not None
        return TensorType(self.known.dtype, self.known.numbers.shape)


def refusal_of(error: BaseException, operands: Sequence[Tensor | None], builder: GraphBuilder) -> type[ModelError]:
    """What an error of a node is: Unsized where it may be that inputs of the model have sizes with a name only.

    It may where a number was wanted; and where one size for all names, tried in their stead, says nothing: an operand
    has no size that is known, or two of them have a name each that the other hasn't.

    Args:
        error: what the node's converter raised.
        operands: of the node.
        builder: of the main graph.
    """
    if isinstance(error, Unsized | SizeNotKnown):
        return Unsized
    shapes = [t.type.shape for t in operands if t is not None and not (t.is_sequence or t.is_absent)]
    names = [_names(shape) for shape in shapes]
    read: set[str] = set().union(*names)
    if not read or not read.issubset(set().union(*(_names(v.type.shape) for v in builder.inputs()))):
        return ModelError
    unknown = any(shape and all(isinstance(n, Dim) for n in shape) for shape in shapes)
    apart = any(one - other and other - one for one, other in itertools.combinations(names, 2))
    return Unsized if unknown or apart else ModelError


def _names(shape: Sequence[Size]) -> set[str]:
    return {name for n in shape if isinstance(n, Dim) for name in n.names}
