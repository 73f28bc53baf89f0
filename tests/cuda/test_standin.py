"""The stand-in finds what a card would not bear: each check has code that it catches."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CALL = "import ctypes, sys; getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])(); sys.stdout.flush()"


@pytest.fixture(scope="module")
def violations(standin, tmp_path_factory):
    """``violations(name)``: the finished process that called the function."""
    compiler = shlex.split(sysconfig.get_config_var("CXX") or "c++")[0]
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable"]
    source = [
        f"-I{HERE.parents[1] / 'native/include'}",
        f"-I{HERE / 'standin'}",
        "-x",
        "c++",
        str(HERE / "violations.cu"),
        "-x",
        "none",
    ]
    target = tmp_path_factory.mktemp("violations") / "violations.so"
    link = [str(standin.path), f"-Wl,-rpath,{standin.path.parent}", "-o", str(target)]
    subprocess.run([compiler, *flags, *source, *link], check=True)

    def call(name):
        command = [sys.executable, "-c", CALL, str(target), name]
        environment = {**os.environ, "STANDIN_DEVICES": "2"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return call


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("writes_behind_its_array", "a block writes outside of its shared arrays: kernel, beside first"),
        ("writes_before_its_array", "a block writes outside of its shared arrays: kernel, beside dynamic"),
        ("writes_behind_its_dynamic_memory", "a block writes outside of its shared arrays: kernel, beside dynamic"),
        ("has_too_much_shared_memory_in_all", "more shared memory than a block may have: kernel"),
        ("allocates_in_a_capture", "not allowed in a thread that captures: an allocation"),
        ("frees_in_a_capture", "not allowed in a thread that captures: freeing memory"),
        ("waits_in_a_capture", "not allowed in a thread that captures: waiting for a stream"),
        ("copies_pageable_memory_in_a_capture", "not allowed in a thread that captures: a copy of memory that isn't"),
        ("uses_another_stream_in_a_capture", "not allowed in a thread that captures: work for another stream"),
    ],
)
def test_a_violation_ends_the_process(name, text, violations):
    done = violations(name)
    assert done.returncode == -signal.SIGABRT
    assert text in done.stderr


@pytest.mark.parametrize("name", ["writes_memory_of_another_card", "reads_device_memory_on_the_host"])
def test_memory_of_another_card_and_of_a_card_faults(name, violations):
    assert violations(name).returncode == -signal.SIGSEGV


OK, LARGE, FOREIGN = "no error", "invalid argument", "invalid resource handle"


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("has_too_much_shared_memory", [f"launch: {text}" for text in (OK, LARGE, OK, LARGE, LARGE)]),
        (
            "uses_what_belongs_to_another_card",
            [f"launch: {OK}", f"launch: {FOREIGN}", f"event: {FOREIGN}", f"memset: {FOREIGN}"],
        ),
        ("writes_memory_of_a_peer", [f"launch: {OK}", f"wait: {OK}"]),
        ("reads_what_another_block_left", [f"launch: {OK}", "0 c7c7c7c7"]),
    ],
)
def test_what_a_call_answers(name, lines, violations):
    done = violations(name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == lines


def test_shared_memory_is_named_by_the_macro_that_is_checked():
    """What is declared otherwise has neither noise nor zones around it."""
    sources = [path for path in (HERE.parents[1] / "native/cuda").rglob("*") if path.suffix in (".cu", ".h")]
    assert [str(path) for path in sources if "__shared__" in path.read_text()] == []
