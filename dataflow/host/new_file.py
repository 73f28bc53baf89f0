"""A file that is complete or isn't there."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path


def _process_space() -> str:
    """Where numbers of processes mean the same: this boot of this machine, in this container."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except (OSError, ValueError):
        return re.sub(r"[^A-Za-z0-9_-]", "-", platform.node())[:64]


_HOST = _process_space()
_LEFTOVER = re.compile(
    r"\.(?:step-\d{9,}\.safetensors|dataflow)\.(?:(?P<host>[A-Za-z0-9_-]*)\.)?(?P<pid>\d+)(?:\.[0-9a-f]{16})?\.part(?:\..+)?"
)  # the first form: of checkpoints before 2026-11-28
_ABANDONED = 86400.0  # seconds after which what another machine left half-written counts as left for good


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

    Until then what was there stays, and where the block raises, it stays for good and nothing else is left. What
    killed processes left half-written in the folder is removed.

    Args:
        target: the file.
        suffix: of the path, which some writers read.
        name: of the path instead.
        synced: it reaches the disk before it takes the place, and then its name does: after a power failure one of
            both is there and complete, and after a return the new one is.
        renamed: gives the file instead of ``target``, in its folder, where its name depends on what was written.

    Raises:
        OSError: the file can't be moved to its place.
    """
    # Processes of several machines, or containers, may write to one folder and have one number.
    suffix = suffix if suffix == ".part" else f".part{suffix}"
    unfinished = target.with_name(name or f".dataflow.{_HOST}.{os.getpid()}.{secrets.token_hex(8)}{suffix}")
    try:
        yield unfinished
        if synced:
            reach_disk(unfinished)
        final = target if renamed is None else renamed()
        fresh = not os.path.lexists(final)
        unfinished.replace(final)
        try:
            if synced:
                reach_disk(final.parent)
        except OSError:
            if fresh:
                final.unlink(missing_ok=True)
            raise
        _clean(final.parent)
    finally:
        with contextlib.suppress(OSError, ValueError):  # the reason why it is still there counts
            unfinished.unlink(missing_ok=True)


def _clean(folder: Path) -> None:
    """Removes what killed processes left half-written, where that can be."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if _is_abandoned(path):
                path.unlink(missing_ok=True)


def _is_abandoned(path: Path) -> bool:
    """Whether the process that was writing this file is gone; elsewhere only its age tells."""
    match = _LEFTOVER.fullmatch(path.name)
    if match is None:
        return False
    if match["host"] in (None, _HOST):
        return not _is_alive(int(match["pid"]))
    return time.time() - path.stat().st_mtime > _ABANDONED


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


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
