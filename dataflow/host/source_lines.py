"""Positions in source files, as messages name them."""

from __future__ import annotations

import os
import sys
from types import TracebackType

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # noqa: PTH100, PTH120
_NOTICING = frozenset(("dataflow", "pluggy", *sys.stdlib_module_names))


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
    """The position of the innermost call by who uses this package; empty where there is none.

    Calls within this package, Python's own library and pluggy are where something is noticed, not what causes it.
    """
    found = ""
    while traceback is not None:
        frame = traceback.tb_frame
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _NOTICING:
            found = position(frame.f_code.co_filename, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found
