"""Tensors whose data lies in other files, which are refused outside the model's folder, also behind links."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from dataflow.errors import ModelError

from .records import Array
from .wire import read_array


class ExternalData:
    """The other files of a model's folder, as far as they were read.

    Attributes:
        used: something was.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.used = False
        self._read: dict[tuple[str, int, int], Array] = {}  # by file, offset and length: tensors may be one
        self._left: dict[str, int] = {}  # bytes of each file that no tensor has had yet

    def bytes(self, entries: Mapping[str, str], wanted: int) -> Array:
        """The bytes of a tensor, read-only.

        Args:
            entries: of the tensor: location, offset and length.
            wanted: how many bytes it has by its type.

        Raises:
            ModelError: the file lies elsewhere, is no file, can't be read, or is too short for the tensor.
        """
        self.used = True
        location = entries.get("location", "")
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", wanted))
        except ValueError:
            raise ModelError("offset or length of its external data is no number") from None
        if length != wanted or offset < 0:
            raise ModelError(f"its type needs {wanted} bytes, its entry says {length} at {offset}")
        try:
            return self._bytes(self._resolved(location), location, offset, length)
        except OSError as error:
            raise ModelError(f"external data {_short(location)} can't be read: {error.strerror}") from None

    def _resolved(self, location: object) -> str:
        """The file without links, in the folder."""
        if not isinstance(location, str) or not location or "\0" in location:
            raise ModelError(f"external data at {_short(location)}, which is no name of a file")
        given = Path(location)
        if given.is_absolute() or ".." in given.parts:
            raise ModelError(f"external data at {_short(location)}; only files in the model's own folder are read")
        found = os.path.realpath(self.folder / given, strict=True)
        if not Path(found).is_relative_to(self.folder):
            raise ModelError(f"external data at {_short(location)} leads out of the model's folder")
        return found

    def _bytes(self, path: str, location: str, offset: int, length: int) -> Array:
        key = path, offset, length
        if key in self._read:
            return self._read[key]
        with open(path, "rb", buffering=0, opener=_opened) as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode):
                raise ModelError(f"external data at {_short(location)}, which is no file")
            if offset + length > about.st_size:
                text = f"bytes {offset} to {offset + length} of {_short(location)}, which has {about.st_size}"
                raise ModelError(text)
            left = self._left.get(path, about.st_size) - length
            if left < 0:
                text = f"{_short(location)} has {about.st_size} bytes; its tensors overlap and need more"
                raise ModelError(text)
            self._left[path] = left
            found = self._read[key] = read_array(file, offset, length)
        return found


def _opened(path: str, flags: int) -> int:
    """Opens without blocking on a pipe and without following links: the resolved path may have become one since."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _short(location: object) -> str:
    return f"{location!r:.200}"
