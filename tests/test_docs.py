"""What the documents say is done, literally: the README's code, and the recipes of CONTRIBUTING for this tree."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import dataflow as df
from dataflow.plugin.hookspecs import HOOKS

ROOT = Path(__file__).parents[1]
RECIPES = (ROOT / "CONTRIBUTING.md").read_text()


def block(label):
    """The fenced block with this label, without the indentation of a list."""
    found = re.search(rf"^( *)```\w+ {re.escape(label)}\n(.*?)^ *```$", RECIPES, re.DOTALL | re.MULTILINE)
    assert found is not None, label
    return re.sub(rf"^{found[1]}", "", found[2], flags=re.MULTILINE)


def python(code, *arguments, cwd, path=()):
    given = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, path), *given])}
    return subprocess.run(
        [sys.executable, *arguments, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_code_of_the_readme_runs(tmp_path):
    first, *others = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len([line for line in first.splitlines() if line.strip()]) <= 20
    code = "\n".join([first, *others])
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tuned.onnx").exists()
    assert (tmp_path / "adapted.onnx").exists()


@pytest.mark.parametrize("page", sorted((ROOT / "docs/training").glob("*.md")), ids=lambda page: page.stem)
def test_the_code_of_a_page_about_training_runs(page, tmp_path, monkeypatch):
    """All blocks of a page are one program; it may use the files in examples/."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert blocks, page.name
    exec(compile("\n".join(blocks), page.name, "exec"), {"__name__": "__main__"})


