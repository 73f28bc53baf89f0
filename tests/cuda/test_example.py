"""The example of a CUDA kernel in a package of its own: it builds against the installed headers, and is right."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import dataflow as df

EXAMPLE = Path(__file__).parents[2] / "examples/cuda_op"
STANDIN = Path(__file__).parent / "standin"
NVCC = os.environ.get("NVCC") or shutil.which("nvcc")
CHECK = """
import collections, sys
import dataflow as df
import dataflow_swish
from dataflow.plugin.registry import load
from dataflow.testing import check_device
registry = load([dataflow_swish])
for device in sys.argv[1:]:
    samples = [s for s in registry.samples if s.op.name == "swish"]
    found = [*check_device(device, registry=registry, samples=samples, complete=False)]
    print(device, dict(collections.Counter(o.status for o in found)))
    print("\\n".join(str(o) for o in found if o.status == "failed"))
"""


@pytest.fixture
def example(tmp_path):
    """A copy of the package."""
    return shutil.copytree(EXAMPLE, tmp_path / "cuda_op", ignore=shutil.ignore_patterns("*.so", "__pycache__"))


def environment(**more):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **more}


def check(example, *devices, **more):
    command = [sys.executable, "-c", CHECK, *devices]
    path = os.pathsep.join(filter(None, (str(example), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command, cwd=example, env=environment(PYTHONPATH=path, **more), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_it_builds_as_its_script_says_and_its_kernels_are_found(example):
    subprocess.run(["sh", "build.sh"], cwd=example, env=environment(), check=True)
    (kernel,) = df.kernels_of(example / "dataflow_swish/swish.so")
    assert (kernel.op, kernel.name, kernel.inplace) == ("swish", "swish f32 cuda", ((0, 0),))


def test_its_reference_is_checked_without_cuda(example):
    assert "numpy {'passed': " in check(example, "numpy")


def build_over_the_stand_in(example, standin):
    """Links the kernel with the stand-in's library, whose threads it runs in."""
    compiler = shlex.split(sysconfig.get_config_var("CXX") or "c++")[0]
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", f"-I{df.get_include()}", f"-I{STANDIN}"]
    source = ["-x", "c++", str(example / "swish.cu"), "-x", "none", str(standin.path)]
    target = example / "dataflow_swish/swish.so"
    subprocess.run([compiler, *flags, *source, f"-Wl,-rpath,{standin.path.parent}", "-o", str(target)], check=True)


def test_its_kernel_is_right_over_the_stand_in(example, standin):
    build_over_the_stand_in(example, standin)
    found = check(example, "cuda", DATAFLOW_CUDA_LIBRARY=str(standin.path))
    assert "cuda {'passed': " in found
    assert "failed" not in found


def test_a_kernel_that_writes_behind_its_result_is_found(example, standin):
    """One element, in the same allocation: where values lie apart nothing else may be written."""
    source = example / "swish.cu"
    assert source.read_text().count("if (i < n)") == 1
    source.write_text(source.read_text().replace("if (i < n)", "if (i <= n)"))
    build_over_the_stand_in(example, standin)
    found = check(example, "cuda", DATAFLOW_CUDA_LIBRARY=str(standin.path))
    assert "cuda:0: bytes beside swish" in found
