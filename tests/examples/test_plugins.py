"""The examples of hooks, installed beside dataflow as their users would: the kit passes, and each does what it says."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow.plugin.hookspecs import HOOKS
from tests.kit_samples import EVERY_VARIANT

EXAMPLES = Path(__file__).parents[2] / "examples"
PACKAGES = sorted(path.parent for path in EXAMPLES.glob("*/pyproject.toml"))
PROJECTS = [tomllib.loads((package / "pyproject.toml").read_text())["project"] for package in PACKAGES]
NAMES = [name for project in PROJECTS for name in project["entry-points"]["dataflow"]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with all examples, installed by pip without a network."""
    folder = tmp_path_factory.mktemp("installed")
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "build", "*.egg-info")
    copies = [shutil.copytree(path, folder / "sources" / path.name, ignore=ignored) for path in PACKAGES]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--target", str(folder / "site"), *map(str, copies)], check=True)
    return folder / "site"


def run(installed, *arguments, cwd=None):
    """A command in a process that sees the examples; the core comes from where these tests have it."""
    path = os.pathsep.join([str(installed), *filter(None, sys.path)])
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )


def test_each_hook_has_an_example():
    texts = [path.read_text() for package in PACKAGES for path in package.rglob("*.py")]
    assert [hook for hook in HOOKS if not any(f"def {hook}(" in text for text in texts)] == []


def test_examples_import_public_names_alone():
    from tests.test_layers import PUBLIC, imports

    for package in PACKAGES:
        for path in package.rglob("*.py"):
            for name in imports(path, package):
                modules = name.split(".")
                public = modules[0] != "dataflow" or len(modules) <= 2 or (len(modules) == 3 and modules[1] in PUBLIC)
                assert public, f"{path} imports {name}"


@pytest.mark.parametrize("name", NAMES)
def test_the_kit_passes(installed, name):
    # All samples run through a pass, which takes a while; this one changes powers.
    some = ["--sample", "pow"] if name == "squares" and not EVERY_VARIANT else []
    done = run(installed, "-m", "dataflow", "plugin", "test", name, *some)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " offers: nothing" not in done.stderr


def python(installed, code, cwd):
    done = run(installed, "-c", code, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_pass_makes_products_of_squares(installed, tmp_path):
    code = """
import numpy as np, dataflow as df
g = df.GraphBuilder()
x = g.input("x", df.float32, (3,))
g.output("y", df.ops.pow(x, 2.0) + df.ops.pow(x, 3.0))
session = df.Session(g.build(), ["numpy"], fuse=False)
print([p.op for p in session.placement({"x": (3,)})], session.run({"x": np.array([1, 2, 3], np.float32)})["y"])
"""
    assert python(installed, code, tmp_path) == "['mul', 'pow', 'add'] [ 2. 12. 36.]\n"


def test_the_operator_of_another_domain_is_read_and_written(installed, tmp_path):
    import onnx
    from onnx import helper

    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3]) for name in "xy")
    node = helper.make_node("Softcap", ["x"], ["y"], domain="org.example", cap=2.0)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("org.example", 1)]
    graph = helper.make_graph([node], "capped", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(tmp_path / "capped.onnx"))
    with pytest.raises(df.ModelError, match=r"org\.example\.Softcap"):
        df.load(str(tmp_path / "capped.onnx"))
    code = """
import numpy as np, dataflow as df
x = np.array([-9, 0, 1], np.float32)
y = df.Session(df.load("capped.onnx")).run({"x": x})["y"]
np.testing.assert_allclose(y, 2 * np.tanh(x / 2), rtol=1e-6)
from dataflow_softcap import softcap
g = df.GraphBuilder()
g.output("y", softcap(g.input("x", df.float32, (3,)), cap=2.0))
df.save(df.Model(g.build()), "again.onnx")
np.testing.assert_array_equal(df.Session(df.load("again.onnx")).run({"x": x})["y"], y)
"""
    python(installed, code, tmp_path)
    written, _ = onnx.load(tmp_path / "again.onnx").graph.node  # the other gives the output its name
    assert (written.domain, written.op_type, written.attribute[0].f) == ("org.example", "Softcap", 2.0)


def test_training_by_names_on_the_command_line_and_a_file_format(installed, tmp_path):
    rng = np.random.default_rng(0)
    with (tmp_path / "net.mlp").open("wb") as file:
        weights = {"w0": rng.normal(size=(4, 8)), "b0": np.zeros(8), "w1": rng.normal(size=(8, 1)), "b1": np.zeros(1)}
        np.savez(file, **{name: array.astype(np.float32) for name, array in weights.items()})
    x = rng.normal(size=(64, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, labels=x[:, :1] - x[:, 1:2])
    options = ["--loss", "fair", "--metric", "within", "--optimizer", "signum", "--lr", "0.01"]
    options += [
        "--schedule",
        "harmonic",
        "--callback",
        "best",
        "--epochs",
        "12",
        "--batch-size",
        "16",
        "--device",
        "cpu",
    ]
    command = ["-m", "dataflow", "finetune", "net.mlp", "--data", "data.npz", "-o", "tuned.mlp", "--json", *options]
    done = run(installed, *command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "epoch 1 is the best so far" in done.stderr
    assert '"within": ' in done.stdout
    code = """
import json, numpy as np, dataflow as df
data = dict(np.load("data.npz"))
before, after = (df.Trainer(df.load(n), "fair", "signum").evaluate(data)["loss"] for n in ("net.mlp", "tuned.mlp"))
assert after < 0.6 * before, (before, after)
"""
    python(installed, code, tmp_path)


def test_the_loss_and_the_optimizer_are_what_they_say(installed, tmp_path):
    code = """
import numpy as np, dataflow as df
g = df.GraphBuilder()
x = g.input("x", df.float32, ("B", 1))
g.output("y", df.ops.mul(x, g.parameter("w", np.ones((1,), np.float32))))
model = df.Model(g.build())
trainer = df.Trainer(model, "fair", "signum", devices=["cpu"])
data = {"x": np.array([[1], [4]], np.float32), "labels": np.array([[1.5], [0]], np.float32)}
found = trainer.evaluate(data)
assert abs(found["loss"] - (0.5 - np.log(1.5) + 4 - np.log(5)) / 2) < 1e-6, found
assert found["within"] == 0.5, found
trainer.step(data)
np.testing.assert_allclose(model.parameters["w"].array, 1 - 1e-4, rtol=1e-6)
"""
    python(installed, code, tmp_path)


def test_the_device_in_python_adds_without_rounding(installed, tmp_path):
    code = """
import numpy as np, dataflow as df
x = np.array([1e8, 1, 1, 1, -1e8] , np.float32)
g = df.GraphBuilder()
g.output("y", df.ops.reduce_sum(g.input("x", df.float32, (5,)), axes=(0,), keepdims=0))
print(df.Session(g.build(), ["exact", "cpu"]).run({"x": x})["y"], list(df.Session(g.build()).plan().memory))
"""
    assert python(installed, code, tmp_path).startswith("3.0 ")
