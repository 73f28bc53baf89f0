"""Compiles the CUDA sources that changed since nvcc last found nothing: ``python -m tests.cuda.compiled``.

For one architecture, with warnings as errors and the limits of resources.txt. nvcc checks the host's code too, by the
toolkit's headers, but doesn't compile it, as the stand-in's tests do. ``.ci/compiled`` has a digest of each source that
passed, with headers, flags, limits of kernels and the version of nvcc; what stands there isn't compiled again.
A run writes the file, which belongs into the commit.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cuda.building import ROOT, builder
from tests.cuda.resources import parse, read_table, violations

RECORD = ROOT / ".ci/compiled"
ARCHITECTURE = "90"  # the newest that a wheel has code for, and that of resources.txt


def cuda_library(build, nvcc):
    """The library for one architecture, with warnings as errors."""
    flags = os.environ.get("CFLAGS", "").split()
    os.environ["CFLAGS"] = " ".join([*(f for f in flags if f != "-Werror"), "-Werror"])
    os.environ["DATAFLOW_CUDA_ARCHS"] = ARCHITECTURE
    return build.cuda_library(nvcc)


def files_of(source, folders):
    """``source`` and all of ours that it includes, by what stands in it, in the order of their names."""
    found, waiting = set(), [source]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        for name in re.findall(r'^\s*#\s*include\s*["<]([^">]+)[">]', path.read_text(), re.MULTILINE):
            there = [folder / name for folder in (path.parent, *folders) if (folder / name).is_file()]
            waiting += [file.resolve() for file in there]  # whichever of them the compiler takes
    return sorted(found)


def line_of(unit, folders, settings, table):
    """The line of a source in the record, if nothing is found in it."""
    texts = [path.read_text() for path in files_of(unit.source, folders)]
    limits = [(name, limit) for name, limit in sorted(table.items()) if any(name in text for text in texts)]
    digest = hashlib.sha256("\0".join([*settings, *unit.flags, *texts, repr(limits)]).encode()).hexdigest()
    return f"{digest}  {unit.source.relative_to(ROOT)}"


def findings(build, compiler, unit, table):
    """What nvcc has against a source, and what its kernels take too much of."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "kernels.fatbin")
        usage = target.with_suffix(".usage")
        try:
            build.run_to(target, [*compiler, *unit.flags, "-fatbin", str(unit.source.relative_to(ROOT))], usage)
        except SystemExit as error:
            return [str(error)]
        return violations(parse(usage.read_text()), table)


def main():
    build = builder()
    nvcc = build.find_nvcc()
    if nvcc is None:
        return 0
    library, table = cuda_library(build, nvcc), read_table()
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    settings, folders = (said, *library.compiler[1:]), (build.INCLUDE, build.NATIVE, build.CUDA)
    lines = {unit: line_of(unit, folders, settings, table) for unit in library.units}
    clean = set(RECORD.read_text().splitlines()) if RECORD.exists() else set()
    changed = [unit for unit in library.units if lines[unit] not in clean]
    with ThreadPoolExecutor(build.JOBS) as pool:
        found = dict(
            zip(changed, pool.map(lambda u: findings(build, library.compiler, u, table), changed), strict=True)
        )
    passed = sorted((lines[unit] for unit in library.units if not found.get(unit)), key=lambda line: line.split()[1])
    RECORD.write_text("".join(f"{line}\n" for line in passed))
    for unit, texts in found.items():
        for text in texts:
            sys.stderr.write(f"{unit.source.relative_to(ROOT)}: {text}\n")
    return int(any(found.values()))


if __name__ == "__main__":
    sys.exit(main())
