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
from tests.kit_samples import EVERY_VARIANT

SHARDS = 3  # for several processes
KIND = "address,undefined"

spec = importlib.util.spec_from_file_location("sanitized", Path(__file__).parent / "sanitized.py")
sanitized = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sanitized)

CODE = """
import json, sys
from dataflow.plugin.registry import default_registry
from dataflow.testing import SAMPLES, check_device
from dataflow.testing.conformance import VARIANTS
from tests.kit_samples import half_of, sampled_variants
device = default_registry().devices["cpu"]
if device.unavailable: print(json.dumps({"unavailable": device.unavailable})); sys.exit()
shard, shards = int(sys.argv[1]), int(sys.argv[2])
samples = half_of(SAMPLES, lambda sample: sample.op.name)[shard::shards]
found = list(check_device("cpu", samples=samples, complete=False, variants=("plain",)))
# "repeated" counts memory and compares bits, in several runs each; the last two are checks of the device.
others = [v for v in VARIANTS if v not in ("plain", "repeated", "refused", "memory")]
for some, variants in sampled_variants(samples, others, 1):
    found += check_device("cpu", samples=some, complete=False, variants=variants)
print(json.dumps({"passed": sum(o.status == "passed" for o in found),
                  "failed": [str(o) for o in found if o.status == "failed"]}))
"""


# The best of this machine; nightly all: each takes minutes to compile.
SETS = ("avx512", "avx2", "portable") if EVERY_VARIANT else ("best",)

# A third of what it takes to compile: an access by such a pointer is a finding of AddressSanitizer's, too.
FLAGS = "" if EVERY_VARIANT else "-fno-sanitize=null,pointer-overflow,object-size"


def own_set():
    best = default_registry().devices["cpu"].version.rpartition(" ")[2]
    return {"amx": "avx512"}.get(best, best)


@pytest.fixture(scope="module")
def folder():
    if sanitized.runtime(KIND) is None:
        pytest.skip(f"the compiler has no -fsanitize={KIND}")
    return sanitized.build(KIND, [own_set() if isa == "best" else isa for isa in SETS], FLAGS)


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("isa", SETS)
def test_kernels_stay_in_their_memory_and_read_what_was_written(isa, shard, folder):
    """``sanitized.py`` runs any command over the same libraries. A set that this machine lacks is a test skipped."""
    chosen = own_set() if isa == "best" else isa
    environment = {**sanitized.environment(KIND, folder), "DATAFLOW_CPU_ISA": chosen}
    command = [sys.executable, "-c", CODE, str(shard), str(SHARDS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    found = json.loads(done.stdout)
    if "unavailable" in found:
        assert isa != "best", found["unavailable"]
        pytest.skip(f"not run: {found['unavailable']}")
    assert found["failed"] == []
    assert found["passed"] > 500


def test_an_instruction_set_that_is_absent_is_reported():
    environment = {**os.environ, "DATAFLOW_CPU_ISA": "none"}
    done = subprocess.run([sys.executable, "-c", CODE, "0", "1"], env=environment, capture_output=True, check=True)
    assert "DATAFLOW_CPU_ISA=none is not an instruction set" in json.loads(done.stdout)["unavailable"]
