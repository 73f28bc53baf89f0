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

from tests.cuda.building import check_flags, standin_library

HERE = Path(__file__).parent
VIOLATIONS = HERE / "violations"
CALL = "import ctypes, sys; getattr(ctypes.CDLL(sys.argv[1]), sys.argv[2])(); sys.stdout.flush()"


def compiled(name, library, folder, checks=""):
    """``call(function)``: the finished process that called it, of a file of violations over this library."""
    compiler = shlex.split(sysconfig.get_config_var("CXX") or "c++")[0]
    strict = ("-std=c++20", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable")
    includes = (f"-I{HERE.parents[1] / 'native/include'}", f"-I{HERE / 'standin'}")
    everywhere, kernels = check_flags(checks)
    unit, target = folder / f"{name}.o", folder / f"{name}.so"
    source = ("-x", "c++", "-c", VIOLATIONS / f"{name}.cu", "-o", unit)
    subprocess.run([compiler, *strict, *everywhere, *kernels, *includes, *source], check=True)
    link = ("-shared", unit, library, f"-Wl,-rpath,{library.parent}", "-o", target)
    subprocess.run([compiler, *everywhere, *link], check=True)

    def call(function):
        command = [sys.executable, "-c", CALL, str(target), function]
        environment = {**os.environ, "STANDIN_DEVICES": "2"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return call


@pytest.fixture(scope="module")
def violations(standin, tmp_path_factory):
    return compiled("calls", standin.path, tmp_path_factory.mktemp("calls"))


@pytest.fixture(scope="module")
def unordered(tmp_path_factory):
    """Over a runtime that sees what kernels read and write."""
    return compiled("order", standin_library("races", plugin=False), tmp_path_factory.mktemp("order"), "races")


@pytest.fixture(scope="module")
def undefined(standin, tmp_path_factory):
    checks = "alignment,bounds,signed-integer-overflow"
    return compiled("undefined", standin.path, tmp_path_factory.mktemp("undefined"), checks)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("writes_behind_its_array", "a block writes outside of its shared arrays: kernel, beside first"),
        ("writes_before_its_array", "a block writes outside of its shared arrays: kernel, beside dynamic"),
        ("writes_behind_its_dynamic_memory", "a block writes outside of its shared arrays: kernel, beside dynamic"),
        ("has_too_much_shared_memory_in_all", "more shared memory than a block may have: kernel"),
        ("allocates_in_a_capture", "not allowed in a thread that captures: an allocation"),
        ("frees_in_a_capture", "not allowed in a thread that captures: freeing memory"),
        ("copies_from_where_16_bytes_may_not_begin", "a copy to shared memory of another size than 4, 8 and 16 bytes"),
        ("reads_matrices_from_where_no_row_may_begin", "ldmatrix of a row that isn't aligned to 16 bytes"),
        ("waits_for_an_event_in_a_capture", "not allowed in a thread that captures: waiting for an event"),
        ("waits_in_a_capture", "not allowed in a thread that captures: waiting for a stream"),
        ("copies_pageable_memory_in_a_capture", "not allowed in a thread that captures: a copy of memory that isn't"),
        ("uses_another_stream_in_a_capture", "not allowed in a thread that captures: work for another stream"),
        ("adds_a_node_that_waits_for_nothing", "a node doesn't wait for what was captured before it"),
        ("goes_on_beside_a_node", "work doesn't wait for a node that was added"),
        ("sets_a_condition_outside_of_its_graph", "the condition isn't one of the graph that runs"),
        ("times_a_body", "not allowed in the body of a conditional node: an event"),
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
        ("wants_more_blocks_than_a_grid_has", ["launch: invalid configuration argument"]),
        (
            "has_conditions_without_nodes_and_nodes_without_conditions",
            [f"node: {OK}", f"node: {LARGE}", f"end: {OK}", f"instantiate: {LARGE}"],
        ),
        ("reads_a_copy_before_it_waits", [f"launch: {OK}", "ffffffff 1010101"]),
    ],
)
def test_what_a_call_answers(name, lines, violations):
    done = violations(name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == lines


# ---- Order --------------------------------------------------------------------------------------------


def line_of(text):
    """``order.cu:LINE`` of the one line that has this text."""
    lines = (VIOLATIONS / "order.cu").read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if text in line]
    return f"order.cu:{number}"


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("reads_before_a_barrier", "writes it", ("line[threadIdx.x / 2]",)),
        ("writes_what_others_still_read", "reads it", ("= round;", "sum += line")),
        ("takes_a_shuffle_for_a_barrier", "writes it", ("out[threadIdx.x] = line[31 - threadIdx.x]",)),
        ("waits_for_its_warp_alone", "writes it", ("out[threadIdx.x] = 3;", "out[THREADS - 1 - threadIdx.x] = 2")),
        ("writes_a_byte_and_its_word", "writes it", ("out[1] = 1", "reinterpret_cast<int *>(out) = 2")),
        ("adds_to_what_other_blocks_add_to", "another block writes it", ("*sum += 1",)),
        ("reads_what_another_block_writes", "another block writes it", ("at[0] = 1", "at[1] = at[0]")),
    ],
)
def test_a_race_ends_the_process_and_names_both_lines(name, text, lines, unordered):
    done = unordered(name)
    assert done.returncode == -signal.SIGABRT, done.stdout
    assert "stand-in: a race: kernel, " in done.stderr
    assert text in done.stderr
    for line in lines:
        assert line_of(line) in done.stderr


@pytest.mark.parametrize(
    "name",
    [
        "reads_behind_a_barrier",
        "writes_when_all_have_read",
        "waits_for_its_warp",
        "writes_bytes_of_one_word",
        "adds_atomically",
        "shuffles_within_halves",
    ],
)
def test_what_is_ordered_is_no_race(name, unordered):
    done = unordered(name)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["launch: no error", "wait: no error"]


def test_launches_of_a_stream_are_ordered(unordered):
    assert unordered("reads_what_another_launch_wrote").returncode == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("reads_shared_memory_before_it_is_written", "shared memory is read that the block has not written: kernel"),
        ("waits_at_two_barriers", "threads of a block wait at different barriers: kernel, lines"),
        ("waits_for_lanes_that_never_come", "threads of a block wait at different barriers: kernel"),
        ("waits_with_a_mask_without_itself", "a lane waits for others and isn't in its mask: kernel"),
        ("shuffles_from_a_lane_outside_of_its_mask", "a shuffle reads a lane that does not take part: kernel"),
    ],
)
def test_what_no_barrier_orders_ends_the_process(name, text, unordered):
    done = unordered(name)
    assert done.returncode == -signal.SIGABRT, done.stdout
    assert text in done.stderr


# ---- What the compiler checks -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("reads_four_floats_that_are_not_aligned", "misaligned address"),
        ("indexes_behind_an_array", "index 4 out of bounds for type 'int [4]'"),
        ("multiplies_beyond_32_bits", "signed integer overflow: 65536 * 65536"),
    ],
)
def test_undefined_behavior_ends_the_process(name, text, undefined):
    done = undefined(name)
    assert done.returncode != 0
    assert text in done.stderr


def test_an_aligned_vector_is_read(undefined):
    assert undefined("reads_four_floats_that_are_aligned").returncode == 0


def test_shared_memory_is_named_by_the_macro_that_is_checked():
    """What is declared otherwise has neither noise nor zones around it."""
    sources = [path for path in (HERE.parents[1] / "native/cuda").rglob("*") if path.suffix in (".cu", ".h")]
    assert [str(path) for path in sources if "__shared__" in path.read_text()] == []
