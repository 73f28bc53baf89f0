"""A file that is complete or isn't there."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

_numbers = itertools.count()


@contextlib.contextmanager
def new_file(target: Path, suffix: str = ".part") -> Iterator[Path]:
    """A path in the folder of ``target`` to write to; what lies there afterwards takes its place, and its name.

    Until then what was there stays, and where the block raises, it stays for good and nothing else is left.

    Args:
        target: the file.
        suffix: of the path, which some writers read.

    Raises:
        OSError: the file can't be moved to its place.
    """
    unfinished = target.with_name(f".{os.getpid()}.{next(_numbers)}{suffix}")
    try:
        yield unfinished
        unfinished.replace(target)
    finally:
        with contextlib.suppress(OSError, ValueError):  # the reason why it is still there counts
            unfinished.unlink(missing_ok=True)
