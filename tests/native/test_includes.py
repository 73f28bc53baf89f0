"""Which native files may include which: no cycles, rooms only from rooms below, devices the contract and their own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import cycles

NATIVE = Path(__file__).parents[2] / "native"
# Rooms of a device or of the runtime, from below: a file includes headers of its own room and of those before it.
# Headers beside the rooms (cpu.h) are below all of them, sources beside the rooms (plugin.c) above.
ROOMS = {
    "include": (),
    "kernels": (),
    "runtime": ("host", "planner", "executor"),
    "cpu": (
        "simd", "map", "reduce", "shape", "norm", "gemm", "pool", "conv", "attention", "recurrent", "fused",
    ),
    "cuda": ("map", "reduce", "shape", "norm", "gemm", "pool", "conv", "recurrent", "vendor"),
}  # fmt: skip
# What a part of native/ includes besides its own files.
BELOW = {
    "include": (),
    "kernels": ("include/dataflow.h", "include/dataflow_inline.h"),
    "runtime": ("include/dataflow.h",),
    "cpu": ("include/dataflow.h", "include/dataflow_inline.h", "kernels/"),
    "cuda": ("include/dataflow.h", "include/dataflow_inline.h", "include/dataflow_cuda.h", "kernels/"),
}


def sources() -> list[Path]:
    """Every C and CUDA file of native/."""
    return sorted(path for path in NATIVE.rglob("*") if path.suffix in (".c", ".cu", ".h"))


def included(path: Path) -> list[Path]:
    """The files of native/ that ``path`` includes: found beside it, in its part, in include/ or beside kernels/."""
    part = NATIVE / path.relative_to(NATIVE).parts[0]
    names = re.findall(r'^#\s*include "([^"]+)"', path.read_text(), re.MULTILINE)
    folders = (path.parent, part, NATIVE / "include", NATIVE)
    found = [next((f / name for f in folders if (f / name).is_file()), None) for name in names]
    assert None not in found, f"{path.relative_to(NATIVE)} includes {names[found.index(None)]}, which is nowhere"
    return [file.resolve() for file in found if file is not None]


def unit(path: Path) -> str:
    """A source and the header of its name are one unit."""
    return str(path.relative_to(NATIVE).with_suffix(""))


def level(path: Path) -> int:
    """How high a file stands in its part."""
    part, *rest = path.relative_to(NATIVE).parts
    if len(rest) > 1 and ROOMS[part]:
        assert rest[0] in ROOMS[part], f"{path} stands in no declared room"
        return ROOMS[part].index(rest[0]) + 1
    return 0 if path.suffix == ".h" else len(ROOMS[part]) + 1


def test_cycles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert cycles(graph) == [["b", "c"]]


def test_no_units_include_each_other():
    graph: dict[str, set[str]] = {unit(path): set() for path in sources()}
    for path in sources():
        graph[unit(path)] |= {unit(other) for other in included(path)} - {unit(path)}
    assert cycles(graph) == []


@pytest.mark.parametrize("part", sorted(ROOMS))
def test_rooms_include_only_from_below(part):
    if not (NATIVE / part).exists():
        pytest.skip(f"there is no native/{part}")
    for path in (path for path in sources() if path.relative_to(NATIVE).parts[0] == part):
        for other in included(path):
            name = str(other.relative_to(NATIVE))
            own = other.relative_to(NATIVE).parts[0] == part
            assert own or name.startswith(BELOW[part]), f"{path.relative_to(NATIVE)} includes {name}"
            if own:
                assert level(other) <= level(path), f"{path.relative_to(NATIVE)} includes {name}, which stands above it"
