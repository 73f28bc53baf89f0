"""Records of kernels and devices, in Python and C, that can't be so are named, and stop no other model."""

import functools
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow.errors import DeviceError, PluginError
from dataflow.plugin import (
    Kernel,
    MultiOp,
    OperandSpec,
    PythonDevice,
    devices_of,
)
from dataflow.plugin.registry import load
from dataflow.testing import check_plugin
from dataflow.testing.freshness import stale_library
from tests.plugin.plugins import ANY, model_of, plugin


def test_a_kernel_that_its_device_can_not_run_sets_its_plugin_aside():
    def kernels(device):
        return [Kernel("relu", "a relu", (ANY,), (ANY,), lambda at, x: x, priority=1)] if device.name == "cpu" else []

    class Mute(PythonDevice):
        name = "mute"

        def kernels(self):
            return [Kernel("relu", "no relu", (ANY,), (ANY,), "relu")]

    registry = load([plugin("of_python", dataflow_kernels=kernels), plugin("mute", dataflow_devices=lambda: [Mute()])])
    found = {p.name: p.problem for p in registry.plugins if p.problem}
    assert found.keys() == {"of_python", "mute"}
    assert found["of_python"].startswith("its kernel 'a relu' for the device cpu is <function ")
    assert found["of_python"].endswith("those for a device in C are records of C, from kernels_of")
    assert found["mute"] == "its kernel 'no relu' for the device mute is 'relu'; a device in Python runs functions"
    x = np.float32([-1, 2, -3])
    session = df.Session(model_of(df.ops.relu, (3,)), ["cpu"], registry=registry)
    np.testing.assert_array_equal(session.run(x)["y"], [0, 2, 0])


def test_a_kernel_whose_accepts_gives_no_reason():
    class Sure(PythonDevice):
        name = "sure"

        def kernels(self):
            return [Kernel("relu", "sure relu", (ANY,), (ANY,), lambda at, x: x, accepts=lambda node: True)]

    registry = load([plugin(dataflow_devices=lambda: [Sure()])])
    with pytest.raises(PluginError, match=r"relu.*accepts of the kernel 'sure relu' gave True; expected a reason, or"):
        df.Session(model_of(df.ops.relu, (3,)), ["sure", "cpu"], registry=registry).run(np.ones(3, np.float32))


@pytest.mark.parametrize("inputs", [ANY, ("f32",)])
def test_a_kernel_record_that_is_none(inputs):
    with pytest.raises(TypeError, match=r"kernel 'k': inputs are .*; expected a tuple of OperandSpec"):
        Kernel("relu", "k", inputs, (ANY,), abs)


def test_an_op_may_overwrite_repeated_operands():
    op = MultiOp("many", ("xs*",), lambda *xs: xs, outputs=("ys*",), inplace=((0, 0), (1, 1)))
    Kernel("many", "k", (OperandSpec(repeated=True),), (OperandSpec(repeated=True),), abs, inplace=op.inplace)


@pytest.mark.parametrize("pair", [(0, 1), (1, 0), (0, -1), ("0", "0"), 0])
def test_a_kernel_that_overwrites_what_it_has_not(pair):
    with pytest.raises(PluginError, match=r"kernel 'k': inplace has .*; expected numbers of an output and of an input"):
        Kernel("relu", "k", (ANY,), (ANY,), abs, inplace=(pair,))


@pytest.mark.parametrize(
    ("was", "now", "text"),
    [
        ('"f32->f32"', '"f33->f32"', "kernel 'abacus relu': kernel operands 'f33->f32': unknown dtype 'f33'"),
        (
            '.inplace = "0<0"',
            '.inplace = "a<b"',
            "kernel 'abacus relu': inplace is 'a<b'; expected pairs such as '0<0,0<1'",
        ),
        (
            '.inplace = "0<0"',
            '.inplace = "0<5"',
            r"kernel 'abacus relu': inplace has \(0, 5\); expected numbers of an output and of an input",
        ),
    ],
)
def test_a_record_in_c_that_can_not_be_read_is_named(tmp_path, was, now, text):
    with pytest.raises(PluginError, match=text):
        devices_of(changed_abacus(tmp_path, was, now))[0].kernels()


@pytest.mark.parametrize(
    ("now", "text"),
    [
        ("!(out->base = NULL) ? DF_OK", "it says DF_OK and gives a null base"),
        ("out->base ? DF_DEVICE", "DF_DEVICE without a message"),
        ("out->base ? 77", "the status 77, which dataflow.h hasn't"),
    ],
)
def test_an_allocation_in_c_that_says_little(tmp_path, now, text):
    (device,) = devices_of(changed_abacus(tmp_path, "out->base ? DF_OK", now))
    with pytest.raises(DeviceError, match=f"device 'abacus': allocating 64 bytes: {text}"):
        device.open({}).alloc(64)


def test_a_device_in_c_that_prepares_nothing(tmp_path):
    """The host is given null to run: the process goes on, and the next session too."""
    nothing = """static df_status nothing(void *self, const df_segment *segment, void **prepared, df_error *error) {
  (void)self, (void)segment, (void)prepared, (void)error;
  return DF_OK;
}
const df_plugin *df_plugin_entry("""
    was = "const df_plugin *df_plugin_entry("
    library = changed_abacus(tmp_path, was, nothing, (".prepare = host->segment_prepare", ".prepare = nothing"))
    registry = load([plugin(dataflow_devices=lambda: devices_of(library))])
    model = model_of(df.ops.relu, (3,))
    with pytest.raises(DeviceError, match="device 'abacus': segment_run was given null"):
        df.Session(model, ["abacus", "cpu"], registry=registry).run(np.ones(3, np.float32))
    assert df.Session(model, ["cpu"], registry=registry).run(np.float32([-1, 0, 2]))["y"].tolist() == [0, 0, 2]


