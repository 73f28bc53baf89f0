"""``dataflow.plugin`` is all that an author needs: its names are there, typed, and a device in Python is one class."""

import ast
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow import plugin
from dataflow.plugin.registry import load
from dataflow.testing import SAMPLES, check_device
from tests.support import DevicePlugin

CORE = Path(df.__file__).parent


@pytest.mark.parametrize("name", plugin._NAMES)
def test_every_name_is_there(name):
    assert getattr(plugin, name) is not None
    assert name in dir(plugin)


def test_import_star_gives_the_names():
    found = {}
    exec("from dataflow.plugin import *", found)
    assert {*found} - {"__builtins__"} == {*plugin._NAMES}
    found = {}
    exec("from dataflow import *", found)
    assert {*found} >= {*df._NAMES, *df._MODULES, "GraphBuilder", "Graph", "Op", "float32", "InputError", "get_include"}
    assert not {"importlib", "Any", "install_operators", "errors", "plugin"} & {*found}


def test_another_name_is_not():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = plugin.nothing


def test_types_are_declared_for_the_same_names():
    stub = ast.parse(Path(plugin.__file__).with_suffix(".pyi").read_text())
    declared = {}
    for node in stub.body:
        if isinstance(node, ast.ImportFrom):
            module = f"{'plugin.' if node.level == 1 else ''}{node.module}"
            declared |= {alias.asname: module for alias in node.names}
    assert declared == plugin._NAMES


def test_type_checkers_read_the_annotations_of_each_package():
    packages = [CORE, *(package for folder in ("plugins", "importers") for package in (CORE.parent / folder).iterdir())]
    packages = [package for package in packages if (package / "__init__.py").exists()]
    assert [package.name for package in packages if not (package / "py.typed").exists()] == []


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_the_core_itself_imports_names_where_they_stand(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level and (node.module or "").split(".")[-1] == "plugin":
            assert not {alias.name for alias in node.names} & set(plugin._NAMES)


ANYTHING = plugin.OperandSpec(strided=True)


class Slow(plugin.PythonDevice):
    """A device with one kernel."""

    name = "slow"

    def __init__(self, relu):
        self.relu = relu

    def kernels(self):
        return [plugin.Kernel("relu", "slow relu", (ANYTHING,), (ANYTHING,), self.relu)]


def outcomes(relu):
    samples = [sample for sample in SAMPLES if sample.op.name == "relu"]
    return list(check_device("slow", registry=load([DevicePlugin(Slow(relu))]), samples=samples, complete=False))


def test_a_device_in_python_is_one_class():
    assert {outcome.status for outcome in outcomes(lambda attributes, x: np.maximum(x, 0))} == {"passed"}
    assert "failed" in {outcome.status for outcome in outcomes(lambda attributes, x: np.abs(x))}


def test_it_has_no_options_and_no_memory_of_its_own():
    device = Slow(None)
    with pytest.raises(df.InputError, match="device 'slow' has no option 'speed'"):
        device.open({"speed": 1})
    with pytest.raises(df.DeviceError, match="works on the host's memory"):
        device.open({}).alloc(1)
