"""What the plugin declares of cuBLASLt and cuDNN is what their headers declare; needs nvcc and their packages."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def folder_of(header):
    """The folder of an installed package of NVIDIA's that has this header, or None."""
    spec = importlib.util.find_spec("nvidia")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    return next((path.parent for folder in folders for path in Path(folder).glob(f"*/include/{header}")), None)


def test_declarations_are_the_vendors(tmp_path):
    nvcc, folders = shutil.which("nvcc"), [folder_of("cublasLt.h"), folder_of("cudnn.h")]
    if nvcc is None or None in folders:
        pytest.skip("needs nvcc, and the headers in nvidia-cublas and nvidia-cudnn-cu13")
    includes = [f"-I{folder}" for folder in (*folders, HERE.parents[1] / "native/cuda")]
    source = HERE / "vendor_headers.cpp"
    command = [nvcc, "-x", "c++", "-std=c++20", "-w", *includes, "-c", str(source), "-o", str(tmp_path / "checked.o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
