"""The contract grows in both directions: kept plugins of each minor, a larger host and a larger plugin made up here."""

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow.plugin.registry import load
from tests.conftest import Plugin

HERE = Path(__file__).parent / "growth"
ROOT = HERE.parents[2]
PROCESSOR = os.uname()[-1]
KEPT = sorted(HERE.glob(f"kept-2.*-{PROCESSOR}.bin"))
FLAGS = ["-std=gnu11", "-O0", "-Wall", "-Wextra", "-Werror", "-pthread"]


@pytest.fixture(scope="module")
def larger(tmp_path_factory):
    """A folder with the headers, in which every struct has 64 bytes more at its end."""
    folder = tmp_path_factory.mktemp("larger")
    lines, inside = [], False
    for line in (ROOT / "native/include/dataflow.h").read_text().splitlines():
        inside = inside or bool(re.match(r"(typedef )?struct df_\w+ \{$", line))
        if inside and line.startswith("}"):
            lines.append("  unsigned char noise[64];")
            inside = False
        lines.append(line)
    assert sum("noise" in line for line in lines) == 21
    (folder / "dataflow.h").write_text("\n".join(lines))
    (folder / "dataflow_inline.h").write_text((ROOT / "native/include/dataflow_inline.h").read_text())
    return folder


@pytest.fixture(scope="module")
def larger_plugin(larger):
    target = larger / "plugin.so"
    command = ["gcc", *FLAGS, "-shared", "-fPIC", "-DNOISE", f"-I{larger}", HERE / "plugin.c", "-o", target]
    subprocess.run(command, check=True)
    return target


@pytest.fixture(scope="module")
def larger_host(larger):
    runtime = ROOT / "native/runtime"
    sources = [*sorted((runtime / "host").glob("*.c")), *sorted((runtime / "executor").glob("*.c"))]
    includes = [f"-I{larger}", f"-I{runtime}", f"-I{ROOT / 'tests/native'}"]
    target = larger / "host"
    subprocess.run(
        ["gcc", *FLAGS, "-DNOISE", *includes, HERE / "host.c", *sources, "-lm", "-ldl", "-o", target], check=True
    )
    return target


def check(path):
    """Runs the plugin's kernels by this host: attribute, workspace, state, prepacked copy, view, error, refusal."""
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, 3))
    w = g.initializer("w", np.arange(6, dtype=np.float32).reshape(3, 2))
    h = df.ops.leaky_relu(x, alpha=0.5)
    g.output("y", df.ops.matmul(h, w))
    g.output("t", df.ops.transpose(h, perm=(1, 0)))
    model = df.Model(g.build())
    session = df.Session(model, devices=["kept", "cpu"], registry=load([Plugin(path)]))
    data = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
    found, expected = session.run(data), df.Session(model, devices=["cpu"]).run(data)
    np.testing.assert_array_equal(found["y"], expected["y"])
    np.testing.assert_array_equal(found["t"], expected["t"])
    assert {p.device for p in session.placement((2, 3)) if p.op != "transpose"} == {"kept"}
    with pytest.raises(df.InputError, match="element 4 is too large"):
        session.run(np.where(data == 5, np.float32(2e30), data))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_a_plugin_of_an_earlier_minor_is_loaded(path):
    assert path.stat().st_size <= 50_000
    check(path)


def test_a_plugin_of_a_later_minor_is_loaded(larger_plugin):
    check(larger_plugin)


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.name)
def test_a_later_host_loads_kept_plugins(path, larger_host):
    subprocess.run([larger_host, path], check=True)


@pytest.mark.skipif(PROCESSOR != "x86_64", reason="libraries are kept for x86-64")
def test_a_plugin_of_each_minor_is_kept():
    minors = {int(path.name.removeprefix("kept-2.").split("-")[0]) for path in KEPT}
    assert minors == set(range(df._runtime.lib.DF_ABI_MINOR + 1))


@pytest.mark.skipif(PROCESSOR != "x86_64", reason="libraries are kept for x86-64")
def test_a_plugin_of_another_major_is_set_aside():
    registry = load([Plugin(HERE / "kept-1.5-x86_64.bin")])
    (problem,) = (plugin.problem for plugin in registry.plugins if plugin.problem)
    assert "built for version 1.5 of the plugin interface, this dataflow has 2." in problem
    assert "rebuild it with the headers in dataflow.get_include()" in problem
