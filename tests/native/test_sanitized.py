"""The sample table on the CPU under AddressSanitizer and UndefinedBehaviorSanitizer, with fresh memory full of NaN."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dataflow.plugin.registry import default_registry

SHARDS = 3  # for several processes
KIND = "address,undefined"

spec = importlib.util.spec_from_file_location("sanitized", Path(__file__).parent / "sanitized.py")
sanitized = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sanitized)

CODE = """
import json, os, sys
from dataflow.plugin.registry import default_registry
from dataflow.testing import SAMPLES, check_device
from dataflow.testing.conformance import VARIANTS
device = default_registry().devices["cpu"]
if device.unavailable: print(json.dumps(None)); sys.exit()
shard, shards = int(sys.argv[1]), int(sys.argv[2])
samples, found = SAMPLES[shard::shards], []
variants = [v for v in VARIANTS if v != "repeated"]  # which counts memory and compares bits, several runs each
if os.environ.get("DATAFLOW_EVERY_VARIANT"):
    found += check_device("cpu", samples=samples, complete=False, variants=variants)
else:
    others = [v for v in variants if v != "plain"]
    for i, variant in enumerate(others):
        some = samples[i::len(others)]
        found += check_device("cpu", samples=some, complete=False, variants=("plain", variant))
print(json.dumps({"passed": sum(o.status == "passed" for o in found),
                  "failed": [str(o) for o in found if o.status == "failed"]}))
"""


def instruction_sets():
    """The best of this machine; with ``DATAFLOW_EVERY_VARIANT``, as nightly, all: each takes minutes to compile.

    Likewise each sample runs plain and in one other variant, or in all.
    """
    best = default_registry().devices["cpu"].version.rpartition(" ")[2]
    if os.environ.get("DATAFLOW_EVERY_VARIANT"):
        return ("avx512", "avx2", "portable")
    return ({"amx": "avx512"}.get(best, best),)


@pytest.fixture(scope="module")
def folder():
    if sanitized.runtime(KIND) is None:
        pytest.skip(f"the compiler has no -fsanitize={KIND}")
    return sanitized.build(KIND, instruction_sets())


@pytest.mark.parametrize("shard", range(SHARDS))
def test_kernels_stay_in_their_memory_and_read_what_was_written(shard, folder):
    """``sanitized.py`` runs any command over the same libraries."""
    for isa in instruction_sets():
        environment = {**sanitized.environment(KIND, folder), "DATAFLOW_CPU_ISA": isa}
        command = [sys.executable, "-c", CODE, str(shard), str(SHARDS)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-6000:]
        found = json.loads(done.stdout)
        if found is not None:  # None: this machine has it not
            assert found["failed"] == []
            assert found["passed"] > 1000
