"""Random changes of images in training: each is drawn by seed, epoch and the sample's position in the epoch alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ...errors import InputError
from ...host import checks

Box = tuple[float, float, float, float]
_TRIES = 10  # boxes that are drawn before the largest one is taken, as in torchvision


@dataclass(frozen=True)
class Augment:
    """What is changed at random.

    Attributes:
        flip: probability of a mirror image, left to right.
        flip_vertical: the same, top to bottom.
        crop: least part of the area that a random crop has, from above 0 to 1; its sides are as 3:4 to 4:3. At 1 the
            image is cut as in evaluation.
        rotate: the most degrees to either side.
        color: the most change of brightness, contrast and saturation, each by a factor from 1 - color to 1 + color.
    """

    flip: float = 0.5
    flip_vertical: float = 0.0
    crop: float = 0.5
    rotate: float = 0.0
    color: float = 0.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            least, most = (1e-3, 1.0) if entry.name == "crop" else (0.0, 180.0 if entry.name == "rotate" else 1.0)
            value = checks.number(f"Augment: {entry.name}", getattr(self, entry.name), least)
            if value > most:
                raise InputError(f"Augment: {entry.name} is {value:g}; expected a number from {least:g} to {most:g}")

    @classmethod
    def of(cls, given: Any) -> Augment | None:
        """What a caller gave: an Augment, True for its defaults, or a text like ``flip,crop=0.6,rotate=10``.

        In a text only what it names is changed; a name alone has its default, or 0.2 of color and 10 degrees.

        Raises:
            InputError: something else, or a name that isn't one of Augment's.
        """
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        if isinstance(given, Augment):
            return given
        found = {"flip": 0.0, "crop": 1.0}
        usual = {"flip": 0.5, "flip_vertical": 0.5, "crop": 0.5, "rotate": 10.0, "color": 0.2}
        for entry in checks.text("augment", given).split(","):
            name, equals, text = entry.partition("=")
            if name not in usual:
                raise InputError(f"augment: there is no {name!r}; there are {', '.join(usual)}, e.g. flip,crop=0.6")
            try:
                found[name] = float(text) if equals else usual[name]
            except ValueError:
                raise InputError(f"augment: {entry!r}: expected a number after the =") from None
        return cls(**found)

    @property
    def least_side(self) -> float:
        """The least part of a side that a crop may have."""
        return math.sqrt(self.crop * 3 / 4) if self.crop < 1.0 else 1.0

    def box(self, width: int, height: int, middle: Box, generator: np.random.Generator) -> Box:
        """The part of an image that is resized: a random one, or ``middle``.

        A part of the area and the logarithm of the ratio of its sides are drawn alike until the box fits (Szegedy et
        al., "Going deeper with convolutions", 2015).
        """
        if self.crop == 1.0:
            return middle
        for _ in range(_TRIES):
            area = generator.uniform(self.crop, 1.0) * width * height
            ratio = math.exp(generator.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = math.sqrt(area * ratio), math.sqrt(area / ratio)
            if w <= width and h <= height:
                left, top = generator.uniform(0, width - w), generator.uniform(0, height - h)
                return left, top, left + w, top + h
        return middle

    def changed(self, image: Any, generator: np.random.Generator) -> Any:
        """The image of the final size, mirrored, rotated and with other colors."""
        from PIL import Image, ImageEnhance

        if generator.random() < self.flip:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if generator.random() < self.flip_vertical:
            image = image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)
        if self.rotate:
            image = image.rotate(generator.uniform(-self.rotate, self.rotate), Image.Resampling.BILINEAR)
        if self.color:
            for kind in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
                image = kind(image).enhance(generator.uniform(1 - self.color, 1 + self.color))
        return image