def test_the_recipe_for_an_op(tmp_path):
    """The op is declared in copies of the files, as the recipe says, and passes the gradient check and the kit."""
    for package in ("dataflow", "plugins", "importers"):
        shutil.copytree(ROOT / package, tmp_path / package)
    ops = tmp_path / "dataflow/ops/activation.py"
    text = ops.read_text().replace("\nOPS = (", f"\n{block('op')}\n\nOPS = (\n    tanh_cap,", 1)
    ops.write_text(text)
    reference = tmp_path / "plugins/dataflow_numpy/activation.py"
    table = "KERNELS: dict[str, Code] = {"
    reference.write_text(reference.read_text().replace(table, f"{table}\n    {block('reference')}", 1))
    samples = tmp_path / "dataflow/testing/samples/activation.py"
    samples.write_text(f"{samples.read_text()}\n{block('samples')}")
    path = [tmp_path, tmp_path / "plugins", tmp_path / "importers"]
    code = (
        "import sys, dataflow_numpy, dataflow_cpu\n"
        "import dataflow; assert dataflow.__file__.startswith(sys.argv[1]), dataflow.__file__\n"
        "from dataflow.plugin.registry import load\n"
        "from dataflow.testing import check_device, SAMPLES\n"
        "own = [s for s in SAMPLES if s.op.name == 'tanh_cap']\n"
        "assert len(own) == 9\n"
        "for device in ('numpy', 'cpu'):\n"
        "    found = [o.status for o in check_device(device, samples=own, complete=False)]\n"
        "    print(device, sorted(set(found)), len(found))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "numpy ['passed'] 56" in done.stdout
    assert "cpu ['not claimed'] 9" in done.stdout
    check = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests/test_gradients.py")]
    check += ["-k", "tanh_cap", "--import-mode=importlib", "--rootdir", str(tmp_path)]
    done = subprocess.run(check, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout


UNARY = (
    ("dataflow/ops/activation.py", "softsign: Op = "),
    ("plugins/dataflow_numpy/activation.py", '    "softsign": '),
    ("dataflow/testing/samples/activation.py", None),
    ("native/kernels/unary.h", "  X(softsign, "),
    ("importers/dataflow_onnx/operators/activation.py", 'unary(operator, "Softsign"'),
    ("importers/dataflow_onnx/file/forms/__init__.py", '"softsign": '),
)


def test_the_recipe_for_a_unary_op(tmp_path):
    """Its lines in copies of the files: both references agree, a file with it is read, and the C file compiles."""
    for folder in ("dataflow", "plugins", "importers", "native"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name, anchor in UNARY:
        path = tmp_path / name
        lines = path.read_text().splitlines(keepends=True)
        at = [i for i, line in enumerate(lines) if anchor and anchor in line]
        assert anchor is None or at, f"{name} has no line of softsign"
        lines.insert(at[0] + 1 if at else len(lines), block(name))
        path.write_text("".join(lines).replace("\nOPS = (", "\nOPS = (\n    logcosh,", 1))
    fused = tmp_path / "dataflow/ops/fused.py"
    fused.write_text(fused.read_text().replace('"tanh",\n)', '"tanh",\n    "logcosh",\n)', 1))
    code = """
import numpy as np, onnx, dataflow as df
from onnx import helper
from dataflow.testing import check_device, SAMPLES
import dataflow_onnx.file.forms as export
assert export.__file__.startswith(df.__file__.removesuffix("dataflow/__init__.py"))
own = [s for s in SAMPLES if s.op.name == "logcosh"]
print({o.status for o in check_device("numpy", samples=own, complete=False)}, len(own))
values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [3]) for n in "xy"]
graph = helper.make_graph([helper.make_node("LogCosh", ["x"], ["y"])], "g", values[:1], values[1:])
onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "y.onnx")
model = df.load("y.onnx")
x = np.array([-40, 0, 1], np.float32)
y = df.Session(model, ["numpy"]).run({"x": x})["y"]
np.testing.assert_allclose(y, [40 - np.log(2), 0, np.log(np.cosh(1))], rtol=1e-6, atol=1e-7)
assert export.SAME["logcosh"] == "LogCosh"
"""
    path = [tmp_path, tmp_path / "plugins", tmp_path / "importers"]
    done = python(code, cwd=tmp_path, path=path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "{'passed'} 9\n"
    script = f"import runpy; runpy.run_path('{tmp_path}/native/kernels/attributes.py', run_name='__main__')"
    written = python(script, cwd=tmp_path, path=path)
    assert written.returncode == 0, written.stderr
    assert "DF_STEP_tanh, DF_STEP_logcosh };" in (tmp_path / "native/include/dataflow_steps.h").read_text()
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    flags = ["-std=c11", "-fsyntax-only", "-DDF_ISA=portable", "-Wall", "-Werror"]
    folders = [f"-I{tmp_path / folder}" for folder in ("native/include", "native/cpu", "native", "dataflow/include")]
    subprocess.run([*compiler, *flags, *folders, str(tmp_path / "native/cpu/map/activation.c")], check=True)


def test_the_recipe_for_a_device_in_python(tmp_path):
    (tmp_path / "sheet.py").write_text(block("python_device"))
    code = (
        "import sheet, collections\n"
        "from dataflow.plugin.registry import load\n"
        "from dataflow.testing import check_plugin\n"
        "print({o.status for o in check_plugin('sheet', registry=load([sheet]))})\n"
    )
    done = python(code, cwd=tmp_path, path=[tmp_path])
    assert done.returncode == 0, done.stderr
    assert "'passed'" in done.stdout and "failed" not in done.stdout and "untested" not in done.stdout


def test_the_table_of_hooks_names_all_of_them_and_examples_that_exist():
    table = RECIPES[RECIPES.index("## Adding anything else") :]
    assert [hook for hook in HOOKS if f"`{hook}`" not in table] == []
    for folder in re.findall(r"\]\((examples/\w+)\)", table):
        assert (ROOT / folder / "pyproject.toml").exists(), folder


@pytest.fixture
def abacus(tmp_path):
    """The recipe's package, built."""
    for name in ("pyproject.toml", "dataflow_abacus/__init__.py", "abacus.c", "build.sh"):
        target = tmp_path / name
        target.parent.mkdir(exist_ok=True)
        target.write_text(block(name))
    return tmp_path


def kit(folder):
    """What the kit says of the package, as the command would."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run(["sh", "build.sh"], cwd=folder, env=environment, check=True)
    code = (
        "import dataflow_abacus, collections\n"
        "from dataflow.plugin.registry import load\n"
        "from dataflow.testing import check_device\n"
        "found = list(check_device('abacus', registry=load([dataflow_abacus]), limit=60.0))\n"
        "print(dict(collections.Counter(o.status for o in found)))\n"
        "print('\\n'.join(str(o) for o in found if o.status in ('failed', 'untested')))\n"
    )
    done = python(code, cwd=folder, path=[folder])
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("y[i] = x[i] < 0 ? 0 : x[i];", "y[i] = x[i] < 0 ? 1 : x[i];", "elements differ"),
        ("i < n; i++)\n    y[i]", "i <= n; i++)\n    y[i]", "the process was ended by SIGSEGV"),
        ('.op = "relu"', '.op = "rellu"', "abacus relu is for an op that nobody declares; near: relu"),
    ],
)
def test_the_kit_fails_on_a_kernel_that_is_wrong_writes_outside_or_is_untested(abacus, old, new, says):
    source = (abacus / "abacus.c").read_text()
    assert old in source
    (abacus / "abacus.c").write_text(source.replace(old, new, 1))
    assert says in kit(abacus)


def test_every_hook_and_op_is_described():
    assert all(hook.__doc__ for hook in HOOKS.values())
    assert not [op.name for op in df.ops.ALL if not op.doc]
