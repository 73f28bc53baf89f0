"""Positions in source files, as messages name them."""

from __future__ import annotations

import os
from types import TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120


def is_own(file: str) -> bool:
    """Whether a source file is this package's."""
    return file.startswith(_PACKAGE)


def position(file: str, line: int) -> str:
    """``"net.py:12"``; of a package's ``__init__.py`` its folder too, since so many are called so."""
    folder, name = os.path.split(file)
    if name == "__init__.py":
        name = f"{os.path.basename(folder)}/{name}"  # noqa: PTH119
    return f"{name}:{line}"


def innermost(traceback: TracebackType | None) -> str:
    """The position of the innermost call outside of this package; empty where there is none."""
    found = ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not is_own(file) and os.path.exists(file):  # noqa: PTH110
            found = position(file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
