"""Model files on disk: a model appears whole or not at all, with large tensors in a data file beside it.

The data file is written first, under a name that no model uses yet. Replacing the model file is then the one step that
makes the new model exist; until then the old one is complete, data and all.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dataflow.errors import InputError, ModelError
from dataflow.plugin import new_file

from .records import Array

LARGEST = (1 << 31) - (1 << 24)  # bytes of tensors in one file: protobuf ends at 2 GiB, and the nodes need the rest
WORTH_MOVING = 1024  # bytes; smaller tensors stay in the model file
_ALIGNMENT = 4096
_EXTERNAL = 1  # TensorProto.DataLocation
_IN_GRAPH = 5  # AttributeProto.AttributeType
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def tensors(graph: Any) -> Iterator[Any]:
    """Every stored tensor of a graph: initializers, then attributes of nodes, and those of bodies."""
    yield from graph.initializer
    yield from _inner(graph)


def _inner(graph: Any) -> Iterator[Any]:
    """Stored tensors of a graph's nodes."""
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for body in [*attribute.graphs, *([attribute.g] if attribute.type == _IN_GRAPH else [])]:
                yield from tensors(body)


def is_external(tensor: Any) -> bool:
    """Whether the data lies in another file."""
    return bool(tensor.data_location == _EXTERNAL)


def write_model(
    proto: Any,
    target: Path,
    data_of: Callable[[Any, bool], bytes],
    check: Callable[[bytes], Mapping[str, Array]],
    expected: Mapping[str, Array],
) -> None:
    """Writes a model, reads it back and compares.

    Args:
        proto: the model; external tensors are pointed at the new data file.
        target: the model file.
        data_of: bytes of an external tensor; True with an initializer of the main graph.
        check: decodes what was written; gives its initializers.
        expected: what some of them must be.

    Raises:
        InputError: a file can't be written.
        ModelError: what was written reads differently; the target is left as it was.
    """
    found = [(t, True) for t in proto.graph.initializer] + [(t, False) for t in _inner(proto.graph)]
    too_large = sum(len(t.raw_data) for t, _ in found) > LARGEST
    moved = [(t, own) for t, own in found if is_external(t) or (too_large and len(t.raw_data) >= WORTH_MOVING)]
    old = _data_files(target)
    beside = _write_data(target, moved, data_of) if moved else None
    try:
        data = proto.SerializeToString()
        _compare(target, check(data), expected)
        write_file(target, [data])
    except BaseException:
        if beside is not None and beside not in old:
            beside.unlink(missing_ok=True)
        raise
    for path in old - {beside}:
        path.unlink(missing_ok=True)


def _write_data(target: Path, moved: Iterable[tuple[Any, bool]], data_of: Callable[[Any, bool], bytes]) -> Path:
    """Writes the tensors' data beside the target and points them at it; the path of the file."""
    digest = hashlib.blake2b(digest_size=4)
    ranges: list[tuple[Any, int, int]] = []  # tensor, offset, length

    def chunks() -> Iterator[bytes]:
        end = 0
        for tensor, own in moved:
            raw = data_of(tensor, own) if is_external(tensor) else tensor.raw_data
            gap = b"\0" * (-end % _ALIGNMENT)
            ranges.append((tensor, end + len(gap), len(raw)))
            end += len(gap) + len(raw)
            for chunk in (gap, raw):
                digest.update(chunk)
                yield chunk

    def name() -> Path:
        plain = target.with_name(f"{target.name}.data")
        return target.with_name(f"{target.name}.{digest.hexdigest()}.data") if plain.exists() else plain

    beside = write_file(name, chunks(), target)
    for tensor, offset, length in ranges:
        tensor.ClearField("raw_data")
        del tensor.external_data[:]
        tensor.data_location = _EXTERNAL
        for key, entry in (("location", beside.name), ("offset", str(offset)), ("length", str(length))):
            tensor.external_data.add(key=key, value=entry)
    return beside


def _data_files(target: Path) -> set[Path]:
    """Data files of earlier saves to this path; only names with a digest are certain to be from this package."""
    ours = re.compile(re.escape(target.name) + r"\.[0-9a-f]{8}\.data")
    return {p for p in target.parent.glob("*.data") if ours.fullmatch(p.name)} if target.exists() else set()


def _compare(target: Path, found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for name, array in expected.items():
        if name in found and not same_array(found[name], array):
            raise ModelError(
                f"{target}: what would be written of {name!r} reads differently; the file is left as it was"
            )


def same_array(a: Array, b: Array) -> bool:
    """Equal in dtype, shape and every bit."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.__array_interface__ == b.__array_interface__:  # the same memory
        return True
    if a.dtype == object:
        return bool((a == b).all())
    return all(np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes() for x, y in _rows(a, b))


def _rows(a: Array, b: Array) -> Iterable[tuple[Array, Array]]:
    """Both arrays row by row, so that comparing large ones takes little memory."""
    return zip(a, b, strict=True) if a.ndim > 1 and a.nbytes > 1 << 24 else [(a, b)]


def write_file(
    target: Path | Callable[[], Path], chunks: Iterable[bytes | memoryview], near: Path | None = None
) -> Path:
    """Writes a file atomically: under another name, which then replaces the target.

    Args:
        target: the file, or a function that names it once all chunks are written.
        chunks: of its data.
        near: a file of the same folder, for a target that isn't known yet.

    Raises:
        InputError: it can't be written; nothing is left behind.
    """
    known = near or target
    assert isinstance(known, Path)
    final = functools.cache((lambda: target) if isinstance(target, Path) else target)
    try:
        with new_file(known, synced=True, renamed=final) as unfinished, unfinished.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
    except OSError as error:
        full = "; is the disk full?" if error.errno in _FULL else ""
        raise InputError(f"{known}: cannot be written: {error.strerror}{full}") from None
    return final()
