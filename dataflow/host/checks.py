"""Validation of callers' arguments at the public functions, so that the code below may rely on their types."""

from __future__ import annotations

import contextlib
import math
import os
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError


def shown(value: object) -> str:
    """A value as text for messages: shortened; of an array only the dtype and shape."""
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}{list(value.shape)}"
    try:
        return reprlib.repr(value)
    except Exception:  # its own repr may do anything
        return f"a {type(value).__name__}"


def instance(name: str, value: Any, *kinds: type) -> Any:
    """The value, which is one of ``kinds``.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, kinds):
        raise InputError(f"{name} is {shown(value)}; expected {' or '.join(map(_article, kinds))}")
    return value


def _article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOUaeiou' else 'a'} {kind.__name__}"


def optional(name: str, value: Any, *kinds: type) -> Any:
    """As ``instance``, or None."""
    return None if value is None else instance(name, value, *kinds)


def text(name: str, value: Any, choices: Collection[str] = ()) -> str:
    """The value, a str, and one of ``choices`` where there are any.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, str) or (choices and value not in choices):
        raise InputError(f"{name} is {shown(value)}; expected {', '.join(map(repr, choices)) or 'a text'}")
    return value


def texts(name: str, value: Any) -> tuple[str, ...]:
    """Texts: one, or an iterable of them.

    Raises:
        InputError: it is something else.
    """
    if isinstance(value, str):
        return (value,)
    found = tuple(value) if isinstance(value, Iterable) and not isinstance(value, (bytes, np.ndarray)) else (value,)
    return tuple(text(f"{name}: an entry", entry) for entry in found)


def entries(name: str, value: Any, wanted: str) -> tuple[Any, ...]:
    """The elements of a list, a tuple or another iterable that is no text; ``wanted`` is for the message.

    Raises:
        InputError: it is something else.
    """
    if (
        isinstance(value, (str, bytes))
        or not isinstance(value, Iterable)
        or (isinstance(value, np.ndarray) and not value.ndim)
    ):
        raise InputError(f"{name} is {shown(value)}; expected {wanted}")
    return tuple(value)


def mapping(name: str, value: Any) -> Mapping[str, Any]:
    """A mapping with texts as keys.

    Raises:
        InputError: it is something else.
    """
    instance(name, value, Mapping)
    for key in value:
        text(f"{name}: a key", key)
    return value  # type: ignore[no-any-return]


def arrays(name: str, value: Any) -> Mapping[str, np.ndarray[Any, Any]]:
    """A mapping from texts to numpy arrays.

    Raises:
        InputError: it is something else.
    """
    for key, array in mapping(name, value).items():
        instance(f"{name}[{key!r}]", array, np.ndarray)
    return value  # type: ignore[no-any-return]


def number(name: str, value: Any, least: float = 0.0, below: float = math.inf) -> float:
    """A finite number in ``[least, below)``.

    Raises:
        InputError: it is something else.
    """
    fits = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not fits or not (least <= value < below):
        wanted = (
            f"a finite number from {least:g} on"
            if below == math.inf
            else f"a number from {least:g} on, below {below:g}"
        )
        raise InputError(f"{name} is {shown(value)}; expected {wanted}")
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"{name} is {shown(value)}, which no float can hold") from None


def path(name: str, value: Any) -> str:
    """The path of a file as a str.

    Raises:
        InputError: it is none.
    """
    found = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(found, str) or not found:
        raise InputError(f"{name} is {shown(value)}; expected the path of a file")
    return found


def writable_file(name: str, value: Any) -> Path:
    """The path of a file that could be written now; nothing is written.

    Raises:
        InputError: it is no path, or a folder, or there is no folder for it, or one of them can't be written.
    """
    found = Path(path(name, value))
    folder = found.absolute().parent
    if found.is_dir():
        raise InputError(f"{name} {found}: it is a folder; expected the path of a file")
    if not folder.is_dir():
        raise InputError(f"{name} {found}: there is no folder {folder}; make it, or choose another path")
    there = found if found.exists() else folder
    if not os.access(there, os.W_OK):
        raise InputError(f"{name} {found}: {there} can't be written; change its permissions, or choose another path")
    return found


def writable_folder(name: str, value: Any) -> Path:
    """The path of a folder that could be made now, or is there, and could be written; nothing is made.

    Raises:
        InputError: it is no path, it or what it lies in is a file, or that can't be written.
    """
    found = Path(path(name, value))
    there = next(one for one in (found.absolute(), *found.absolute().parents) if os.path.lexists(one))
    if not there.is_dir():
        raise InputError(f"{name} {found}: {there} is a file; expected a folder, or the path of a new one")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{name} {found}: {there} can't be written; change its permissions, or choose another folder")
    return found


@contextlib.contextmanager
def writing(name: str, target: Path) -> Iterator[None]:
    """A context in which a file or folder is made; what the system refuses becomes an InputError that names it."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"{name} {target}: it can't be written: {why}; choose another path") from error


def array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """The value as an array.

    Raises:
        InputError: it can't be one: rows of different lengths, or an object that refuses.
    """
    try:
        return np.asarray(value)
    except MemoryError:
        raise
    except Exception as error:  # anybody's code: whatever it raises is its reason
        raise InputError(f"{name} is {shown(value)}, which is no array: {error}{_advice(value)}") from None


def borrowed(name: str, value: Any) -> np.ndarray[Any, Any]:
    """The array that an object lends by DLPack or gives by ``__array__``.

    Raises:
        InputError: it does neither, as one that records gradients or is on a device that NumPy can't read.
    """
    try:
        return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)
    except MemoryError:
        raise
    except Exception as error:  # anybody's code
        raise InputError(f"{name}: {type(value).__name__} gives no array: {error}{_advice(value)}") from None


def _advice(value: Any) -> str:
    """What to do about an array of another library's that NumPy can't read."""
    return "; convert it, e.g. with .detach().cpu().float().numpy()" if hasattr(value, "detach") else ""
