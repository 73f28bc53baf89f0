"""Each code path of the CPU plugin, forced: training with fusion on and off, one thread and two; the sample table on
the matrix unit (test_kernels.py has it for the instruction sets)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = """
import collections
from dataflow.plugin.registry import default_registry
from dataflow.testing import check_device
device = default_registry().devices["cpu"]
assert not device.unavailable, device.unavailable
assert device.version.endswith("ISA"), device.version
found = list(check_device("cpu", precision="bf16x6"))
print("\\n".join(str(o) for o in found if o.status in ("failed", "untested")))
count = collections.Counter(o.status for o in found)
assert count["passed"] > 5000, count
assert not count["failed"] and not count["untested"]
"""
TRAINING = """
import importlib.util, sys
import numpy as np
spec = importlib.util.spec_from_file_location("families", sys.argv[1])
families = importlib.util.module_from_spec(spec)
spec.loader.exec_module(families)
from dataflow.plugin.registry import default_registry
assert default_registry().devices["cpu"].version.endswith("ISA")
fused = {True: set(), False: set()}
for file in ("mobile", "gpt_script", "unet"):
    for threads in (1, 2):
        for fuse in (True, False):
            runs = [families.train(file, steps=3, threads=threads, fuse=fuse) for _ in range(2)]
            (losses, gradients, plans, _), (again, others, _, _) = runs
            loss, gradient = families.deviations(file, losses, gradients)
            assert loss < 1e-3 and gradient < 1e-4, (file, threads, fuse, loss, gradient)
            np.testing.assert_array_equal(losses, again)  # the same bits from run to run
            for name, array in gradients.items():
                np.testing.assert_array_equal(array, others[name])
            steps = [s for p in plans.values() for g in p.segments for s in g.steps]
            fused[fuse] |= {s.node.op.name for s in steps if s.node.op.pattern}
assert fused[True] and not fused[False], fused
"""


def can_run(isa):
    code = "from dataflow.plugin.registry import default_registry as r; print(r().devices['cpu'].unavailable or '')"
    environment = {**os.environ, "DATAFLOW_CPU_ISA": isa}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def check(isa, code):
    """Runs ``code`` in a process that uses an instruction set."""
    reason = can_run(isa)
    if reason:
        pytest.skip(reason)
    command = [sys.executable, "-c", code.replace("ISA", isa), str(TESTS / "models/test_models.py")]
    environment = {**os.environ, "DATAFLOW_CPU_ISA": isa}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_training_on_every_instruction_set(isa):
    check(isa, TRAINING)


def test_amx_tiles_are_as_right_as_float32():
    check("amx", TABLE)
