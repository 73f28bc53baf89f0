"""What each CUDA kernel takes of a multiprocessor, by the compiler's own report, and a table of what it may take.

A kernel without a row may have what lets a multiprocessor hold 1024 of its threads, and no memory of its own on the
card: neither spilled registers nor arrays that are indexed at run time. ``python -m tests.cuda.resources`` prints the
table for the library that was built last; rows are rounded up, so that small changes of a compiler don't count.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests.cuda.building import builder

TABLE = Path(__file__).parent / "resources.txt"
ARCHITECTURE = "sm_90"
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'.*?\n(.*?)(?=ptxas info *: Compiling entry|\Z)", re.S)


class Usage(NamedTuple):
    """Registers of a thread, bytes of its stack, bytes of a block's arrays in shared memory."""

    registers: int
    stack: int
    shared: int


USUAL = Usage(64, 0, 16 << 10)
STEPS = Usage(32, 64, 1 << 10)


def most(one, other):
    return Usage(*map(max, one, other))


def parse(text, architecture=ARCHITECTURE):
    """The most that any instantiation of a kernel takes, by the kernel's name."""
    found = [(name, body) for name, target, body in ENTRY.findall(text) if target == architecture]
    names = subprocess.run(
        ["c++filt"], input="\n".join(n for n, _ in found), capture_output=True, text=True, check=True
    )
    usages: dict[str, Usage] = {}
    for name, (_, body) in zip(names.stdout.splitlines(), found, strict=True):
        plain = re.split(r"[<(]", name.replace("(anonymous namespace)::", "").removeprefix("void "))[0]
        numbers = [
            re.search(pattern, body) for pattern in (r"Used (\d+) reg", r"(\d+) bytes stack", r"(\d+) bytes smem")
        ]
        usage = Usage(*(0 if n is None else int(n[1]) for n in numbers))
        usages[plain] = most(usage, usages.get(plain, usage))
    return usages


def reports():
    """What ptxas said of each file of the library as it would be built now; none where it was not built."""
    build = builder()
    nvcc = build.find_nvcc() if shutil.which("c++filt") else None
    if nvcc is None:
        return []
    library = build.cuda_library(nvcc)
    files = [build.usage_of(build.object_of(library.compiler, unit)) for unit in library.units]
    return [file.read_text() for file in files if file.exists()]


def read_table():
    lines = [line.split() for line in TABLE.read_text().splitlines() if not line.startswith("#")]
    return {name: Usage(*map(int, numbers)) for name, *numbers in lines}


def violations(usages, table):
    """What takes more than its row, or without one more than is usual."""
    return [
        f"{name}: {number} {what}, at most {limit} are allowed"
        for name, usage in sorted(usages.items())
        for what, number, limit in zip(Usage._fields, usage, table.get(name, USUAL), strict=True)
        if number > limit
    ]


def rounded_up(usage):
    registers, stack, shared = (-(-number // step) * step for number, step in zip(usage, STEPS, strict=True))
    return Usage(min(registers, 255), stack, shared)


def main():
    lines = ["# kernel registers stack shared: what a kernel may take beyond the usual, see resources.py"]
    for name, usage in sorted(parse("\n".join(reports())).items()):
        if violations({name: usage}, {}):
            lines.append(" ".join([name, *map(str, most(rounded_up(usage), USUAL))]))
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
