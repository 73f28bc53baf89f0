"""What the documents say is done, literally: the README's code, and both recipes of CONTRIBUTING."""

import os
import re
import shutil
import subprocess
import sys
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
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run(
        [sys.executable, *arguments, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_code_of_the_readme_runs(tmp_path):
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 20
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tuned.onnx").exists()


def test_the_recipe_for_an_op(tmp_path):
    """The op is declared in copies of the files, as the recipe says, and passes the gradient check and the kit."""
    for package in ("dataflow", "plugins", "importers"):
        shutil.copytree(ROOT / package, tmp_path / package)
    ops = tmp_path / "dataflow/ops/activation.py"
    text = ops.read_text().replace("\nOPS = (", f"\n{block('op')}\n\nOPS = (\n    softcap,", 1)
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
        "own = [s for s in SAMPLES if s.op.name == 'softcap']\n"
        "assert len(own) == 9\n"
        "for device in ('numpy', 'cpu'):\n"
        "    found = [o.status for o in check_device(device, samples=own, complete=False)]\n"
        "    print(device, sorted(set(found)), len(found))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "numpy ['passed'] 55" in done.stdout
    assert "cpu ['not claimed'] 9" in done.stdout
    check = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(ROOT / "tests/test_gradients.py")]
    check += ["-k", "softcap", "--import-mode=importlib", "--rootdir", str(tmp_path)]
    done = subprocess.run(check, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in done.stdout, done.stdout


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
        "found = list(check_device('abacus', registry=load([dataflow_abacus])))\n"
        "print(dict(collections.Counter(o.status for o in found)))\n"
        "print('\\n'.join(str(o) for o in found if o.status in ('failed', 'untested')))\n"
    )
    done = python(code, cwd=folder, path=[folder])
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_recipe_for_a_device(abacus):
    found = kit(abacus)
    assert "'passed': " in found and "failed" not in found and "untested" not in found


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("y[i] = x[i] > 0 ? x[i] : 0;", "y[i] = x[i] > 0 ? x[i] : 1;", "elements differ"),
        ("i < n; i++)\n    y[i]", "i <= n; i++)\n    y[i]", "bytes outside the output were written"),
        ('.op = "relu"', '.op = "no_such_op"', "no sample shows that it is right"),
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