def changed_abacus(folder, was, now, *others):
    """The library of the device that the page about contributing shows, changed; ``others``: pairs as the first."""
    source = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text().split("```c abacus.c\n")[1].split("```")[0]
    for old, new in ((was, now), *others):
        assert old in source
        source = source.replace(old, new, 1)
    (folder / "abacus.c").write_text(source)
    library = folder / "abacus.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", f"-I{df.get_include()}", str(folder / "abacus.c"), "-o", str(library)], check=True
    )
    return library


def test_a_device_that_cannot_be_opened():
    class Closed(PythonDevice):
        name = "closed"

        def kernels(self):
            return [Kernel("relu", "k", (ANY,), (ANY,), lambda at, x: x)]

        def open(self, options, precision="float32"):
            raise OSError("no such card")

    registry = load([plugin(dataflow_devices=lambda: [Closed()])])
    with pytest.raises(PluginError, match=r"device 'closed': open\(\) failed: OSError: no such card"):
        df.Session(model_of(df.ops.relu, (3,)), ["closed"], registry=registry).run(np.ones(3, np.float32))


def test_of_kernels_of_one_priority_the_earliest_plugin_has_the_node():
    """Only the kit blames the later one: users can't change the priorities of two plugins."""
    kernels = {name: [Kernel("relu", name, (ANY,), (ANY,), lambda at, x: x * 0)] for name in ("first", "then")}

    class Own(PythonDevice):
        name = "own"

        def kernels(self):
            return [Kernel("relu", "its own", (ANY,), (ANY,), lambda at, x: np.maximum(x, 0))]

    def offering(name):
        return plugin(name, dataflow_kernels=lambda device: kernels[name] if device.name == "own" else [])

    device = plugin("a_device", dataflow_devices=lambda: [Own()])
    registry = load([device, offering("first"), offering("then")])
    session = df.Session(model_of(df.ops.relu, (3,)), ["own"], registry=registry)
    np.testing.assert_array_equal(session.run(np.float32([-1, 0, 2]))["y"], [0, 0, 2])
    for name in kernels:
        failed = [o.text for o in check_plugin(name, registry=registry, select="relu") if o.status == "failed"]
        assert f"{name} never runs: its own of a_device takes the node with the same priority, 0" in failed[0]


def test_two_kernels_of_one_plugin_and_priority_are_an_error():
    class Own(PythonDevice):
        name = "own"

        def kernels(self):
            relu = functools.partial(Kernel, "relu", inputs=(ANY,), outputs=(ANY,), code=lambda at, x: np.maximum(x, 0))
            return [relu("one"), relu("other", accepts=lambda node: None)]

    registry = load([plugin(dataflow_devices=lambda: [Own()])])
    text = "kernels 'one' and 'other' of device 'own' by plugin mine both take it with priority 0; .*PLUGINS=-mine"
    with pytest.raises(PluginError, match=text):
        df.Session(model_of(df.ops.relu, (3,)), ["own"], registry=registry).run(np.ones(3, np.float32))
    failed = [o.text for o in check_plugin("mine", registry=registry, select="relu") if o.status == "failed"]
    assert failed == ["kernels 'one' and 'other' of plugin mine both take the node with priority 0; "
                      "give one of them a higher one"]  # fmt: skip


def test_two_kernels_that_take_the_same_nodes_set_their_plugin_aside():
    class Own(PythonDevice):
        name = "own"

        def kernels(self):
            return [Kernel("relu", name, (ANY,), (ANY,), lambda at, x: x) for name in ("one", "other")]

    registry = load([plugin(dataflow_devices=lambda: [Own()])])
    assert registry.plugins[-1].problem == (
        "op 'relu': its kernels 'one' and 'other' for the device own take the same nodes with priority 0; give one of "
        "them a higher one"
    )


def test_what_the_first_device_has_no_kernel_for_stays_one_node():
    class Few(PythonDevice):
        name = "few"

        def kernels(self):
            return [Kernel("sign", "few sign", (ANY,), (ANY,), lambda at, x: np.sign(x))]

    registry = load([plugin(dataflow_devices=lambda: [Few()])])
    session = df.Session(
        model_of(lambda x: df.ops.softmax(df.ops.sign(x), axis=1), ("n", 4)), ["few", "cpu"], registry=registry
    )
    assigned = {node.op: node.device for node in session.placement({"x0": (2, 4)})}
    assert assigned == {"sign": "few", "softmax": "cpu"}


def test_a_kernel_that_replaces_what_the_reference_defines():
    kernel = Kernel("relu", "sevens", (ANY,), (ANY,), lambda at, x: x * 0 + 7, priority=9)
    registry = load([plugin(dataflow_kernels=lambda device: [kernel] if device.role == "reference" else [])])
    assert "defines what the op computes" in registry.plugins[-1].problem
    model = model_of(lambda x: x + df.ops.relu(x.builder.constant(np.float32([-1, 2]))), (2,))
    np.testing.assert_array_equal(df.Session(model, registry=registry).run(np.zeros(2, np.float32))["y"], [0, 2])


def test_an_installed_library_may_be_a_moment_older_than_its_source(tmp_path):
    """Installers write the files of a wheel in any order."""
    for name in ("__init__.py", "native.c", "_native.so"):
        (tmp_path / name).write_text("")
    for seconds, stale in ((0.5, False), (60, True)):
        os.utime(tmp_path / "_native.so", (1e9, 1e9))
        os.utime(tmp_path / "native.c", (1e9 + seconds, 1e9 + seconds))
        assert (stale_library(str(tmp_path / "__init__.py")) is not None) == stale
