"""The error that a status of the C contract stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._runtime import ffi, lib
from ..errors import Cancelled, DataflowError, DeviceError, InputError, OutOfMemoryError

_ERRORS: Mapping[int, type[DataflowError]] = {
    lib.DF_INVALID: InputError,
    lib.DF_OUT_OF_MEMORY: OutOfMemoryError,
    lib.DF_CANCELLED: Cancelled,
}
_STATUSES = ("DF_INVALID", "DF_UNSUPPORTED", "DF_OUT_OF_MEMORY", "DF_DEVICE", "DF_CANCELLED", "DF_INTERNAL")


def raise_error(status: int, error: Any, where: str) -> None:
    """Raises the error of a status that isn't DF_OK.

    Args:
        status: a ``df_status``.
        error: the ``df_error`` that the call filled in.
        where: stands before its text.

    Raises:
        InputError, OutOfMemoryError, Cancelled: as the status says.
        DeviceError: any other status.
    """
    if status == lib.DF_OK:
        return
    text = ffi.string(error.text).decode("utf-8", "replace") or _unexplained(status)
    raise _ERRORS.get(status, DeviceError)(f"{where}: {text}")


def _unexplained(status: int) -> str:
    """What is said where a status came without a text."""
    name = next((n for n in _STATUSES if status == getattr(lib, n)), None)
    return f"{name} without a message" if name else f"the status {status}, which dataflow.h hasn't"
