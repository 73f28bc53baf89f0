"""A file that is complete or isn't there."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path


@contextlib.contextmanager
def new_file(
    target: Path,
    suffix: str = ".part",
    *,
    name: str = "",
    synced: bool = False,
    renamed: Callable[[], Path] | None = None,
) -> Iterator[Path]:
    """A path in the folder of ``target`` to write to; what lies there afterwards takes its place, and its name.

    Until then what was there stays, and where the block raises, it stays for good and nothing else is left.

    Args:
        target: the file.
        suffix: of the path, which some writers read.
        name: of the path instead, by which others tell what a killed process left.
        synced: it reaches the disk before it takes the place: after a power failure one of both is there and complete.
        renamed: gives the file instead of ``target``, in its folder, where its name depends on what was written.

    Raises:
        OSError: the file can't be moved to its place.
    """
    # Processes of several machines, or containers, may write to one folder and have one number.
    unfinished = target.with_name(name or f".{secrets.token_hex(8)}{suffix}")
    try:
        yield unfinished
        if synced:
            reach_disk(unfinished)
        unfinished.replace(target if renamed is None else renamed())
    finally:
        with contextlib.suppress(OSError, ValueError):  # the reason why it is still there counts
            unfinished.unlink(missing_ok=True)


def reach_disk(path: Path) -> None:
    """Waits until a file, or the names in a folder, are on the disk.

    Raises:
        OSError: they can't be.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that has no fsync of folders
            raise
    finally:
        os.close(handle)
