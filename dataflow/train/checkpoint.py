"""Checkpoints: a training run in one safetensors file, that appears whole or not at all.

A file carries a digest of all that it holds. What is read is checked against it before anybody uses it: damaged files,
files of others, and files of newer versions are distinguished.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from ..errors import InputError
from ..host import checks
from ..host.new_file import new_file
from ..ir.graph import Graph
from ..ir.types import Array, dtype
from .interrupts import InterruptsHeld

VERSION = 2  # 1 had no digest
_FORM = re.compile(r"dataflow checkpoint (\d{1,9})")
_NAME = re.compile(r"step-(\d{9,})\.safetensors")
_BLOCK = 1 << 24  # bytes that are written at a time: a signal is answered between them
_TAGS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
    **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)}, **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
}  # fmt: skip
_log = logging.getLogger("dataflow")


class DamagedCheckpoint(InputError):
    """A file that is no whole checkpoint: truncated, changed since it was written, or no checkpoint at all."""


class NewerCheckpoint(InputError):
    """A file that a newer version of dataflow wrote."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a file holds.

    Attributes:
        tensors: by name.
        counters: what JSON holds, see ``Record``.
        fingerprint: of the structure of the model.
    """

    tensors: Mapping[str, Array]
    counters: Mapping[str, Any]
    fingerprint: str

    def digest(self) -> str:
        """A hash of all of it."""
        return _digest(self.tensors, {"counters": json.dumps(self.counters), "fingerprint": self.fingerprint})


def fingerprint(graph: Graph) -> str:
    """A hash of the structure of a graph: nodes, attributes, names and types, not the data."""
    return hashlib.sha256(str(graph).encode()).hexdigest()


# ---- writing ------------------------------------------------------------------------------------------


class Claim:
    """A context in which no other run writes to a folder, which is made; it ends with the process at the latest.

    Ctrl-C at any instant leaves no claim behind: it waits while one is made or given up, and one that was made for a
    context which then was not entered ends with the object.

    Args:
        folder: where checkpoints will lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._handle = -1

    def __enter__(self) -> None:
        """Makes the folder and claims it.

        Raises:
            InputError: another run writes there, it is a file, or it can't be made or written.
        """
        folder = checks.writable_folder("checkpoint", self._folder)
        with checks.writing("checkpoint", folder):
            folder.mkdir(parents=True, exist_ok=True)
        with InterruptsHeld():
            self._handle = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._close()
                raise InputError(
                    f"{folder}: another run writes its checkpoints here; wait for its end, or choose another folder"
                ) from None
            except OSError as error:  # not every network's file system has locks
                _log.info("%s: no lock against a second run: %s", folder, error)

    def __exit__(self, *_: object) -> None:
        with InterruptsHeld():
            self._close()

    def __del__(self) -> None:
        if self._handle >= 0:
            with InterruptsHeld(later=True):
                self._close()

    def _close(self) -> None:
        handle, self._handle = self._handle, -1
        if handle >= 0:
            os.close(handle)


def save(folder: str | Path, step: int, checkpoint: Checkpoint, keep: int) -> Path:
    """The path of the file written for ``step``; of those up to it only the ``keep`` newest stay.

    The data goes to a hidden file in the same folder, reaches the disk, and then takes its name.

    Raises:
        OSError: it could not be written; names the file. What was there before stays.
    """
    folder = Path(folder)
    path = path_of(folder, step)
    tensors = {name: np.require(array, requirements="C") for name, array in checkpoint.tensors.items()}
    metadata = {
        "format": f"dataflow checkpoint {VERSION}",
        "fingerprint": checkpoint.fingerprint,
        "counters": json.dumps(checkpoint.counters),
    }
    metadata["digest"] = _digest(tensors, metadata)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with new_file(path, synced=True) as unfinished:
            write_tensors(unfinished, tensors, metadata)
    except OSError as error:
        why = f"this checkpoint was not saved, earlier ones stay: {error.strerror or error}"
        raise OSError(error.errno, why, str(path)) from error
    _clean(folder, path, keep)
    return path


def write_tensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Writes a safetensors file with calls of our own: safetensors' has errors without a number, and leaves litter."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in tensors.items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": _TAGS[array.dtype.name], "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb", buffering=0) as file:
        for rest in (memoryview(len(text).to_bytes(8, "little") + text), *map(_bytes, tensors.values())):
            while rest:
                rest = rest[file.write(rest[:_BLOCK]) :]


