"""The indices by which kernels in C and CUDA read attributes, against the declarations."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
SCRIPT = NATIVE / "kernels/attributes.py"


@pytest.fixture(scope="module")
def script():
    """The names of native/kernels/attributes.py."""
    return runpy.run_path(str(SCRIPT))


def test_header_says_what_declarations_say(script):
    stale = f"the headers are not what the declarations give; run python {SCRIPT.relative_to(NATIVE.parent)}"
    assert script["HEADER"].read_text() == script["header"](), stale
    assert script["STEPS_HEADER"].read_text() == script["steps_header"](), stale


def test_numbers_of_steps_stay_what_they_are():
    """Plugins are compiled with them: the first 41 were numbered in the order of the alphabet, others follow."""
    from dataflow.ops.fused import STEP_NAMES, STEPS

    assert [op.name for op in STEPS] == [*STEP_NAMES], "the end of STEP_NAMES lacks a new op"
    assert sorted(STEP_NAMES[:41]) == [*STEP_NAMES[:41]] and (STEP_NAMES[0], STEP_NAMES[40]) == ("abs", "tanh")


def test_ops_that_are_read_alike_must_agree(script):
    from dataflow import ops

    assert script["offset"](ops.conv, ops.conv_grad_input) == 1
    with pytest.raises(ValueError, match="kernels expect"):
        script["offset"](ops.conv, ops.max_pool)


def test_no_kernel_reads_an_attribute_by_a_bare_index():
    bare = re.compile(r"df_(?:attr_\w+|axis)\(\w+, -?\d|\battributes\[\d")
    found = [
        f"{path.relative_to(NATIVE)}: {line.strip()}"
        for path in sorted(NATIVE.rglob("*"))
        if path.suffix in (".c", ".cu", ".h")
        for line in path.read_text().splitlines()
        if bare.search(line)
    ]
    assert not found
