"""Converters of operators that choose elements by index."""

from __future__ import annotations

from typing import Any

from dataflow import int64, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...dynamic_sizes import size_value
from ...emit import cast_to, full, iota, number
from ...importer import Importer
from ...tensor import Tensor

T = Tensor
operator = Collector("com.microsoft")


@operator("GatherND")
def GatherND(c: Importer, x: T, indices: T) -> Any:
    return ops.gather_nd(c.value(x), c.value(indices), batch_dims=0)


@operator("TorchEmbedding")
def TorchEmbedding(
    c: Importer, weight: T, indices: T, padding_idx: T | None = None, scale_grad_by_freq: T | None = None
) -> Any:
    """Both options concern gradients alone, which are those of a plain table here."""
    return ops.gather(c.weight(weight), c.value(indices), axis=0)


@operator("WordConvEmbedding")
def WordConvEmbedding(
    c: Importer,
    sequence: T,
    w: T,
    b: T,
    table: T,
    *,
    char_embedding_size: int | None = None,
    conv_window_size: int | None = None,
    embedding_size: int | None = None,
) -> Any:
    """A vector (words, filters) for each word of characters (words, length), of which those above 0 count.

    The largest, over a word's characters, of the tanh of a convolution of their rows of ``table`` (characters, size)
    with ``w`` (filters, 1, window, size). A word that begins with no character is zeros, where onnxruntime writes
    nothing.

    Raises:
        ModelError: the operands don't fit.
    """
    ids, weight, rows = c.value(sequence), c.weight(w), c.weight(table)
    shape = weight.type.shape
    given = (embedding_size or shape[0], 1, conv_window_size or shape[2], char_embedding_size or shape[3])
    if ids.type.rank != 2 or rows.type.rank != 2 or shape != given or rows.type.shape[1] != shape[3]:
        raise ModelError(
            f"the words are {ids.type}, the filters {weight.type}, the table {rows.type}; expected (words, length), "
            f"({given[0]}, 1, {given[2]}, {given[3]}) and (characters, {given[3]})"
        )
    words, length = ids.type.shape
    window = shape[2]
    present = ops.greater(ids, number(c.builder, 0, ids.type.dtype))
    count = ops.reduce_sum(cast_to(present, int64), axes=(1,), keepdims=1)
    images = ops.reshape(ops.gather(rows, ids, axis=0), shape=(words, 1, length, shape[3]))
    folded = ops.conv(
        images, weight, c.weight(b), strides=(1, 1), pads=(0,) * 4, dilations=(1, 1), groups=1
    )  # (words, filters, length - window + 1, 1)
    positions = length - window + 1
    found = ops.tanh(ops.reshape(folded, shape=(words, shape[0], positions)))
    first = ops.reshape(iota(c.builder, positions), shape=(1, 1, positions))
    last = ops.maximum(ops.sub(ops.reshape(count, shape=(words, 1, 1)), size_value(c, window)), 0)
    inside = ops.less_equal(first, last)
    best = ops.reduce_max(ops.where(inside, found, number(c.builder, -2, found.type.dtype)), axes=(2,), keepdims=0)
    begins = ops.slice(present, starts=(0, 0), stops=(words, 1), steps=(1, 1))
    return ops.where(begins, best, full(c.builder, (1, 1), 0.0, best.type.dtype))
