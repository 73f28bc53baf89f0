"""NumPy's files: archives of arrays, and folders of arrays that stay on disk until a batch reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...errors import InputError
from ...ir.types import Array


def read_npz(path: Path) -> dict[str, Array]:
    """The arrays of an archive.

    Raises:
        InputError: it is none; a single array has no name.
    """
    try:
        with path.open("rb") as opened:
            found = np.load(opened, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise InputError(
                    f"{path}: one array without a name; save several with np.savez(path, x=..., labels=...)"
                )
            return {key: found[key] for key in found.files}
    except InputError:
        raise
    except Exception as error:  # NumPy's parser of headers raises TokenError, SyntaxError and others
        raise InputError(f"{path}: can't be read as npz: {error}") from error


def read_npy_folder(path: Path) -> dict[str, Array]:
    """The arrays of all files ``KEY.npy`` as memory maps.

    Raises:
        InputError: a file can't be mapped.
    """
    found: dict[str, Array] = {}
    for file in sorted(path.glob("*.npy")):
        try:
            found[file.stem] = np.load(file, mmap_mode="r", allow_pickle=False)
        except Exception as error:  # likewise
            raise InputError(f"{file}: can't be mapped into memory: {error}") from error
    return found
