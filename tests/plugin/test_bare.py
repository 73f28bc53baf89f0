"""Recipes, and what ``dataflow plugin new`` writes, followed to the letter: an installed wheel, outside of the tree.

The environment has the wheel, what it depends on, pip, setuptools and pytest. Commands are those of the pages and those
that ``dataflow plugin new`` prints; pip's variables keep it from any index.
"""

import os
import re
import subprocess
import sys
import textwrap
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dataflow.testing.new_plugin import _SUMMARIES
from dataflow.version import DISTRIBUTION

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PAGE = (ROOT / "docs/plugins.md").read_text()
# The page has an op in C; tests/cuda compiles what is written for cards.
KINDS = [(kind, language) for kind, language in _SUMMARIES if language != "cuda" and (kind, language) != ("op", "c")]


def dependencies(*names):
    """The distributions of these names and all that they need."""
    found = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in found:
            found[name] = metadata.distribution(name)
            wanted = map(Requirement, found[name].requires or ())
            waiting += [r.name for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    return found.values()


def link(distribution, site):
    """Makes a distribution of this environment one of another, without a copy."""
    for top in {str(path).split("/")[0] for path in distribution.files} - {"..", "__pycache__"}:
        target = Path(str(distribution.locate_file(top))).resolve()
        if not (site / top).exists():
            (site / top).symlink_to(target)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """Runs commands of a shell in the environment, in a folder; what they print."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "extra.cfg").write_text(f"[build]\nbuild_base = {folder / 'build'}\n")
    wheel = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    build = {**os.environ, "DATAFLOW_CUDA": "off", "DIST_EXTRA_CONFIG": str(folder / "extra.cfg")}
    subprocess.run([*wheel, "-w", str(folder), str(ROOT)], env=build, check=True)
    venv.create(folder / "venv", symlinks=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    requires = [Requirement(text) for text in metadata.requires(DISTRIBUTION) if "extra ==" not in text]
    for distribution in dependencies("pip", "setuptools", "pytest", *(r.name for r in requires)):
        link(distribution, site)
    binaries = folder / "venv/bin"
    (binaries / "pip").write_text('#!/bin/sh\nexec python -m pip "$@"\n')
    (binaries / "pip").chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "DATAFLOW", "PIP_"))}
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    pip = {"NO_INDEX": "1", "NO_BUILD_ISOLATION": "0", "QUIET": "1", "DISABLE_PIP_VERSION_CHECK": "1"}
    variables = {**kept, "PATH": path, "CFLAGS": "-Werror", **{f"PIP_{name}": value for name, value in pip.items()}}

    def run(commands, cwd):
        command = ["sh", "-euc", commands]
        done = subprocess.run(command, cwd=cwd, env=variables, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{commands}\n{done.stdout}{done.stderr}"
        return done.stdout

    run(f"pip install --no-deps {next(folder.glob('*.whl'))}", folder)
    where = run('python -c "import dataflow; print(dataflow.__file__)"', folder)
    assert Path(where.strip()).is_relative_to(folder)
    return run


def commands(page, begin):
    """The indented block of a page that begins with this command."""
    (block,) = [b for b in re.findall(r"(?:^    .+\n)+", page, re.MULTILINE) if b.startswith(f"    {begin}")]
    return textwrap.dedent(block)


def test_the_page_about_plugins(bare, tmp_path):
    assert "swish: 121 passed" in bare(commands(PAGE, "dataflow plugin new"), tmp_path)


def test_the_recipe_for_a_device_in_c(bare, tmp_path):
    for name, text in re.findall(r"^```\w+ (pyproject\.toml|dataflow_abacus/\S+|abacus\.c|build\.sh)\n(.*?)^```$",
                                 CONTRIBUTING, re.DOTALL | re.MULTILINE):  # fmt: skip
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert re.search(r"^abacus: .*\d+ passed", bare(commands(CONTRIBUTING, "sh build.sh"), tmp_path), re.MULTILINE)


@pytest.mark.parametrize(("kind", "language"), KINDS)
def test_what_is_written_builds_and_passes(bare, tmp_path, kind, language):
    printed = bare(f"dataflow plugin new mine --kind {kind} --language {language}", tmp_path)
    (command,) = re.findall(r"^now: (.*)$", printed, re.MULTILINE)
    if kind == "pass":  # through which all samples run
        command += " --sample neg"
    assert re.search(r"^mine: .*\d+ passed", bare(command, tmp_path), re.MULTILINE)
    if kind in ("op", "converter"):  # what each kind has, and the one with tests of its own
        bare("cd dataflow-mine && python -m pytest", tmp_path)
