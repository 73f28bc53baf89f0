"""Who may import whom: dependencies point in one direction, and importing dataflow stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import cycles

ROOT = Path(__file__).parents[1]
# Layer by layer: a module of the core imports from its own layer and from those before it, late imports included.
LAYERS = (
    "version", "errors", "_runtime", "host", "ir", "ops", "passes", "plugin", "lower", "planning", "cdevice",
    "execute", "compile", "engine", "series", "graph_runs", "loaded", "state", "session", "editable", "model",
    "model_files", "gradients", "init", "nn", "layers", "head_replacement", "train", "adapters", "quantization",
    "callbacks", "losses", "metrics", "optim", "schedules", "testing", "cli", "__main__", "__init__",
)  # fmt: skip
# Modules of the core whose names plugins may import, beside those of ``dataflow`` itself.
PUBLIC = ("callbacks", "errors", "losses", "metrics", "ops", "optim", "plugin", "schedules", "testing")
OTHERS = ("dataflow_cpu", "dataflow_cuda", "dataflow_numpy", "dataflow_onnx", "onnx")


def modules(folder):
    return sorted(p for p in (ROOT / folder).rglob("*.py") if "__pycache__" not in p.parts)


def module_name(path, folder):
    names = path.relative_to(folder).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def imports(path, folder):
    """Absolute names of what a file imports anywhere: inside functions and ``if TYPE_CHECKING`` too."""
    package = path.relative_to(folder).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            name = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{name}.{alias.name}" for alias in node.names)


def edges(package, folder):
    """Per module the modules of the same package that it imports: the longest prefix of each name that is one."""
    known = {module_name(path, folder): path for path in modules(folder.relative_to(ROOT) / package)}
    compiled = {f"{package}.{path.stem}" for path in (folder / package).glob("*.pyi")}

    def resolved(name):
        while name and name not in known and name not in compiled:
            name = name.rpartition(".")[0]
        return name

    return {name: {resolved(n) for n in imports(path, folder)} - {name, "", *compiled} for name, path in known.items()}


def layer_of(name):
    return [*name.split("."), "__init__"][1]


def test_no_module_of_the_core_imports_from_a_layer_above_it():
    upward = []
    for name, targets in edges("dataflow", ROOT).items():
        assert layer_of(name) in LAYERS, f"{name} is in no layer: add it to one"
        upward += [f"{name} imports {t}" for t in targets if LAYERS.index(layer_of(t)) > LAYERS.index(layer_of(name))]
    assert sorted(upward) == []


@pytest.mark.parametrize(
    ("package", "folder"),
    [
        ("dataflow", ROOT),
        ("dataflow_onnx", ROOT / "importers"),
        ("dataflow_numpy", ROOT / "plugins"),
    ],
)
def test_no_import_goes_in_a_circle(package, folder):
    assert cycles(edges(package, folder)) == []


@pytest.mark.parametrize("path", modules("dataflow"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_core_knows_no_plugin(path):
    assert not [name for name in imports(path, ROOT) if name.split(".")[0] in OTHERS]


@pytest.mark.parametrize("package", ["dataflow_cpu", "dataflow_cuda", "dataflow_numpy", "dataflow_onnx"])
def test_plugins_use_public_names_of_the_core_and_not_each_other(package):
    folder = next(p for p in (ROOT / "plugins" / package, ROOT / "importers" / package) if p.exists())
    for path in modules(folder.relative_to(ROOT)):
        for name in imports(path, folder.parent):
            names = name.split(".")
            if names[0].startswith("dataflow_"):
                assert names[0] == package, f"{path.name} imports {name}"
            if names[0] == "dataflow":
                public = len(names) <= 2 or (len(names) == 3 and names[1] in PUBLIC)
                assert public and not names[-1].startswith("_"), f"{path.name} imports {name}"


def test_importing_dataflow_loads_nothing_heavy():
    code = (
        "import sys, dataflow\n"
        "heavy = {'onnx', 'onnxruntime', 'ml_dtypes', 'rich', 'click', 'safetensors', 'pluggy',"
        " 'dataflow_cpu', 'dataflow_cuda', 'dataflow_numpy', 'dataflow_onnx'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
