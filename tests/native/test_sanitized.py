"""The sample table on the CPU under AddressSanitizer and UndefinedBehaviorSanitizer, with fresh memory full of NaN."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

ISAS = ("avx512", "avx2", "portable")
KIND = "address,undefined"

spec = importlib.util.spec_from_file_location("sanitized", Path(__file__).parent / "sanitized.py")
sanitized = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sanitized)

CODE = """
import json, sys
from dataflow.plugin.registry import default_registry
from dataflow.testing import SAMPLES, check_device
from dataflow.testing.conformance import VARIANTS
device = default_registry().devices["cpu"]
if device.unavailable: print(json.dumps(None)); sys.exit()
shard, shards = int(sys.argv[1]), int(sys.argv[2])
variants = [v for v in VARIANTS if v != "repeated"]  # which counts memory and compares bits, several runs each
found = list(check_device("cpu", samples=SAMPLES[shard::shards], complete=False, variants=variants))
print(json.dumps({"passed": sum(o.status == "passed" for o in found),
                  "failed": [str(o) for o in found if o.status == "failed"]}))
"""


@pytest.fixture(scope="module")
def folder():
    if sanitized.runtime(KIND) is None:
        pytest.skip(f"the compiler has no -fsanitize={KIND}")
    return sanitized.build(KIND)


@pytest.mark.parametrize("isa", ISAS)
def test_kernels_stay_in_their_memory_and_read_what_was_written(isa, folder):
    """Each sample on one instruction set; ``sanitized.py`` runs any command over all of them."""
    shard = ISAS.index(isa)
    environment = {**sanitized.environment(KIND, folder), "DATAFLOW_CPU_ISA": isa}
    command = [sys.executable, "-c", CODE, str(shard), str(len(ISAS))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout)
    if found is None:
        pytest.skip(f"this machine has no {isa}")
    assert found["failed"] == []
    assert found["passed"] > 1000
