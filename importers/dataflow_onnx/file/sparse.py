"""Sparse tensors of a file, which are read, and written where they change, as dense ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from dataflow.errors import ModelError
from dataflow.plugin import MOST_AXES
from dataflow.plugin import dtype as as_dtype

from .functions import MOST_BYTES
from .new_data import tensor_of
from .records import Array

Decode = Callable[[Any, object], Array]
"""``decode(tensor, where)``: the data of a tensor; ``where`` it is, as text for messages."""
_TENSOR, _GRAPH, _SPARSE = 1, 5, 11  # AttributeProto.AttributeType
_INDICES = np.dtype(np.int64)


class SparseTensors:
    """Those of one file.

    Args:
        decode: reads the values and indices.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode, self._left = decode, MOST_BYTES

    def dense(self, proto: Any, where: object) -> Array:
        """A tensor with zeros where a sparse one has no value.

        Args:
            proto: with indices of its axes, or into its flat elements, in any order.
            where: it is, as text for messages.

        Raises:
            ModelError: the indices don't fit the shape or name an element twice, or the zeros take too much memory.
        """
        values, indices = self._decode(proto.values, where), self._decode(proto.indices, f"{where}, indices")
        shape, dtype = tuple(proto.dims), as_dtype(values)
        count = math.prod(shape)
        if not shape or min(shape) < 0 or len(shape) > MOST_AXES:
            raise ModelError(f"{where}: a sparse tensor has shape {shape}; expected 1 to {MOST_AXES} sizes")
        if dtype.kind == "s":
            raise ModelError(f"{where}: sparse tensors of strings are not supported; make it dense")
        if values.ndim != 1 or indices.dtype != _INDICES or indices.shape not in (
            values.shape, (*values.shape, len(shape)),
        ):  # fmt: skip
            text = f"{where}: {values.shape} values and {indices.dtype}{list(indices.shape)} indices"
            raise ModelError(f"{text} for a sparse tensor of shape {shape}; expected as many, of int64")
        self._left -= count * values.dtype.itemsize
        if self._left < 0:
            raise ModelError(f"{where}: with {dtype}{list(shape)} the sparse tensors take over {MOST_BYTES} bytes")
        limits = np.array(shape if indices.ndim == 2 else count, np.int64)
        if ((indices < 0) | (indices >= limits)).any():
            raise ModelError(f"{where}: indices of a sparse tensor exceed its shape {shape}")
        flat = np.ravel_multi_index(tuple(indices.T), shape) if indices.ndim == 2 else indices
        if len(np.unique(flat)) != len(flat):
            raise ModelError(f"{where}: indices of a sparse tensor name an element twice")
        made = np.zeros(count, values.dtype)
        made[flat] = values
        return made.reshape(shape)

    def replace(self, graph: Any) -> None:
        """Gives a graph of a file, and its bodies, dense tensors instead of sparse ones."""
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            graph.initializer.append(tensor_of(name, self.dense(sparse, name)))
        graph.ClearField("sparse_initializer")
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == _GRAPH:
                    self.replace(attribute.g)
                elif is_sparse_value(attribute):
                    made = tensor_of("", self.dense(attribute.sparse_tensor, node.output[0]))
                    attribute.Clear()
                    attribute.name, attribute.type = "value", _TENSOR
                    attribute.t.CopyFrom(made)


def is_sparse_value(attribute: Any) -> bool:
    """Whether an attribute is that of a Constant which holds a sparse tensor."""
    return bool(attribute.type == _SPARSE and attribute.name == "sparse_value")
