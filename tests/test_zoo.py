"""The zoo measures what lies in a folder, row by row, and goes on where it was stopped."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.support import onnx_model

ROOT = Path(__file__).parents[1]
W = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32)


@pytest.fixture
def folder(tmp_path):
    """Two files that nobody exported, and one with what PyTorch would have computed."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = onnx_model([node], [("x", TensorProto.FLOAT, ["n", 4])], [("y", TensorProto.FLOAT, ["n", 4])], [("w", W)])
    for name in ("plain", "known.trace-named"):
        onnx.save(model, tmp_path / f"{name}.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    known = {"target": np.zeros((2, 4), np.float32), "loss": np.array(1.0)}
    for index, n in enumerate((2, 1, 5)):
        x = np.random.default_rng(index).standard_normal((n, 4)).astype(np.float32)
        known |= {f"feeds/{index}/x": x, f"outputs/{index}/0": x.astype(np.float64) @ W}
    x = known["feeds/0/x"]
    gradient = x.T @ (2 * (x @ W) / 8)
    known |= {
        "positions/weight": np.arange(16),
        "gradient/weight": gradient.reshape(-1),
        "float32/weight": np.array(1e-7),
    }
    np.savez(tmp_path / "known.npz", **known, **{"names/trace-named": np.array([("weight", "w", "0")])})
    return tmp_path


def zoo(folder, *arguments):
    """What a run prints."""
    command = [sys.executable, str(ROOT / "benchmarks/zoo/zoo.py"), str(folder), "--results", str(folder / "rows.json")]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, check=True, cwd=ROOT).stdout


def rows(folder):
    return {row["model"]: row for row in map(json.loads, (folder / "rows.json").read_text().splitlines())}


def test_rows_say_what_runs_and_how_well(folder):
    zoo(folder, "--stages", "run", "gradients", "steps")
    found = rows(folder)
    assert not found["broken"]["loads"]
    assert "ModelError" in found["broken"]["refusal"]
    assert found["plain"]["bindings"] == 1
    known = found["known.trace-named"]
    assert known["bindings"] == 3
    assert known["error"] < 1e-6
    assert known["numpy_nodes"] == 0
    assert known["gradients"] == known["parameters"] == 1
    assert known["gradient_error"] < 1e-6
    assert known["falls"]
    assert known["saved_error"] < 1e-6
    again = zoo(folder, "--stages", "run")
    assert again == ""  # every row is there
    assert len(zoo(folder, "--list").splitlines()) == 3


def test_a_row_that_takes_too_long_says_so(folder):
    zoo(folder, "--stages", "run", "--only", "plain", "--seconds", "0.1")
    assert rows(folder)["plain"]["load_failed"] == "longer than 0.1 s"
