"""Reference of decoding images, which Pillow does."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from dataflow.errors import DeviceError, InputError

from .arrays import Array, Attributes

_FORMATS = ("BMP", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # no others: some of Pillow's run programs
_MOST_PIXELS = 1 << 27  # a file of some hundred bytes may claim any number


def _decoded(name: str, x: Array, pixel_format: str = "RGB") -> Array:
    """The image (height, width, channels); (0, 0, channels) where the bytes are none, as ONNX has it.

    Raises:
        DeviceError: Pillow isn't installed.
        InputError: it has too many pixels.
    """
    none = np.zeros((0, 0, 1 if pixel_format == "Grayscale" else 3), np.uint8)
    if not x.size:
        return none
    try:
        from PIL import Image
    except ImportError:
        text = "images are decoded by Pillow, which is not installed; pip install 'dataflow-engine[images]'"
        raise DeviceError(f"{name}: {text}") from None
    try:
        with Image.open(io.BytesIO(x.tobytes()), formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise Image.DecompressionBombError(f"it claims {image.width} x {image.height} pixels")
            image.load()
            plain = _of_bytes(image) if image.mode[0] in "IF" else image
            pixels = np.asarray(plain.convert("L" if pixel_format == "Grayscale" else "RGB"))
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InputError(f"{name}: {error}; an image has at most {_MOST_PIXELS} pixels") from None
    except MemoryError:
        raise
    except Exception:  # whatever the decoder of a damaged file stumbles over
        return none
    if pixel_format == "Grayscale":
        return pixels[:, :, None]
    return np.ascontiguousarray(pixels[:, :, ::-1]) if pixel_format == "BGR" else pixels


def _of_bytes(image: Any) -> Any:
    """An image of more than 8 bits by its first 8 of 16; Pillow's own conversion clips.

    Raises:
        ValueError: its numbers are no 16 bits.
    """
    from PIL import Image

    numbers = np.asarray(image)
    if numbers.dtype.kind == "f" or numbers.min(initial=0) < 0 or numbers.max(initial=0) > 0xFFFF:
        raise ValueError("no 16 bits")
    return Image.fromarray((numbers >> 8).astype(np.uint8))


def image_size(attributes: Attributes, x: Array) -> Array:
    """Height and width."""
    return np.array(_decoded("image_size", x).shape[:2], np.int64)


def decode_image(attributes: Attributes, x: Array) -> Array:
    """The pixels; raises InputError where they are not of the expected size."""
    found = _decoded("decode_image", x, attributes["pixel_format"])
    wanted = attributes["height"], attributes["width"]
    if found.shape[:2] != wanted:
        raise InputError(f"decode_image: the image has {found.shape[0]} x {found.shape[1]} pixels; expected {wanted}")
    return found
