"""The errors that users meet. Each says where, what was expected, what came and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class DataflowError(Exception):
    """Base of every error that dataflow raises on purpose."""


class ModelError(DataflowError):
    """A model or its file is wrong or uses what is not supported."""


class InputError(DataflowError):
    """What the caller passed does not fit: a name, dtype, shape, value or option."""


class GradientError(DataflowError):
    """A gradient was asked for that does not exist."""


class DeviceError(DataflowError):
    """A device is unavailable, refused the work or failed while running."""


class OutOfMemoryError(DeviceError):
    """A device has not the memory that a plan needs."""


class LimitExceeded(DataflowError):
    """A model needs more memory or time than ``Limits`` allow."""


class PluginError(DataflowError):
    """A plugin breaks its contract or clashes with another."""


class Cancelled(DataflowError):
    """A run was cancelled before it finished."""


def failure(whose: str, error: BaseException) -> PluginError:
    """What is raised in place of an error of code that isn't this project's; ``whose`` as for ``blamed``."""
    return PluginError(f"{whose} failed: {type(error).__name__}: {error}")


def calls_itself(error: RecursionError, most: int = 100) -> bool:
    """Whether what raised the error lies more than so many calls below the function that caught it.

    Else the calls that lead to that function are too many, and what it called last isn't to blame.
    """
    calls, trace = 0, error.__traceback__
    while trace is not None and calls <= most:
        calls, trace = calls + 1, trace.tb_next
    return calls > most


@contextmanager
def blamed(whose: str) -> Iterator[None]:
    """Names the code of a plugin, or of the user, in what it raises beside this project's errors.

    Args:
        whose: e.g. ``"clip 'c': its gradient rule"``.

    Raises:
        PluginError: in place of any other error.
    """
    try:
        yield
    except (DataflowError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # the process is the user's
        raise failure(whose, error) from error
