"""What the core does with a device follows from the role that it declares, not from its name."""

import ast
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow.plugin.device import Device
from dataflow.plugin.registry import load
from tests.support import DevicePlugin

CORE = Path(df.__file__).parent
# Names of packages, not of devices: of what a checkpoint was made with, and of what safetensors shall return.
PACKAGES = {
    ("train/changing.py", "numpy"),
    ("train/checkpoint.py", "numpy"),
    ("cli/compare.py", "numpy"),  # the reference that compare names
    ("testing/compare.py", "numpy"),
    ("testing/new_plugin.py", "cuda"),  # a language, and what the kernels of new packages are for
    ("testing/new_plugin.py", "cpu"),
}


@pytest.mark.parametrize("path", sorted(CORE.rglob("*.py")), ids=lambda path: str(path.relative_to(CORE)))
def test_the_core_names_no_device(path):
    texts = {node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)}
    named = {(path.relative_to(CORE).as_posix(), name) for name in ("cpu", "cuda", "numpy") if name in texts}
    assert named <= PACKAGES


class Dark:
    """An open device that gets no work."""

    def prepare(self, *arguments):
        return []

    def memory(self):
        return None


class Lamp(Device):
    """On the host, but no kernel."""

    def __init__(self, name, role, memory="host"):
        self.name, self.role, self.memory = name, role, memory

    def open(self, options, precision="float32"):
        return Dark()

    def kernels(self):
        return []


@pytest.fixture
def devices_of():
    """The devices that a session on ``chosen`` has, with these beside the installed ones."""
    g = df.GraphBuilder()
    g.output("y", df.ops.neg(g.input("x", df.float32, (2,))))

    def find(chosen, *devices):
        session = df.Session(g.build(), chosen, registry=load([DevicePlugin(*devices)]))
        np.testing.assert_array_equal(session.run({"x": np.ones(2, np.float32)})["y"], [-1, -1])
        return session._placement.devices

    return find


def test_devices_of_others_are_used_where_they_are_named(devices_of, monkeypatch):
    lamps = Lamp("slow", "host"), Lamp("fast", "accelerator")
    own = devices_of(None, *lamps)
    assert [d for d in own if not d.startswith("cuda")] == ["cpu", "numpy"]
    assert devices_of(["fast"], *lamps) == ("fast", "numpy")
    monkeypatch.setenv("DATAFLOW_DEVICES", "fast, slow")
    assert devices_of(None, *lamps) == ("fast", "slow", "numpy")
    assert devices_of(["cpu"], *lamps) == ("cpu", "numpy")
    monkeypatch.setenv("DATAFLOW_DEVICES", "absent")
    with pytest.raises(df.InputError, match="there is no device 'absent'"):
        devices_of(None)


def test_a_device_for_the_host_stands_behind_devices_of_other_memory(devices_of):
    assert devices_of(["far"], Lamp("far", "accelerator", "far")) == ("far", "cpu", "numpy")
    assert devices_of(["near"], Lamp("near", "accelerator")) == ("near", "numpy")
    assert devices_of(["numpy"]) == ("numpy",)


def test_there_is_one_reference():
    registry = load([DevicePlugin(Lamp("other", "reference"))])
    assert registry.plugins[-1].problem == (
        f"there is more than one reference: numpy of numpy and other of {registry.plugins[-1].name}"
    )
    assert registry.reference == "numpy"
