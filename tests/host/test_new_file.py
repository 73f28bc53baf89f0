"""Files that are complete or aren't there, and reach the disk where that is asked for."""

import errno
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataflow.plugin import new_file


def test_a_file_has_its_name_when_it_is_written(tmp_path):
    target = tmp_path / "model.x"
    target.write_text("before")
    with new_file(target, name=".mine") as unfinished:
        unfinished.write_text("after")
        assert target.read_text() == "before" and unfinished == tmp_path / ".mine"
    assert target.read_text() == "after" and list(tmp_path.iterdir()) == [target]


def test_a_name_may_depend_on_what_was_written(tmp_path):
    written = []
    with new_file(tmp_path / "x", renamed=lambda: tmp_path / f"x.{len(written)}") as unfinished:
        written += [1, 2]
        unfinished.write_text("text")
    assert [path.name for path in tmp_path.iterdir()] == ["x.2"]


@pytest.mark.parametrize("synced", [False, True])
def test_what_is_synced_is_so_before_it_has_its_name(synced, tmp_path, monkeypatch):
    calls, replace, fsync = [], Path.replace, os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (calls.append("fsync"), fsync(handle)))
    monkeypatch.setattr(Path, "replace", lambda path, other: (calls.append("replace"), replace(path, other)))
    with new_file(tmp_path / "x", synced=synced) as unfinished:
        unfinished.write_text("text")
    assert calls == (["fsync", "replace", "fsync"] if synced else ["replace"])  # the last one of its folder


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_file_that_does_not_reach_the_disk_leaves_what_was_there(number, tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(number, os.strerror(number))

    target = tmp_path / "x"
    target.write_text("before")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match=os.strerror(number)), new_file(target, synced=True) as unfinished:
        unfinished.write_text("after")
    assert target.read_text() == "before" and list(tmp_path.iterdir()) == [target]


def test_processes_of_one_number_keep_apart(tmp_path, monkeypatch):
    """As those of two containers, which write two files to a folder that they share."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    spec = importlib.util.find_spec("dataflow.host.new_file")
    mine, theirs = (importlib.util.module_from_spec(spec) for _ in range(2))
    for module in (mine, theirs):
        spec.loader.exec_module(module)
    with mine.new_file(tmp_path / "mine") as one, theirs.new_file(tmp_path / "theirs") as other:
        one.write_text("mine")
        other.write_text("theirs")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"mine": "mine", "theirs": "theirs"}


def test_what_killed_writers_left_goes_with_the_next_file(tmp_path):
    """But not what another process, or one of another machine, is writing, nor files of others."""
    script = (
        "import os, signal, sys; from pathlib import Path; from dataflow.plugin import new_file\n"
        "with new_file(Path(sys.argv[1]), '.onnx') as one: one.write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "model.onnx")], check=False, timeout=60)
    (left,) = tmp_path.iterdir()
    (tmp_path / ".dataflow.elsewhere.1.0123456789abcdef.part").write_text("x")
    (tmp_path / ".mine.part").write_text("x")
    with new_file(tmp_path / "a", ".onnx") as unfinished:
        unfinished.write_text("a")
        assert unfinished.name.endswith(".part.onnx")
        with new_file(tmp_path / "b") as other:
            other.write_text("b")
    assert not left.exists()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"a", "b", ".dataflow.elsewhere.1.0123456789abcdef.part", ".mine.part"}
    os.utime(tmp_path / ".dataflow.elsewhere.1.0123456789abcdef.part", (0, 0))
    with new_file(tmp_path / "a") as unfinished:
        unfinished.write_text("c")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", ".mine.part"}