def _digest(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> str:
    """A hash of names, types, shapes and bytes of the tensors and of the other entries of the metadata."""
    digest = xxhash.xxh3_128()
    entries = {key: text for key, text in metadata.items() if key != "digest"}
    types = {name: [array.dtype.name, list(array.shape)] for name, array in tensors.items()}
    digest.update(json.dumps([entries, types], sort_keys=True).encode())
    for name in sorted(tensors):
        digest.update(_bytes(tensors[name]))
    return digest.hexdigest()


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _clean(folder: Path, saved: Path, keep: int) -> None:
    """Removes all but the newest files up to ``saved``."""
    try:
        known = files(folder)
        unwanted = known[: known.index(saved) + 1][:-keep]
        for path in unwanted:
            path.unlink(missing_ok=True)
    except (OSError, ValueError) as error:  # the checkpoint is saved; ValueError: somebody removed it
        _log.warning("%s: old checkpoints could not be removed: %s", folder, error)


# ---- reading ------------------------------------------------------------------------------------------


def load(path: str | Path) -> Checkpoint:
    """What the file holds, checked against its digest.

    Raises:
        InputError: there is no such file; a DamagedCheckpoint or a NewerCheckpoint.
        OSError: the file may not be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with Path(path).open("rb"):
            pass
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            version = _version(path, metadata)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        counters = json.loads(metadata["counters"])
        if not isinstance(counters, dict):
            raise DamagedCheckpoint(f"{path}: damaged: its counters are no JSON object")
        checkpoint = Checkpoint(tensors, counters, metadata["fingerprint"])
    except PermissionError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{path}: can't be read as a checkpoint: {error.strerror}") from error
    except IsADirectoryError as error:
        advice = "resume='auto' with checkpoint=, this folder, goes on from its newest"
        raise InputError(f"{path} is a folder; expected a checkpoint of it; {advice}") from error
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path}: can't be read as a checkpoint, truncated or damaged: {error}") from error
    if version == 1:
        _log.info("%s: written by an older version, without a digest; damage inside of tensors can't be seen", path)
    elif metadata.get("digest") != _digest(tensors, metadata):
        raise DamagedCheckpoint(f"{path}: damaged: its digest is not that of its contents; use an earlier checkpoint")
    return checkpoint


def _version(path: str | Path, metadata: Mapping[str, str]) -> int:
    form = metadata.get("format")
    match = _FORM.fullmatch(form or "")
    if match is None or int(match[1]) < 1:
        raise DamagedCheckpoint(
            f"{path}: no checkpoint of this form; expected 'dataflow checkpoint {VERSION}', got {form!r}"
        )
    if int(match[1]) > VERSION:
        raise NewerCheckpoint(
            f"{path}: written by a newer version of dataflow, in form {match[1]}; this one reads up to form {VERSION}; "
            "update dataflow, or use another folder"
        )
    return int(match[1])


def newest(
    folder: str | Path, check: Callable[[Checkpoint, Path], object] = lambda *_: None
) -> tuple[Path, Checkpoint] | None:
    """The newest file of a folder that can be read, with what it holds; None when there are no files.

    Args:
        folder: of the checkpoints.
        check: raises InputError for a checkpoint that is damaged in what this module knows nothing of.

    Raises:
        InputError: there are files, and all are damaged; or the newest that isn't is a NewerCheckpoint.
        OSError: a file may not be read.
    """
    skipped = []
    for path in reversed(files(folder)):
        try:
            found = load(path)
            check(found, path)
        except NewerCheckpoint:
            raise
        except InputError as error:
            _log.warning("checkpoint skipped: %s", error)
            skipped.append(str(error))
        else:
            return path, found
    if skipped:
        raise InputError(
            f"{folder}: none of the {len(skipped)} checkpoints can be used; to begin anew, use another folder or move "
            f"them away; the newest: {skipped[0]}"
        )
    return None


def later(folder: Path, steps: int) -> Path | None:
    """The newest checkpoint, if it is of more optimizer steps than these."""
    found = files(folder)
    return found[-1] if found and step_of(found[-1]) > steps else None


def path_of(folder: Path, step: int) -> Path:
    """That of the checkpoint of an optimizer step."""
    return folder / f"step-{step:09d}.safetensors"


def step_of(path: Path) -> int:
    """The optimizer steps in the name of a checkpoint."""
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def files(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, oldest step first."""
    return sorted((path for path in Path(folder).glob("*.safetensors") if _NAME.fullmatch(path.name)), key=step_of)


def not_finite(tensors: Mapping[str, Array]) -> list[str]:
    """Names of the float tensors that have a NaN or an infinity."""
    return [name for name, array in tensors.items() if dtype(array).is_float and not np.isfinite(array).all()]
