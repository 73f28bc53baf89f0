"""The C test programs, each under the sanitizers that the compiler has."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUNTIME = HERE.parent.parent / "native/runtime"
GENERATED = HERE.parent.parent / "examples/devices/generated/source"
TESTED = [
    RUNTIME / f"{name}.c"
    for name in (
        "executor/executor",
        "executor/group",
        "executor/resolve",
        "executor/sequence",
        "host/affinity",
        "host/host",
        "host/interrupt",
        "host/thread_pool",
        "planner/block_tree",
        "planner/branch",
        "planner/first_fit",
        "planner/offsets",
        "planner/skyline",
    )
]


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def sanitizer(request, compile_c, tmp_path_factory):
    """Compiler flags of a sanitizer that works here."""
    flags = (f"-fsanitize={request.param}", "-fno-sanitize-recover=all")
    empty = tmp_path_factory.mktemp("empty") / "empty.c"
    empty.write_text("int main(void) { return 0; }\n")
    try:
        works = subprocess.run([compile_c([empty], *flags)], check=False).returncode == 0
    except AssertionError:
        works = False
    if not works:
        pytest.skip(f"the compiler has no -fsanitize={request.param}")
    return flags


@pytest.mark.parametrize("name", ["pool_test", "executor_test", "offsets_test"])
def test_program(name, sanitizer, compile_c):
    program = compile_c([HERE / f"{name}.c", *TESTED], *sanitizer)
    done = subprocess.run([program], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr


def test_what_texts_are_built_to_is_kept_while_it_is_used(sanitizer, compile_c):
    program = compile_c([HERE / "built_test.c", GENERATED / "cache.c"], f"-I{GENERATED}", *sanitizer)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
