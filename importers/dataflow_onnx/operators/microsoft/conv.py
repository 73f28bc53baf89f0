"""Converters of convolutions with a sum and an activation behind them, and with channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow import ops
from dataflow.errors import ModelError

from ...converters import Collector
from ...importer import Importer
from ...tensor import Tensor
from ..conv import CausalConvWithState, Conv, ConvTranspose
from .activation import activated
from .layout import to_channels_first, to_channels_last

T = Tensor
operator = Collector("com.microsoft")
_PARAMETERS = {"Clip": ("alpha", "beta"), "HardSigmoid": ("alpha", "beta"), "LeakyRelu": ("alpha",)}


def _finished(c: Importer, y: Any, z: T | None, activation: str, parameters: Sequence[float]) -> Any:
    """A convolution's result plus ``z``, activated."""
    if z is not None:
        y = ops.add(y, c.value(z))
    names = _PARAMETERS.get(activation, ())
    if len(parameters) > len(names):
        raise ModelError(f"activation {activation!r} has {len(names)} parameters; activation_params gives {parameters}")
    return activated(y, activation, dict(zip(names, parameters, strict=False)))


@operator("FusedConv")
def FusedConv(
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
    window = {"auto_pad": auto_pad, "dilations": dilations, "kernel_shape": kernel_shape, "pads": pads}
    y = Conv(c, x, w, bias, group=group, strides=strides, **window)
    return _finished(c, y, z, activation, activation_params)


def _nhwc(c: Importer, x: T, w: T, bias: T | None, **given: Any) -> Any:
    first = Tensor(x.name, to_channels_first(c.value(x)))
    return to_channels_last(Conv(c, first, w, bias, **given))


@operator("NhwcConv")
def NhwcConv(
    c: Importer,
    x: T,
    w: T,
    bias: T | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    window = {"auto_pad": auto_pad, "dilations": dilations, "kernel_shape": kernel_shape, "pads": pads}
    first = Tensor(w.name, to_channels_first(c.weight(w)))  # of the weight too: it is (M, kH, kW, C / group)
    return _nhwc(c, x, first, bias, group=group, strides=strides, **window)


@operator("NhwcFusedConv")
def NhwcFusedConv(
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
    window = {"auto_pad": auto_pad, "dilations": dilations, "kernel_shape": kernel_shape, "pads": pads}
    y = _nhwc(c, x, w, bias, group=group, strides=strides, **window)
    return _finished(c, y, z, activation, activation_params)


@operator("ConvTransposeWithDynamicPads")
def ConvTransposeWithDynamicPads(
    c: Importer,
    x: T,
    w: T,
    pads: T | None = None,
    bias: T | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None,
    group: int = 1,
    kernel_shape: Sequence[int] | None = None,
    output_padding: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    window = {"auto_pad": auto_pad, "dilations": dilations, "kernel_shape": kernel_shape, "strides": strides}
    known = None if pads is None else c.ints(pads, "pads")
    return ConvTranspose(c, x, w, bias, group=group, output_padding=output_padding, pads=known, **window)


@operator("CausalConvWithState")
def causal_conv(
    c: Importer,
    x: T,
    w: T,
    bias: T | None = None,
    past_state: T | None = None,
    *,
    activation: str = "none",
    channels_last: int = 0,
    dilation: int = 1,
    input_channel_offset: int = 0,
    input_channels: int = 0,
    ndim: int = 1,
    state_channels_last: int = -1,
    state_length: int = 0,
    state_update_capacity: int = 0,
    state_window: int = 0,
) -> Any:
    """What a CPU computes of it, along one axis: the others are options of other devices."""
    others = (input_channel_offset, input_channels, state_channels_last + 1, state_length, state_update_capacity)
    if ndim != 1 or dilation != 1 or channels_last or state_window or any(others):
        raise ModelError("expected channels before one axis, no dilation, and a state without options")
    return CausalConvWithState(c, x, w, bias, past_state, activation=activation)
