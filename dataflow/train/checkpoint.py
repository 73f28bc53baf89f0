"""Checkpoints: a training run in one safetensors file, that appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError
from ..graph import Array, Graph

FORM = "dataflow checkpoint 1"
_NAME = re.compile(r"step-(\d{9,})\.safetensors")
_LEFTOVER = re.compile(r"\.step-\d{9,}\.safetensors\.\d+\.part")
_log = logging.getLogger("dataflow")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a file holds.

    Attributes:
        tensors: by name.
        counters: what JSON holds: steps, epoch, position, tallies, history.
        fingerprint: of the structure of the model.
    """

    tensors: Mapping[str, Array]
    counters: Mapping[str, Any]
    fingerprint: str


def fingerprint(graph: Graph) -> str:
    """A hash of the structure of a graph: nodes, attributes, names and types, not the data."""
    return hashlib.sha256(str(graph).encode()).hexdigest()


def save(folder: str | Path, step: int, checkpoint: Checkpoint, keep: int) -> Path:
    """The path of the file written for ``step``; only the ``keep`` newest stay.

    The data goes to a hidden file in the same folder, reaches the disk, and then takes its name.
    """
    from safetensors.numpy import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:09d}.safetensors"
    part = folder / f".{path.name}.{os.getpid()}.part"
    metadata = {
        "format": FORM,
        "fingerprint": checkpoint.fingerprint,
        "counters": json.dumps(checkpoint.counters),
    }
    try:
        tensors = {name: np.require(array, requirements="C") for name, array in checkpoint.tensors.items()}
        save_file(tensors, str(part), metadata)
        _reach_disk(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _reach_disk(folder)
    _clean(folder, keep)
    return path


def load(path: str | Path) -> Checkpoint:
    """What the file holds.

    Raises:
        InputError: it is no checkpoint, or truncated.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORM:
                raise InputError(
                    f"{path}: no checkpoint of this form; expected {FORM!r}, got {metadata.get('format')!r}"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        return Checkpoint(tensors, json.loads(metadata["counters"]), metadata["fingerprint"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InputError(f"{path}: can't be read as a checkpoint: {error}") from error


def newest(folder: str | Path) -> tuple[Path, Checkpoint] | None:
    """The newest file of a folder that can be read, with what it holds; None when there is none."""
    for path in reversed(files(folder)):
        try:
            return path, load(path)
        except InputError as error:
            _log.warning("checkpoint skipped: %s", error)
    return None


def files(folder: str | Path) -> list[Path]:
    """The checkpoints in a folder, oldest step first."""
    folder = Path(folder)
    found = [(int(match[1]), path) for path in folder.glob("*.safetensors") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def check(checkpoint: Checkpoint, path: Path, graph: Graph, trainable: Sequence[str], slots: Sequence[str]) -> None:
    """Raises InputError when a checkpoint belongs to a model of another structure, or to another way to train it.

    Args:
        checkpoint: what was loaded; its counters have ``trainable`` and ``slots``.
        path: of its file, for the message.
        graph: of the model.
        trainable: names of the parameters that this run trains.
        slots: names of the optimizer's tensors per parameter.
    """
    types = {value.name: value.type for value in graph.initializers}
    differences = []
    for name, array in checkpoint.tensors.items():
        kind, _, parameter = name.partition("/")
        wanted = types.get(parameter)
        if kind != "parameters":
            continue
        if wanted is None:
            differences.append(f"the model has no {parameter!r}")
        elif wanted.sizes != array.shape or wanted.dtype.numpy != array.dtype:
            differences.append(f"{parameter!r} is {array.dtype}{list(array.shape)} there and {wanted} here")
    if not differences and checkpoint.fingerprint != fingerprint(graph):
        differences.append("the nodes of the graphs differ")
    for what, here in (("trainable", list(trainable)), ("slots", list(slots))):
        there = checkpoint.counters.get(what)
        if not differences and there != here:
            label = "trained parameters" if what == "trainable" else "optimizer state"
            differences.append(f"the {label} differ: {_short(there)} there, {_short(here)} here")
    if differences:
        more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
        raise InputError(
            f"{path}: the checkpoint doesn't fit this run: {'; '.join(differences[:3])}{more}; "
            "use the model and settings that it was made with, or another folder"
        )


def _short(names: Any) -> str:
    return ", ".join(map(str, (names or ["none"])[:4])) + (", ..." if len(names or ()) > 4 else "")


def _clean(folder: Path, keep: int) -> None:
    """Removes all but the newest files, and what a killed process left half-written."""
    for path in files(folder)[:-keep] if keep > 0 else []:
        path.unlink(missing_ok=True)
    for path in folder.iterdir():
        if _LEFTOVER.fullmatch(path.name) and not _alive(int(path.name.split(".")[-2])):
            path.unlink(missing_ok=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _reach_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
