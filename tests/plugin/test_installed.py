"""Installed plugins: one that is broken stops nobody else, and users leave out which they want."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dataflow as df
from dataflow.plugin.installed import installed, named_apart
from dataflow.plugin.registry import Registry, load
from dataflow.version import DISTRIBUTION, VERSION

ROOT = Path(__file__).parents[2]
LAMP = """
from dataflow.plugin import Device, hookimpl
class Lamp(Device):
    name = "lamp"
    def open(self, options, precision="float32"): raise NotImplementedError
    def kernels(self): return []
@hookimpl
def dataflow_devices(): return [Lamp()]
"""
LIBRARY = "from dataflow.plugin import CDevice, hookimpl\n@hookimpl\ndef dataflow_devices(): return [CDevice({!r})]\n"
HARMFUL = {
    "good": LAMP,
    "imports": "import no_such_module",
    "leaves": "import sys; sys.exit(3)",
    "syntax": "def (",
    "unbuilt": LIBRARY.format("nowhere/lamp.so"),
    "damaged": LIBRARY.format("library.so"),
    "same": LAMP,
    "misspelt": LAMP.replace("def dataflow_devices", "def dataflow_device"),
}
SAYS = {
    "imports": "ModuleNotFoundError: No module named 'no_such_module'",
    "leaves": "SystemExit: 3",
    "syntax": "SyntaxError: invalid syntax (syntax.py, line 1)",
    "unbuilt": "dataflow_devices: PluginError: lamp.so: nowhere/lamp.so: cannot open shared object file",
    "damaged": "dataflow_devices: PluginError: library.so: ",
    "same": "device 'lamp' is offered twice: by good and by same",
    "misspelt": "unknown hook 'dataflow_device'",
    "entry": "ModuleNotFoundError: No module named 'absent'",
}


@pytest.fixture
def folder(tmp_path):
    """Packages as pip leaves them, one file and its metadata each."""

    def install(name, module, code=None, lines=None):
        if code is not None:
            (tmp_path / f"{module}.py").write_text(code)
        metadata = tmp_path / f"{module}-1.5.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}-package\nVersion: 1.5\n")
        (metadata / "entry_points.txt").write_text(lines or f"[dataflow]\n{name} = {module}\n")

    for name, code in HARMFUL.items():
        install(name, name, code)
    install("entry", "absent")
    install("good", "second_good", LAMP.replace("lamp", "candle"))
    install("broken", "broken_metadata", lines="[dataflow]\nno equals sign\n")
    (tmp_path / "library.so").write_bytes(b"\x7fELF and nothing more")
    return tmp_path


def devices(folder, **variables):
    """What ``dataflow devices --json`` prints, and what it logs."""
    code = "import sys; sys.argv = ['dataflow', 'devices', '--json']; from dataflow.cli.main import main; main()"
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_plugins_that_are_broken_are_set_aside_with_distribution_version_and_cause(folder):
    found, log = devices(folder)
    plugins = {p["name"]: p for p in found["plugins"]}
    assert [*plugins][:4] == ["cpu", "cuda", "numpy", "onnx"]
    for name, text in SAYS.items():
        assert text in plugins[name]["problem"], name
        module = {"entry": "absent"}.get(name, name)
        assert (plugins[name]["distribution"], plugins[name]["version"]) == (f"{module}-package", "1.5")
        assert log.count(f"plugin {name} ({module}-package 1.5) was set aside: ") == 1
    assert {name for name, p in plugins.items() if p["problem"]} == {*SAYS}
    by_default = {d["id"]: d["by_default"] for d in found["devices"]}
    assert by_default["lamp"] is by_default["candle"] is False
    assert by_default["cpu"] is by_default["numpy"] is True
    assert plugins["good (second_good-package)"]["problem"] is None
    assert "broken" not in plugins and "can't be read" in log


def test_users_leave_plugins_out(folder):
    found, log = devices(folder, DATAFLOW_PLUGINS="-good, -leaves,-nobody")
    plugins = {p["name"]: p["problem"] for p in found["plugins"]}
    assert plugins["good"] == plugins["leaves"] == "left out by DATAFLOW_PLUGINS=-good, -leaves,-nobody"
    assert plugins["same"] is None  # nothing clashes with it
    assert "there is no plugin nobody" in log and "plugin leaves (" not in log
    found, _ = devices(folder, DATAFLOW_PLUGINS="numpy,good")
    assert {d["id"] for d in found["devices"]} == {"numpy", "lamp", "candle"}


def test_a_caller_leaves_plugins_out():
    registry = Registry.load(without=["cpu"])
    assert "cpu" not in registry.devices and "numpy" in registry.devices
    with pytest.raises(df.InputError, match=r"there is no device 'cpu'.*plugin cpu was set aside: left out"):
        registry.device("cpu")
    with pytest.raises(df.PluginError, match="plugin cpu was set aside: left out by the caller"):
        registry.offered_by("cpu")
    assert "cpu" in load().devices


def test_two_objects_of_one_name_are_two_plugins():
    assert [c.plugin.name for c in named_apart([*installed(), *installed()])][4:6] == [
        f"cpu ({DISTRIBUTION})",
        f"cuda ({DISTRIBUTION})",
    ]


def test_the_name_and_version_of_this_project_are_those_of_its_metadata():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["version"]) == (DISTRIBUTION, VERSION)
