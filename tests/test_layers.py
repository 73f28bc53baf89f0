"""Who may import whom: dependencies point one way, and importing dataflow stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Floor by floor: a module of the core imports only from floors below it; what loads late, inside a function, is free.
FLOORS = (
    ("errors", "_runtime", "pause", "weak", "systemmemory"),
    ("fork", "numbers", "arguments"),
    ("types", "algorithms", "limits"),
    ("graph", "op"),
    ("builder",),
    ("device", "native", "items"),
    ("hookspecs", "hostmemory"),
    ("registry", "machine"),
    ("ops", "passes", "autodiff", "memory", "operators"),
    ("cbackend",),
    ("lower", "cdevice", "liveness"),
    ("plan", "drawing"),
    ("planning", "check", "store", "budget"),
    ("execute",),
    ("compile",),
    ("feeds", "model", "head", "regions"),
    ("session", "differentiate", "profile", "tuning"),
    ("ceilings", "trace"),
    ("train", "losses", "optim", "schedules", "testing"),
    ("options",),
    ("bench",),
    ("cli", "__main__", "__init__"),
)
FLOOR = {name: index for index, names in enumerate(FLOORS) for name in names}


def modules(folder):
    return sorted(p for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts)


def imports(path, package):
    """Absolute names of what a file imports at its top, outside ``if TYPE_CHECKING``."""
    parts = [package, *path.relative_to(next(p for p in path.parents if p.name == package)).with_suffix("").parts]
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parts[: len(parts) - node.level] if node.level else []
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", modules("dataflow"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_imports_only_from_below(path):
    own = path.relative_to(ROOT / "dataflow").parts[0].removesuffix(".py")
    assert own in FLOOR, f"{own} stands on no floor: put it on one"
    for name in imports(path, "dataflow"):
        parts = name.split(".")
        assert parts[0] not in ("dataflow_cpu", "dataflow_cuda", "dataflow_numpy", "dataflow_onnx", "onnx"), name
        if parts[0] == "dataflow" and len(parts) > 1 and parts[1] in FLOOR and parts[1] != own:
            assert FLOOR[parts[1]] <= FLOOR[own], f"{path.name} imports {name}, which stands above it"


@pytest.mark.parametrize("package", ["dataflow_cpu", "dataflow_cuda", "dataflow_numpy", "dataflow_onnx"])
def test_plugins_use_public_names_of_the_core_and_not_each_other(package):
    folder = next(p for p in (ROOT / "plugins" / package, ROOT / "importers" / package) if p.exists())
    for path in modules(folder.relative_to(ROOT)):
        for name in imports(path, package):
            parts = name.split(".")
            if parts[0].startswith("dataflow_"):
                assert parts[0] == package, f"{path.name} imports {name}"
            if parts[0] == "dataflow":
                assert not [p for p in parts if p.startswith("_")], f"{path.name} imports {name}"


@pytest.mark.parametrize("plugin", ["cpu", "cuda"])
def test_the_native_plugins_include_only_the_contract(plugin):
    for path in (ROOT / "native" / plugin).rglob("*.[ch]*"):
        for line in path.read_text().splitlines():
            if line.startswith('#include "'):
                name = line.split('"')[1]
                beside = (ROOT / "native" / plugin / name).exists()
                contract = ("dataflow.h", "dataflow_inline.h", *(["dataflow_cuda.h"] if plugin == "cuda" else []))
                assert beside or name in contract, f"{path.name}: {line}"


def test_importing_dataflow_loads_nothing_heavy():
    code = (
        "import sys, dataflow\n"
        "heavy = {'onnx', 'onnxruntime', 'ml_dtypes', 'rich', 'click', 'safetensors', 'pluggy',"
        " 'dataflow_cpu', 'dataflow_cuda', 'dataflow_numpy', 'dataflow_onnx'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
