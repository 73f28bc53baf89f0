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
    text = ffi.string(error.text).decode("utf-8", "replace") or f"status {status}"
    raise _ERRORS.get(status, DeviceError)(f"{where}: {text}")
