"""What ``dataflow plugin new`` writes; that it builds and passes the kit is in test_bare.py."""

import os
import shutil
import subprocess
import sysconfig
import tomllib
from pathlib import Path

import pytest

import dataflow as df
from dataflow.testing.new_plugin import _SUMMARIES, KINDS, LANGUAGES, new_plugin

ROOT = Path(__file__).parents[2]
STANDIN = ROOT / "tests/cuda/standin"


def test_there_is_each_kind():
    assert {kind for kind, _ in _SUMMARIES} == {*KINDS}
    assert {language for _, language in _SUMMARIES} == {*LANGUAGES}


def test_the_pass_removes_what_it_says(tmp_path, monkeypatch):
    new_plugin(tmp_path, "twice", "pass")
    monkeypatch.syspath_prepend(tmp_path)
    import dataflow_twice

    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2,))
    g.output("y", df.ops.neg(df.ops.neg(df.ops.neg(x))))
    registry = df.plugin.Registry.load([dataflow_twice])
    session = df.Session(g.build(), ["cpu"], registry=registry, fuse=False)
    assert [step.node.op.name for segment in session.plan().segments for step in segment.steps] == ["neg"]


@pytest.mark.parametrize("kind", ["op", "kernel"])
def test_cuda_sources_compile_against_the_headers(kind, tmp_path):
    new_plugin(tmp_path, "card", kind, "cuda")
    compiler = os.environ.get("CXX") or sysconfig.get_config_var("CXX").split()[0]
    if shutil.which(compiler) is None:
        pytest.skip("needs a C++ compiler")
    flags = ["-std=c++20", "-fsyntax-only", "-x", "c++", f"-I{STANDIN}", f"-I{df.get_include()}"]
    subprocess.run([compiler, *flags, str(tmp_path / "dataflow_card/native.cu")], check=True)


def test_metadata_are_complete(tmp_path):
    for kind, language in _SUMMARIES:
        folder = tmp_path / f"{kind}-{language}"
        files = {path.relative_to(folder).as_posix() for path in new_plugin(folder, "lamp", kind, language)}
        project = tomllib.loads((folder / "pyproject.toml").read_text())
        assert project["project"]["entry-points"]["dataflow"] == {"lamp": "dataflow_lamp"}
        assert {"README.md", "tests/test_kit.py", ".github/workflows/test.yml"} <= files
        assert ("setup.py" in files) == (language != "python")
        for path in (folder / file for file in files):
            assert "@" not in path.read_text().replace("@hookimpl", "").replace("actions/", "").replace("@v", "")


def test_what_can_not_be_written_is_refused(tmp_path):
    with pytest.raises(df.InputError, match="'My Op' is no name for a plugin"):
        new_plugin(tmp_path / "a", "My Op", "op")
    with pytest.raises(df.InputError, match="there is no new pass in cuda; there are: op in python, op in c"):
        new_plugin(tmp_path / "a", "mine", "pass", "cuda")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(df.InputError, match="isn't an empty folder"):
        new_plugin(tmp_path / "full", "mine", "op")
