"""The converter of a maximum pool with channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...converters import Collector
from ...importer import Importer
from ...tensor import Tensor
from ..pool import MaxPool
from .layout import to_channels_first, to_channels_last

T = Tensor
operator = Collector("com.microsoft")


@operator("NhwcMaxPool")
def NhwcMaxPool(
    c: Importer,
    x: T,
    *,
    kernel_shape: Sequence[int],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: Sequence[int] | None = None,
    pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    y = MaxPool(
        c,
        Tensor(x.name, to_channels_first(c.value(x))),
        kernel_shape=kernel_shape,
        auto_pad=auto_pad,
        ceil_mode=ceil_mode,
        dilations=dilations,
        pads=pads,
        strides=strides,
    )
    return to_channels_last(y[0] if isinstance(y, tuple) else y)
