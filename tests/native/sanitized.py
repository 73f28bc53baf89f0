"""Builds the native libraries with sanitizers in a copy of the sources, and runs commands over it.

    python tests/native/sanitized.py python -m pytest tests/ops
    python tests/native/sanitized.py --kind thread python -m pytest tests/execute/test_threads.py

The copy lies in ``build/sanitized``, and only what changed is built again. Fresh memory is full of NaN there, so that
a kernel that reads what nobody wrote gives a wrong result; leaks are not looked for, since Python's own would be found.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
COPIED = ("dataflow", "importers", "native", "plugins", "tests")
FILES = ("pyproject.toml", "README.md", "LICENSE")  # what setuptools wants beside them
LIBRARIES = {"address,undefined": "libasan.so", "thread": "libtsan.so"}
# Stacks kept after a return, as gcc 13 has them by default, hold vectors of 64 bytes at other addresses than the code
# expects, which is a fault of that compiler (its bug 110027): kernels of AVX-512 would die.
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:malloc_fill_byte=255:max_malloc_fill_size=1073741824"
    ":detect_stack_use_after_return=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": f"suppressions={Path(__file__).parent / 'python.tsan'}",
}


def runtime(kind: str) -> str | None:
    """The sanitizer's library, which must be loaded before Python's own; None where the compiler has none."""
    return _library(LIBRARIES[kind])


def _library(name: str) -> str | None:
    """The path of a library of the compiler's own."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    if not shutil.which(compiler[0]):
        return None
    command = [*compiler, f"-print-file-name={name}"]
    found = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    return str(found.resolve()) if found.is_absolute() else None


def build(kind: str, isas: Sequence[str] | None = None, flags: str = "") -> Path:
    """The folder of a copy of the sources whose libraries are built with the sanitizers ``kind``.

    ``isas``: the instruction sets of the cpu to compile, all if None. ``flags``: of the compiler, behind all others.
    """
    folder = ROOT / "build/sanitized" / kind.replace(",", "-")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored, dirs_exist_ok=True, copy_function=_copy)
    for name in FILES:
        _copy(str(ROOT / name), str(folder / name))
    environment = {**os.environ, "DATAFLOW_SANITIZE": kind, "DATAFLOW_CUDA": "off"}
    environment["CFLAGS"] = f"{os.environ.get('CFLAGS', '')} {flags}".strip()
    if isas is not None:
        environment["DATAFLOW_CPU_ISAS"] = ";".join(isas)
    done = subprocess.run(
        [sys.executable, "native/build.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return folder


def environment(kind: str, folder: Path) -> dict[str, str]:
    """The variables with which Python runs over the copy in ``folder``."""
    paths = [str(folder / subfolder) for subfolder in ("", "plugins", "importers")]
    library = runtime(kind)
    assert library is not None, f"the compiler has no library for -fsanitize={kind}"
    # libstdc++ is preloaded too: if an extension loaded it later, C++ exceptions would end the process.
    preloaded = " ".join(filter(None, (library, _library("libstdc++.so"))))
    return {**os.environ, **OPTIONS, "LD_PRELOAD": preloaded, "PYTHONPATH": os.pathsep.join(paths)}


def _copy(source: str, target: str) -> str:
    """Copies a file that is newer than its copy: what is not copied isn't built again."""
    if not Path(target).exists() or Path(source).stat().st_mtime > Path(target).stat().st_mtime:
        shutil.copy2(source, target)
    return target


def main() -> None:
    """Runs the command of the arguments over the copy."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(LIBRARIES), default="address,undefined")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    folder = build(given.kind)
    os.chdir(folder)
    os.execvpe(given.command[0], given.command, environment(given.kind, folder))


if __name__ == "__main__":
    main()
