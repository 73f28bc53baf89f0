"""Keeps plugin.c as a library built with the present header, for the tests of hosts to come.

Run it once when a minor of the contract is done: ``python tests/plugin/growth/keep.py``. Libraries of earlier minors
stay as they are.
"""

import subprocess
from pathlib import Path

from dataflow._runtime import lib

HERE = Path(__file__).parent
INCLUDE = HERE.parents[2] / "native/include"

if __name__ == "__main__":
    target = HERE / f"kept-{lib.DF_ABI_MAJOR}.{lib.DF_ABI_MINOR}-x86_64.bin"
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-s", "-Wl,-z,noseparate-code", "-Wl,--build-id=none"]
    subprocess.run(["gcc", *flags, f"-I{INCLUDE}", str(HERE / "plugin.c"), "-o", str(target)], check=True)
