"""What devices and kernels in C log goes to Python's logger ``dataflow``."""

from __future__ import annotations

import atexit
import logging

from .._runtime import ffi, lib
from .abi import CData, text_of

_log = logging.getLogger("dataflow")


@ffi.def_extern(name="df_log_python")
def _log_python(severity: int, text: CData) -> None:
    _log.log(severity, "%s", text_of(text))


def log_to_python() -> None:
    """From now on; until the interpreter ends, after which a device may still say something."""
    lib.df_set_log(lib.df_log_python)


atexit.register(lib.df_set_log, ffi.NULL)
