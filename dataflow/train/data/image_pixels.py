"""Files of images decoded with Pillow, as arrays of the form of a model's input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir.types import Array, TensorType
from .augment import Augment, Box
from .image_options import ImageOptions

_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
_LEFT_TO_RESIZE = 3.0  # the factor from which on Pillow calls such results close to those of full resampling


@dataclass(frozen=True, slots=True)
class ImageForm:
    """The arrays that images become.

    Attributes:
        key: name of the model's input.
        height: of the arrays.
        width: of the arrays.
        channels: of the arrays.
        last: channels are the last axis.
        tables: (C, 256) what stands for each value of a pixel.
    """

    key: str
    height: int
    width: int
    channels: int
    last: bool
    tables: Array


def form_of(key: str, type_: TensorType, options: ImageOptions) -> ImageForm:
    """The form of the arrays of an input.

    Raises:
        InputError: the layout, the size or the number of channels isn't known.
    """
    shape = type_.shape
    layouts = [name for name, axis in (("NCHW", 1), ("NHWC", 3)) if shape[axis] in (1, 3)]
    if options.layout is None and len(layouts) != 1:
        raise InputError(f"the input {key!r} is {type_}: which axis has the channels? Give layout='NCHW' or 'NHWC'")
    last = (options.layout or layouts[0]) == "NHWC"
    height, width, channels = (shape[1], shape[2], shape[3]) if last else (shape[2], shape[3], shape[1])
    fixed = [size if isinstance(size, int) else None for size in (height, width)]
    given = options.size if isinstance(options.size, tuple) else (None, None)
    sizes = [one or other for one, other in zip(given, fixed, strict=True)]
    for wanted, known in zip(sizes, fixed, strict=True):
        if wanted is None:
            raise InputError(f"the input {key!r} is {type_} of any size; give size=(height, width)")
        if known is not None and wanted != known:
            raise InputError(f"the input {key!r} is {type_}, and size={options.size}; leave size out, or free the axes")
    count = channels if isinstance(channels, int) else 3
    if count not in _CHANNELS:
        raise InputError(f"the input {key!r} is {type_}: images have 1, 3 or 4 channels, not {count}")
    assert sizes[0] is not None and sizes[1] is not None  # checked above
    return ImageForm(key, sizes[0], sizes[1], count, last, _tables(key, type_, count, options))


def _tables(key: str, type_: TensorType, channels: int, options: ImageOptions) -> Array:
    """(C, 256): what a channel of the input has for each value of a pixel."""
    dtype, values = type_.dtype.numpy, np.arange(256)
    if dtype == np.uint8:
        return np.tile(values.astype(np.uint8), (channels, 1))
    if not type_.dtype.is_float:
        raise InputError(f"the input {key!r} is {type_}; images are of a float type or uint8")
    found = []
    for name in ("mean", "std"):
        numbers: tuple[float, ...] = getattr(options, name)
        if len(numbers) not in (1, channels):
            raise InputError(f"{name} has {len(numbers)} numbers, and the input {key!r} has {channels} channels")
        found.append(np.broadcast_to(np.array(numbers, np.float32), (channels,))[:, None])
    return ((values.astype(np.float32) / np.float32(255) - found[0]) / found[1]).astype(dtype)


def pixels_of(path: Path, form: ImageForm, options: ImageOptions, generator: np.random.Generator | None) -> Array:
    """(H, W, C) uint8 of a file.

    Raises:
        InputError: it is no image, truncated, or of too many pixels.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as opened:
            if opened.width * opened.height > options.most_pixels:
                raise InputError(
                    f"{path}: {opened.width} x {opened.height} pixels are more than most_pixels={options.most_pixels}"
                )
            _reduce(opened, form, options.augment if generator is not None else None)
            image = ImageOps.exif_transpose(_eight_bits(opened)).convert(_CHANNELS[form.channels])
            image = _resized(image, form, options, generator)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # decoders raise OSError, ValueError, SyntaxError, EOFError and others for bad files
        raise InputError(f"{path}: can't be decoded as an image: {type(error).__name__}: {error}") from error
    return np.asarray(image).reshape(form.height, form.width, form.channels)


def _reduce(image: Any, form: ImageForm, augment: Any) -> None:
    """Lets a JPEG be decoded at a half, a quarter or an eighth where enough is left to resize, which costs far less."""
    least = augment.least_side if isinstance(augment, Augment) else 1.0
    side = math.ceil(_LEFT_TO_RESIZE * max(form.height, form.width) / least)
    image.draft(None, (side, side))  # other formats ignore it


def _eight_bits(image: Any) -> Any:
    """Gray images of 16 bits in 8; Pillow would clip them."""
    from PIL import Image

    if not image.mode.startswith("I;16") and image.mode != "I":
        return image
    return Image.fromarray((np.clip(np.asarray(image), 0, 65535) // 257).astype(np.uint8))


def _resized(image: Any, form: ImageForm, options: ImageOptions, generator: np.random.Generator | None) -> Any:
    """The image in the form's size; ``generator`` draws the changes of training."""
    from PIL import Image, ImageOps

    augment, size = options.augment, (form.width, form.height)
    if options.resize == "pad" and (generator is None or not isinstance(augment, Augment) or augment.crop == 1.0):
        image = ImageOps.pad(image, size, Image.Resampling.BILINEAR)
    else:
        box = _middle(image.width, image.height, form) if options.resize == "crop" else (0, 0, *image.size)
        if generator is not None and isinstance(augment, Augment):
            box = augment.box(image.width, image.height, box, generator)
        image = image.resize(size, Image.Resampling.BILINEAR, box=box)
    return augment.changed(image, generator) if generator is not None and isinstance(augment, Augment) else image


def _middle(width: int, height: int, form: ImageForm) -> Box:
    """The largest box in the middle with the form's ratio of sides."""
    scale = min(width / form.width, height / form.height)
    w, h = form.width * scale, form.height * scale
    left, top = (width - w) / 2, (height - h) / 2
    return max(left, 0.0), max(top, 0.0), min(left + w, float(width)), min(top + h, float(height))
