"""Which native files may include which: no cycles, only layers below, devices only the contract and their own files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import cycles

NATIVE = Path(__file__).parents[2] / "native"
# Layers of a device or of the runtime, from below: a file includes headers of its own layer and of those before it.
# Headers beside the layers (cpu.h) are below all of them, sources beside the layers (plugin.c) above.
LAYERS = {
    "include": (),
    "kernels": (),
    "runtime": ("host", "planner", "executor"),
    "cpu": (
        "simd", "map", "reduce", "shape", "norm", "gemm", "pool", "vision", "conv", "float64", "quantized", "attention",
        "recurrent", "linalg", "fused", "trees",
    ),
    "cuda": (
        "map", "reduce", "shape", "norm", "gemm", "pool", "conv", "attention", "recurrent", "fused", "vendor",
    ),
}  # fmt: skip
# What a part of native/ includes besides its own files.
BELOW = {
    "include": (),
    "kernels": ("include/dataflow.h", "include/dataflow_inline.h", "include/dataflow_steps.h"),
    "runtime": ("include/dataflow.h",),
    "cpu": ("include/dataflow.h", "include/dataflow_inline.h", "kernels/"),
    "cuda": ("include/dataflow.h", "include/dataflow_inline.h", "include/dataflow_cuda.h", "kernels/"),
}


def sources() -> list[Path]:
    """Every C and CUDA file of native/."""
    return sorted(path for path in NATIVE.rglob("*") if path.suffix in (".c", ".cu", ".h"))


def included(path: Path) -> list[Path]:
    """The files of native/ that ``path`` includes; they are searched for like the build does."""
    folder = NATIVE / path.relative_to(NATIVE).parts[0]
    names = re.findall(r'^#\s*include "([^"]+)"', path.read_text(), re.MULTILINE)
    folders = (path.parent, folder, NATIVE / "include", NATIVE)
    found = [next((f / name for f in folders if (f / name).is_file()), None) for name in names]
    assert None not in found, f"{path.relative_to(NATIVE)} includes {names[found.index(None)]}, which is nowhere"
    return [file.resolve() for file in found if file is not None]


def unit(path: Path) -> str:
    """A source and the header of its name are one unit."""
    return str(path.relative_to(NATIVE).with_suffix(""))


def level(path: Path) -> int:
    """The level of a file among the layers of its folder."""
    folder, *rest = path.relative_to(NATIVE).parts
    if len(rest) > 1 and LAYERS[folder]:
        assert rest[0] in LAYERS[folder], f"{path} is in no declared layer"
        return LAYERS[folder].index(rest[0]) + 1
    return 0 if path.suffix == ".h" else len(LAYERS[folder]) + 1


def test_cycles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}
    assert cycles(graph) == [["b", "c"]]


def test_no_units_include_each_other():
    graph: dict[str, set[str]] = {unit(path): set() for path in sources()}
    for path in sources():
        graph[unit(path)] |= {unit(other) for other in included(path)} - {unit(path)}
    assert cycles(graph) == []


@pytest.mark.parametrize("folder", sorted(LAYERS))
def test_layers_include_only_from_below(folder):
    if not (NATIVE / folder).exists():
        pytest.skip(f"there is no native/{folder}")
    for path in (path for path in sources() if path.relative_to(NATIVE).parts[0] == folder):
        for other in included(path):
            name = str(other.relative_to(NATIVE))
            own = other.relative_to(NATIVE).parts[0] == folder
            assert own or name.startswith(BELOW[folder]), f"{path.relative_to(NATIVE)} includes {name}"
            if own:
                assert level(other) <= level(path), f"{path.relative_to(NATIVE)} includes {name}, which stands above it"
