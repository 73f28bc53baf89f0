"""How images are read: size, form of the arrays, numbers that stand for pixels, random changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...errors import InputError
from ...host import checks
from ...host.numbers import integer
from .augment import Augment

_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


@dataclass(frozen=True)
class ImageOptions:
    """How images are read.

    Attributes:
        size: (height, width), or one number for both; by default those of the model's input.
        resize: ``crop``: the middle part in the input's ratio of sides; ``pad``: all of it, with black beside;
            ``stretch``: all of it, in another ratio.
        mean: of each channel, which is subtracted once pixels are from 0 to 1; ``imagenet`` for those of most models.
        std: of each channel, by which the rest is divided; likewise.
        layout: ``NCHW`` or ``NHWC``; by default the one in which the model's input has 1 or 3 channels.
        augment: an ``Augment``, True for its defaults, or a text like ``flip,crop=0.6``; in training alone.
        classes: names of the classes in the order of their numbers; by default the names of the folders, sorted.
        most_pixels: an image of more is refused before it is decoded.
    """

    size: int | Sequence[int] | None = None
    resize: Literal["crop", "pad", "stretch"] = "crop"
    mean: float | Sequence[float] | str = 0.0
    std: float | Sequence[float] | str = 1.0
    layout: Literal["NCHW", "NHWC"] | None = None
    augment: Augment | bool | str | None = None
    classes: Sequence[str] | None = None
    most_pixels: int = 80_000_000

    def __post_init__(self) -> None:
        checks.text("resize", self.resize, ("crop", "pad", "stretch"))
        if self.layout is not None:
            checks.text("layout", self.layout, ("NCHW", "NHWC"))
        if self.classes is not None:
            checks.texts("classes", self.classes)
        integer("most_pixels", self.most_pixels)
        object.__setattr__(self, "augment", Augment.of(self.augment))
        if self.size is not None:
            sizes = (
                (self.size, self.size)
                if isinstance(self.size, (int, np.integer))
                else checks.entries("size", self.size, "one number, or height and width")
            )
            if len(sizes) != 2:
                raise InputError(f"size is {self.size}; expected one number, or height and width")
            object.__setattr__(self, "size", tuple(integer("size", n) for n in sizes))
        for name in ("mean", "std"):
            object.__setattr__(self, name, _per_channel(name, getattr(self, name)))
        if not all(self.std):  # type: ignore[arg-type]  # a tuple by now
            raise InputError("std has a zero, by which nothing can be divided")


def _per_channel(name: str, given: Any) -> tuple[float, ...]:
    if isinstance(given, str):
        return _IMAGENET[name] if checks.text(name, given, ("imagenet",)) else ()
    given = (given,) if isinstance(given, (int, float, np.number)) else checks.entries(name, given, "numbers")
    numbers = tuple(checks.number(f"{name}: an entry", n, -1e9) for n in given)
    if len(numbers) not in (1, 3, 4):
        raise InputError(f"{name} has {len(numbers)} numbers; expected one, or one per channel")
    return numbers
