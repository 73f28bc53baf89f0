"""Folders of images, one folder per class or without classes, decoded when a batch wants them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ...errors import InputError
from ...host import checks
from ...ir.types import Array
from .arrays import NONE
from .batch import Draw, Request
from .columns import listed
from .image_options import ImageOptions
from .image_pixels import ImageForm, form_of, pixels_of
from .source import Source, plain_order

_log = logging.getLogger("dataflow")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
FILE = "file"  # key under which ``column`` gives the names of the files
_MOST_WORKERS = 4


def has_images(path: Path) -> bool:
    """Whether it is an image, or a folder with images or with folders of them."""
    inside = path.iterdir() if path.is_dir() else (path,)
    return any(_is_image(one) for found in inside for one in (found.rglob("*") if found.is_dir() else (found,)))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def read_images(path: Path, options: ImageOptions) -> Source:
    """The images of a folder with a folder per class; or, without labels, those that lie in a folder, or one image.

    Raises:
        InputError: a class has no images, or Pillow isn't installed.
    """
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise InputError(f"{path}: needs Pillow to decode images; pip install dataflow-engine[images]") from None
    if not path.is_dir():
        return ImageSource(path.parent, (path,), None, (), options)
    beside = sorted(one for one in path.iterdir() if _is_image(one))
    found = [one for one in path.iterdir() if one.is_dir() and not one.name.startswith(".")]
    if beside and not any(_is_image(one) for folder in found for one in folder.rglob("*")):
        _log.info("%s: %d images without classes", path, len(beside))
        return ImageSource(path, tuple(beside), None, (), options)
    if beside:
        _log.warning("%s: %d images lie beside the folders of the classes and are left out", path, len(beside))
    return _labelled(path, sorted(one.name for one in found), options)


def _labelled(folder: Path, there: Sequence[str], options: ImageOptions) -> Source:
    """The images of the folders ``there``, each of which is a class."""
    known = list(there) if options.classes is None else list(checks.texts("classes", options.classes))
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
        folder: of the classes, or of the images.
        files: of the images.
        names: the class of each; None: they have none.
        known: the classes in the order of their numbers.
        options: how they are read.
        label: key of the labels.
        form: of the arrays; None until a request says it.
    """

    folder: Path
    files: tuple[Path, ...]
    names: tuple[str, ...] | None
    known: tuple[str, ...]
    options: ImageOptions
    label: str = "labels"
    form: ImageForm | None = None
    unusable: Array = field(default_factory=lambda: NONE, init=False, compare=False)
    workers: int = field(default=min(_MOST_WORKERS, os.cpu_count() or 1), init=False)

    @property
    def classes(self) -> Mapping[str, Sequence[str]]:
        """Names of the folders."""
        return {} if self.names is None else {self.label: self.known}

    def __len__(self) -> int:
        return len(self.files)

    def bound(self, request: Request) -> Source:
        """With arrays of the form of the model's input.

        Raises:
            InputError: there is no input of the form of images, or a class is none that the model was trained on.
        """
        label = request.labels[0] if request.labels else self.label
        known = tuple(request.classes.get(label, self.known))
        unknown = next((i for i, name in enumerate(self.names or ()) if name not in known), None)
        if unknown is not None:
            raise InputError(f"{self.files[unknown]}: its class is none of those trained on: {', '.join(known)}")
        images = {name: type_ for name, type_ in request.inputs.items() if len(type_.shape) == 4}
        if request.inputs and len(images) != 1:
            described = ", ".join(f"{name}: {type_}" for name, type_ in request.inputs.items())
            raise InputError(f"{self.folder}: expected one input of four axes for images; the model has {described}")
        form = self.form
        for name, type_ in images.items():
            form = form_of(name, type_, self.options)
        return replace(self, label=label, known=known, form=form)

    def keys(self) -> tuple[str, ...]:
        """The model's input, and the labels where there are any."""
        return (*((self.form.key,) if self.form else ()), *(() if self.names is None else (self.label,)))

    def read(self, rows: Array, draw: Draw | None) -> dict[str, Array]:
        """The images, decoded."""
        form = self.form
        if form is None:
            raise InputError(f"{self.folder}: images have no size before a model says it; use the dataset in fit()")
        shape = (form.height, form.width, form.channels) if form.last else (form.channels, form.height, form.width)
        found = np.empty((len(rows), *shape), form.tables.dtype)
        for index, row in enumerate(rows):
            generator = draw.generator(index) if draw is not None and self.options.augment is not None else None
            pixels = pixels_of(self.files[row], form, self.options, generator)
            for channel in range(form.channels):
                target = found[index, ..., channel] if form.last else found[index, channel]
                target[...] = form.tables[channel][pixels[..., channel]]
        labels = self.column(self.label, rows)
        return {form.key: found, **({} if labels is None else {self.label: labels})}

    def column(self, key: str, rows: Array) -> Array | None:
        """The labels, or by ``FILE`` the names of the files."""
        if key == FILE:
            return np.array([self.files[row].relative_to(self.folder).as_posix() for row in rows], object)
        if key != self.label or self.names is None:
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

    def likewise(self, request: Request) -> dict[str, Any]:
        """What pixels become."""
        return {name: getattr(self.options, name) for name in ("size", "resize", "mean", "std", "layout")}
