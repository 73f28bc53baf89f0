"""Which kernels there are, and a table of samples that together launch all of them.

``python -m tests.cuda.launching`` writes the table anew; it fails where no sample launches a
kernel. Run it where a sample of the table or a kernel has another name than before.
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

from tests.cuda.building import ROOT, standin_library

TABLE = Path(__file__).parent / "launching.txt"
KERNEL = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)\s*)?(\w+)\(")
# Kernels for precisions below float32, in which samples don't run; tests/cuda/test_attention.py compares them. And the
# one that decides about the bodies of nodes that are no kernels; tests/cuda/test_bodies.py has these.
BESIDE_SAMPLES = {"attend_by_fragments", "attend_grad_by_fragments", "prepack", "decide"}


def named():
    """The kernels of the sources that samples launch."""
    found = {name for path in (ROOT / "native/cuda").rglob("*.[ch]*") for name in KERNEL.findall(path.read_text())}
    assert found >= BESIDE_SAMPLES
    return found - BESIDE_SAMPLES


def read_table():
    """Names of samples, each with the variants to run."""
    lines = [line.rpartition(": ") for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return {name: variants.split() for name, _, variants in lines}


def write():
    """Runs sample after sample, and keeps those that launched a kernel first."""
    os.environ |= {"DATAFLOW_CUDA_LIBRARY": str(standin_library()), "DATAFLOW_CUBLASLT": "", "DATAFLOW_CUDNN": ""}
    from dataflow.plugin.registry import load
    from dataflow.testing import SAMPLES, check_device
    from dataflow.testing.conformance import BASIC

    registry, library, missing = load(), ctypes.CDLL(os.environ["DATAFLOW_CUDA_LIBRARY"]), named()
    chosen: dict[str, list[str]] = {}
    for variant in BASIC:
        for sample in SAMPLES if missing else ():
            list(check_device("cuda", registry=registry, samples=[sample], complete=False, variants=(variant,)))
            launched = {name for name in missing if library.standin_was_launched(name.encode())}
            if launched:
                missing -= launched
                chosen.setdefault(sample.name, []).append(variant)
    assert not missing, f"no sample launches {sorted(missing)}"
    lines = ["# samples that together launch every kernel: variants; see launching.py"]
    TABLE.write_text("\n".join(lines + [f"{name}: {' '.join(variants)}" for name, variants in chosen.items()]) + "\n")


if __name__ == "__main__":
    write()
