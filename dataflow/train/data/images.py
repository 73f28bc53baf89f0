"""Folders of images, one folder per class, decoded with Pillow when a batch wants them."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from ...errors import InputError
from ...host import checks
from ...host.numbers import integer
from ...ir.types import Array, TensorType
from .arrays import NONE
from .augment import Augment, Box
from .batch import Draw, Request
from .columns import listed
from .source import Source, plain_order

_log = logging.getLogger("dataflow")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
_CHANNELS = {1: "L", 3: "RGB", 4: "RGBA"}
_IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
_MOST_WORKERS = 4
_LEFT_TO_RESIZE = 3.0  # the factor from which on Pillow calls such results close to those of full resampling


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


@dataclass(frozen=True, slots=True)
class _Form:
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


def has_images(folder: Path) -> bool:
    """Whether a folder has folders with images."""
    return any(_is_image(path) for inner in folder.iterdir() if inner.is_dir() for path in inner.rglob("*"))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def read_folder(folder: Path, options: ImageOptions) -> Source:
    """The images of a folder.

    Raises:
        InputError: a class has no images, or Pillow isn't installed.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise InputError(f"{folder}: needs Pillow to decode images; pip install dataflow-engine[images]") from None
    found = [path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")]
    there = sorted(path.name for path in found)
    known = there if options.classes is None else list(checks.texts("classes", options.classes))
    unknown = [name for name in there if name not in known]
    if unknown:
        raise InputError(f"{folder}: the folder {unknown[0]!r} is none of the classes {listed(known)}")
    files, names = [], []
    for name in there:
        own = sorted(path for path in (folder / name).rglob("*") if _is_image(path))
        if not own:
            raise InputError(f"{folder / name}: it has no images ({', '.join(SUFFIXES)})")
        files += own
        names += [name] * len(own)
    _log.info("%s: %d images of %d classes: %s", folder, len(files), len(there), listed(known))
    return ImageSource(folder, tuple(files), tuple(names), tuple(known), options)


@dataclass(frozen=True)
class ImageSource:
    """Images by number.

    Attributes:
        folder: of the classes.
        files: of the images.
        names: the class of each.
        known: the classes in the order of their numbers.
        options: how they are read.
        label: key of the labels.
        form: of the arrays; None until a request says it.
    """

    folder: Path
    files: tuple[Path, ...]
    names: tuple[str, ...]
    known: tuple[str, ...]
    options: ImageOptions
    label: str = "labels"
    form: _Form | None = None
    unusable: Array = field(default_factory=lambda: NONE, init=False, compare=False)
    workers: int = field(default=min(_MOST_WORKERS, os.cpu_count() or 1), init=False)

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """Names of the folders."""
        return {self.label: self.known}

    def __len__(self) -> int:
        return len(self.files)

    def bound(self, request: Request) -> Source:
        """With arrays of the form of the model's input.

        Raises:
            InputError: there is no input of the form of images, or a class is none that the model was trained on.
        """
        label = request.labels[0] if request.labels else self.label
        known = tuple(request.classes.get(label, self.known))
        unknown = next((i for i, name in enumerate(self.names) if name not in known), None)
        if unknown is not None:
            raise InputError(f"{self.files[unknown]}: its class is none of those trained on: {', '.join(known)}")
        images = {name: type_ for name, type_ in request.inputs.items() if len(type_.shape) == 4}
        if request.inputs and len(images) != 1:
            described = ", ".join(f"{name}: {type_}" for name, type_ in request.inputs.items())
            raise InputError(f"{self.folder}: expected one input of four axes for images; the model has {described}")
        form = self.form
        for name, type_ in images.items():
            form = _form(name, type_, self.options)
        return replace(self, label=label, known=known, form=form)

    def keys(self) -> tuple[str, ...]:
        """The model's input, and the labels."""
        return (*((self.form.key,) if self.form else ()), self.label)

    def read(self, rows: Array, draw: Draw | None) -> dict[str, Array]:
        """The images, decoded."""
        form = self.form
        if form is None:
            raise InputError(f"{self.folder}: images have no size before a model says it; use the dataset in fit()")
        shape = (form.height, form.width, form.channels) if form.last else (form.channels, form.height, form.width)
        found = np.empty((len(rows), *shape), form.tables.dtype)
        for index, row in enumerate(rows):
            generator = draw.generator(index) if draw is not None and self.options.augment is not None else None
            pixels = _pixels(self.files[row], form, self.options, generator)
            for channel in range(form.channels):
                target = found[index, ..., channel] if form.last else found[index, channel]
                target[...] = form.tables[channel][pixels[..., channel]]
        labels = self.column(self.label, rows)
        assert labels is not None
        return {form.key: found, self.label: labels}

    def column(self, key: str, rows: Array) -> Array | None:
        """The labels."""
        if key != self.label:
            return None
        numbers = {name: number for number, name in enumerate(self.known)}
        return np.array([numbers[self.names[row]] for row in rows], np.int64)

    def order(self, rows: Array, batch_size: int, generator: Any) -> Array:
        """Any order."""
        return plain_order(rows, generator)

    def signature(self) -> dict[str, Any]:
        """The classes, how images are read, and a hash of the names and lengths of the files."""
        content = xxhash.xxh3_128()
        for path in self.files:
            content.update(f"{path.relative_to(self.folder)} {path.stat().st_size}\n".encode())
        return {"classes": list(self.known), "options": repr(self.options), "content": content.hexdigest()}


def _form(key: str, type_: TensorType, options: ImageOptions) -> _Form:
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
    return _Form(key, sizes[0], sizes[1], count, last, _tables(key, type_, count, options))


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


def _pixels(path: Path, form: _Form, options: ImageOptions, generator: np.random.Generator | None) -> Array:
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


def _reduce(image: Any, form: _Form, augment: Any) -> None:
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


def _resized(image: Any, form: _Form, options: ImageOptions, generator: np.random.Generator | None) -> Any:
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


def _middle(width: int, height: int, form: _Form) -> Box:
    """The largest box in the middle with the form's ratio of sides."""
    scale = min(width / form.width, height / form.height)
    w, h = form.width * scale, form.height * scale
    left, top = (width - w) / 2, (height - h) / 2
    return max(left, 0.0), max(top, 0.0), min(left + w, float(width)), min(top + h, float(height))
