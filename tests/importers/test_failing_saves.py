"""Saves that fail leave what was there: an existing file, a full disk, a killed process, an op without an ONNX form."""

import errno
import os
import signal
import subprocess
import sys

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import dataflow as df
from tests.support import external_tensor, onnx_model


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def good(w):
    """A model with one stored tensor."""
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    return onnx_model([product], [("x", TensorProto.FLOAT, ("n", 4))], stored=[w])


def changed(path):
    path.write_bytes(good(("w", np.ones((4, 3), np.float32))).SerializeToString())
    loaded = df.load(str(path))
    loaded.parameters["w"].set(np.full((4, 3), 2, np.float32))
    return loaded


def test_an_existing_file_is_not_replaced_unasked(path, tmp_path):
    loaded = changed(path)
    with pytest.raises(df.InputError, match="overwrite=True"):
        df.save(loaded, str(path))
    df.save(loaded, str(path), overwrite=True)
    assert (df.load(str(path)).parameters["w"].array == 2).all()
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_a_full_disk_leaves_what_was_there(path, tmp_path, monkeypatch):
    loaded = changed(path)
    before = path.read_bytes()

    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(df.InputError, match=r"cannot be written: No space left on device"):
        df.save(loaded, str(path), overwrite=True)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    with pytest.raises(df.InputError, match="cannot be written"):
        df.save(loaded, str(tmp_path / "no" / "folder.onnx"))


@pytest.mark.parametrize("failing", [2, 3, 4])
def test_a_disk_that_fills_between_data_and_model_leaves_neither(failing, tmp_path, monkeypatch):
    """The second call is of the folder of the data, the third one of the model, the fourth one of its folder."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "data.bin").write_bytes(np.ones(12, np.float32).tobytes())
    (inside / "model.onnx").write_bytes(good(external_tensor("w", (4, 3), "data.bin")).SerializeToString())
    loaded = df.load(str(inside / "model.onnx"))
    calls = []

    def some(handle):
        calls.append(handle)
        if len(calls) == failing:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", some)
    with pytest.raises(df.InputError, match="No space left on device"):
        df.save(loaded, str(tmp_path / "copy.onnx"))
    assert [p.name for p in tmp_path.iterdir()] == ["inside"]


def test_names_that_no_file_can_have(tmp_path, path):
    loaded = changed(path)
    for name in ("a" * 300 + ".onnx", "a\0.onnx"):
        with pytest.raises(df.InputError, match="cannot be written"):
            df.save(loaded, str(tmp_path / name))
        with pytest.raises(df.ModelError, match="cannot be read"):
            df.load(str(tmp_path / name))


def test_killed_while_saving_leaves_a_complete_file(path):
    changed(path)
    code = (
        "import sys, numpy as np, dataflow as df\n"
        "m = df.load(sys.argv[1])\n"
        "print('go', flush=True)\n"
        "for i in range(10**6):\n"
        "    m.parameters['w'].set(np.full((4, 3), i, np.float32))\n"
        "    df.save(m, sys.argv[1], overwrite=True)\n"
    )
    random = np.random.default_rng(0)
    for _ in range(5):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
        process.stdout.readline()
        try:
            process.wait(timeout=float(random.uniform(0.02, 0.2)))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert len(onnx.load(path).graph.node) == 1
        df.load(str(path))


def test_an_op_without_an_onnx_form_is_refused(tmp_path):
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (2, 3))
    g.output("y", df.ops.bitcast(x, to=df.int32, name="g"))
    with pytest.raises(df.ModelError, match=r"'g'.*no ONNX form"):
        df.save(df.Model(g.build()), str(tmp_path / "m.onnx"))
    assert not list(tmp_path.iterdir())
