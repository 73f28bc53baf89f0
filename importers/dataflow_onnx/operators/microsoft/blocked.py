"""Converters of what onnxruntime writes for convolutions on one kind of processor: channels in blocks.

Values have their channels in order here, padded to whole blocks. Weights are trained and saved as they are stored,
block by block, and put in order by nodes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from dataflow import Dim, Value, ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...emit import slice_axis
from ...importer import Importer
from ...tensor import Tensor
from ..pool import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from ..resize import scaled_by
from .conv import FusedConv
from .layout import to_channels_first, to_channels_last

T = Tensor
DOMAIN = "com.microsoft.nchwc"
operator = Collector(DOMAIN)
operator("GlobalAveragePool")(GlobalAveragePool)
operator("GlobalMaxPool")(GlobalMaxPool)
operator("AveragePool")(AveragePool)
operator("MaxPool")(MaxPool)
_LARGE, _SMALL = 16, 8  # channels of a block: with AVX-512 and on ARM, and with AVX2 and less
_BLOCKS: WeakKeyDictionary[Importer, int] = WeakKeyDictionary()
_log = logging.getLogger("dataflow")


def _block(c: Importer) -> int:
    """The channels of a block of a file, found once."""
    main = c.outermost
    if main not in _BLOCKS:
        _BLOCKS[main] = _found_block(main)
    return _BLOCKS[main]


def _found_block(c: Importer) -> int:
    """The channels of a block, which a file doesn't say.

    What was padded to whole blocks tells; where nothing was, it is this processor's, as onnxruntime takes it.
    """
    graph = c.record.graph
    counts: dict[str, int] = {}
    for node in graph.nodes:
        if node.domain == DOMAIN and node.op == "Conv" and node.inputs[1] in graph.initializers:
            counts[node.outputs[0]] = count = graph.initializers[node.inputs[1]].shape[0]
            if count % _LARGE:
                return _SMALL
        made = counts.get(node.inputs[0], 0) if node.domain == DOMAIN and node.op == "ReorderOutput" else 0
        if made - node.attributes.get("channels", 0) >= _SMALL:
            return _LARGE
    block = _of_processor()
    _log.warning(
        "%s: onnxruntime laid its weights out for one kind of processor, and the file doesn't say which; they are read "
        "in blocks of %d channels, as onnxruntime does here",
        c.path,
        block,
    )
    return block


def _of_processor() -> int:
    """The block of onnxruntime's kernels on this processor."""
    try:
        known = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return _LARGE
    return _SMALL if "flags" in known and "avx512f" not in known else _LARGE  # of ARM there are "Features"


def _in_order(c: Importer, w: T) -> Any:
    """A weight (outputs, inputs, ...) whose elements are stored by blocks of outputs, and of inputs if it has any."""
    weight = c.weight(w)
    block = _block(c)
    outputs, inputs, *window = weight.type.sizes
    if outputs % block or len(window) != 2:
        raise ModelError(f"its weight is {weight.type}; expected images, and outputs in blocks of {block}")
    blocks = outputs // block
    if inputs % block:
        split = ops.reshape(weight, shape=(blocks, inputs, *window, block))
        split = ops.transpose(split, perm=(0, 4, 1, 2, 3))
    else:
        split = ops.reshape(weight, shape=(blocks, inputs // block, *window, block, block))
        split = ops.transpose(split, perm=(0, 5, 1, 4, 2, 3))
    return ops.reshape(split, shape=weight.type.shape)


@operator("Conv")
def blocked_conv(
    c: Importer,
    x: T,
    w: T,
    bias: T | None = None,
    z: T | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    value, weight = c.value(x), _in_order(c, w)
    return FusedConv(
        c,
        Tensor(x.name, _padded(value, group * int(weight.type.sizes[1]))),
        Tensor(w.name, weight),
        bias,
        z,
        activation=activation,
        activation_params=activation_params,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )


def _padded(x: Value, channels: int) -> Any:
    """``x`` with zeros behind its channels where a convolution reads more of them."""
    size = x.type.shape[1]
    if isinstance(size, Dim) or size >= channels:
        return x
    rank = x.type.rank
    return ops.pad(x, pads=(*(0,) * (rank + 1), channels - size, *(0,) * (rank - 2)))


@operator("ReorderInput")
def ReorderInput(c: Importer, x: T, *, channels_last: int = 0) -> Any:
    value = to_channels_first(c.value(x), channels_last)
    size = value.type.shape[1]
    if isinstance(size, Dim):
        raise ModelError(f"its input is {c.value(x).type}; expected a known number of channels")
    block = _block(c)
    return _padded(value, -(-size // block) * block)


@operator("ReorderOutput")
def ReorderOutput(c: Importer, x: T, *, channels: int = 0, channels_last: int = 0) -> Any:
    value = c.value(x)
    kept = value if value.type.shape[1] == channels else slice_axis(value, 1, 0, channels)
    return to_channels_last(kept, channels_last)


@operator("Upsample")
def BlockedUpsample(
    c: Importer,
    x: T,
    *,
    coordinate_transformation_mode: str = "asymmetric",
    mode: str = "nearest",
    scales: Sequence[int] = (),
) -> Any:
    return scaled_by(c, c.value(x), [float(n) for n in scales], mode, coordinate_transformation_mode)
