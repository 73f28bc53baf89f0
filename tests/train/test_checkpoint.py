from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from dataflow import InputError
from dataflow.train import checkpoint
from dataflow.train.checkpoint import Checkpoint


def made(step: int = 0) -> Checkpoint:
    tensors = {
        "parameters/w": np.full((3, 4), step, np.float32),
        "parameters/h": np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3).T,
        "parameters/scalar": np.asarray(2.5, np.float64),
        "parameters/empty": np.zeros((0, 3), np.int8),
    }
    return Checkpoint(tensors, {"steps": step, "figure": 0.1 + 0.2, "list": [1, None]}, "f00")


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    path = checkpoint.save(tmp_path / "a" / "b", 7, made(7), keep=3)
    found = checkpoint.load(path)
    assert found.counters == made(7).counters
    assert found.fingerprint == "f00"
    for name, array in made(7).tensors.items():
        assert found.tensors[name].dtype == array.dtype
        assert found.tensors[name].shape == array.shape
        assert found.tensors[name].tobytes() == array.tobytes()


def test_the_newest_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-final.safetensors").write_text("mine")
    for step in (5, 10, 999, 1_000_000_000, 1_000_000_001):
        checkpoint.save(tmp_path, step, made(step), keep=2)
    assert [p.name for p in checkpoint.files(tmp_path)] == [
        "step-1000000000.safetensors",
        "step-1000000001.safetensors",
    ]
    assert (tmp_path / "notes.txt").exists()
    assert (tmp_path / "step-final.safetensors").exists()
    assert len(list(tmp_path.iterdir())) == 4


def test_truncated_and_foreign_files_are_skipped_with_a_note(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for step in (1, 2, 3):
        checkpoint.save(tmp_path, step, made(step), keep=9)
    second, third = checkpoint.files(tmp_path)[1:]
    second.write_bytes(second.read_bytes()[:-5])
    third.write_bytes(b"")
    (tmp_path / "step-000000004.safetensors").write_bytes(b"\xff" * 100)
    with caplog.at_level(logging.WARNING, "dataflow"):
        found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found[1].counters["steps"] == 1
    assert len([r for r in caplog.records if "skipped" in r.message]) == 3
    assert checkpoint.newest(tmp_path / "nowhere") is None


def test_a_safetensors_file_of_others_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"w": np.zeros(3)}, str(tmp_path / "m.safetensors"))
    with pytest.raises(InputError, match="no checkpoint of this form"):
        checkpoint.load(tmp_path / "m.safetensors")


def test_a_failed_save_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, 1, made(1), keep=3)

    def full(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(tmp_path, 1, made(99), keep=3)
    assert [p.name for p in tmp_path.iterdir()] == ["step-000000001.safetensors"]
    assert checkpoint.load(tmp_path / "step-000000001.safetensors").counters["steps"] == 1


WRITER = """
import sys
import numpy as np
from dataflow.train.checkpoint import Checkpoint, save
step = int(sys.argv[2])
print("go", flush=True)
while True:
    step += 1
    tensors = {f"parameters/{i}": np.full(200_000, step, np.float32) for i in range(4)}
    save(sys.argv[1], step, Checkpoint(tensors, {"steps": step}, "x"), keep=2)
"""


def test_a_process_killed_while_saving_leaves_only_complete_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    step = 0
    for _ in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(step)], stdout=subprocess.PIPE, env=None
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"go\n"
        time.sleep(0.05 + 0.1 * rng.random())
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        for path in checkpoint.files(tmp_path):
            found = checkpoint.load(path)
            assert f"{found.counters['steps']:09d}" in path.name
            for array in found.tensors.values():
                assert array.shape == (200_000,)
                assert (array == found.counters["steps"]).all()
            step = max(step, found.counters["steps"])
    assert step > 0
    checkpoint.save(tmp_path, step + 1, made(step + 1), keep=2)
    assert not [p for p in tmp_path.iterdir() if p.name.endswith(".part")]  # what the dead left is cleared away
