"""Tensors of more than 2^31 elements: the blocks at both ends of each grid run, over memory that mostly isn't there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import dataflow as df
from tests.cuda.huge import CASES, FAMILIES, RANDOM
from tests.cuda.test_standin import compiled

MEMORY = 192 << 30  # of which little is touched
SPARSE = {"STANDIN_BLOCKS": "edges", "STANDIN_MEMORY": str(MEMORY)}


def test_the_last_rows_are_those_of_a_small_operand(standin):
    given = {"DATAFLOW_CUDA_LIBRARY": str(standin.path), "DATAFLOW_CUBLASLT": "", "DATAFLOW_CUDNN": ""}
    names = list(CASES)
    if os.environ.get("DATAFLOW_EVERY_VARIANT"):
        names += [*FAMILIES, RANDOM]
        given["STANDIN_BLOCKS"] = "shares"  # where a kernel lays out one operand after another in one grid
    command = [sys.executable, "-m", "tests.cuda.huge", *names]
    done = subprocess.run(command, env={**os.environ, **SPARSE, **given}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == names


def test_more_lines_than_a_grid_has_blocks_are_left_to_others(standin_registry):
    g = df.GraphBuilder()
    for rows in (2**31, 2**31 - 1):
        g.output(f"y{rows}", df.ops.topk(g.input(f"x{rows}", df.float32, (rows, 1)), k=1, axis=1)[0])
    (kernel,) = standin_registry.kernels["cuda"]["topk"]
    reasons = [kernel.refuses(node) for node in g.build().nodes]
    assert reasons == ["there are more lines than blocks of a grid", None]


def test_an_index_of_32_bits_faults_and_one_of_64_does_not(standin, tmp_path, monkeypatch):
    for name, value in SPARSE.items():
        monkeypatch.setenv(name, value)
    call = compiled("huge", standin.path, tmp_path)
    assert call("indexes_by_32_bits").returncode == -signal.SIGSEGV
    done = call("indexes_by_64_bits")
    assert done.stdout.splitlines() == ["launch: no error", "wait: no error", "1 1"]
