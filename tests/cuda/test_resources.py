"""No kernel takes more of a multiprocessor than the table in resources.txt allows."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.cuda.resources import USUAL, Usage, parse, read_table, reports, violations

NVCC = os.environ.get("NVCC") or shutil.which("nvcc")
SPILLING = """
__global__ void indexes(float *y, const int *at, int n) {
  float own[64];
  for (int i = 0; i < 64; i++)
    own[i] = y[i];
  for (int i = 0; i < n; i++)
    own[at[i] & 63] += y[i];
  y[threadIdx.x] = own[at[threadIdx.x] & 63];
}
__global__ void plain(float *y) { y[threadIdx.x] *= 2; }
"""


def test_no_kernel_takes_more_than_it_may():
    found = reports()
    if not found:
        pytest.skip("the CUDA library was not built here")
    usages = parse("\n".join(found))
    assert len(usages) > 50
    assert violations(usages, read_table()) == []


def test_rows_are_more_than_what_is_usual():
    assert all(row != USUAL and min(map(int.__sub__, row, USUAL)) >= 0 for row in read_table().values())


@pytest.mark.skipif(NVCC is None, reason="needs nvcc")
def test_a_kernel_with_a_stack_is_found(tmp_path):
    source = tmp_path / "spilling.cu"
    source.write_text(SPILLING)
    command = [NVCC, "-arch=sm_90", "-Xptxas=-v", "-cubin", str(source), "-o", str(tmp_path / "spilling.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    usages = parse(done.stderr)
    assert usages["plain"].stack == 0
    assert violations(usages, {}) == [f"indexes: {usages['indexes'].stack} stack, at most 0 are allowed"]
    assert violations(usages, {"indexes": Usage(64, 256, 0)}) == []
