"""No fault gets through the conformance kit: each faulty kernel is caught, with a message that names what it did."""

import contextlib
import ctypes
import itertools
import locale
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow.plugin import Kernel, OperandSpec, PythonDevice, devices_of
from dataflow.plugin.registry import load
from dataflow.testing import SAMPLES, check_device, isolation
from dataflow.testing.outcome import Outcome, Task
from tests.support import DevicePlugin

SOURCE = Path(__file__).parent / "faulty/faulty.c"
COPY = [s for s in SAMPLES if s.op.name == "copy" and s.inputs[0].shape == (17,)]

# By device: the op of its faulty kernel and what the kit says; ``(variant)`` where the message is that of a trial.
MEMORY = {
    "writes_behind": "ended by SIGSEGV: a write, 1 bytes behind y0",
    "writes_far_behind": "ended by SIGSEGV: a write, 193 bytes behind y0",
    "writes_before": "y0: bytes outside the output were written, before it",
    "writes_far_before": "y0: bytes outside the output were written, before it",
    "reads_behind": "(unaligned) the process was ended by SIGSEGV: a read, 1 bytes behind x0",
    "reads_far_behind": "ended by SIGSEGV: a read, 197 bytes behind x0",
    "reads_before": "(unaligned) the process was ended by SIGSEGV: a read, 4 bytes before x0",
    "overwrites_input": "x0 was changed: a kernel writes its results alone",
    "overwrites_and_restores": "ended by SIGSEGV: a write, 0 bytes inside x0",
    "leaks": "bytes of memory are lost in each run",
    "leaks_pages": "bytes of memory are lost in each run",
    "leaks_files": "8 more files are open after each run: /dev/null",
    "frees_twice": "SIGABRT",
    "unwritten": "1 of them were not written",
    "zeros_unwritten": "of them were not written",
    "reads_result": "of them were not written",
    "unsafe_in_place": "where y0 lies over x0, as the kernel claims that it may",
    "vector_write": "(unaligned) the process was ended by SIGSEGV",
    "wants_alignment": "(unaligned) the process was ended by SIGBUS",
    "overruns_workspace": "ended by SIGSEGV: a write, 1 bytes behind relu:workspace",
    "overruns_prepack": "(constant) the process was ended by SIGSEGV: a write, 1 bytes behind a prepacked copy",
    "reads_workspace": "a second run gives other bits",
    "far_writes_behind": "far_writes_behind:0: bytes beside",
    "allocates_unaligned": "which is no multiple of the device's alignment, 64",
    "copies_from_start": "(memory) 43 bytes copied to offset 21 and back are others",
}
VALUES = {
    "no_tail": "1 of 17 elements differ, first at [16]",
    "loses_nan": "(special) y0: 1 of 17 elements differ, first at [16]: 0.0 instead of nan",
    "clamps_infinity": "(special) y0: 1 of 17 elements differ, first at [13]: 1.0000000150474662e+30 instead of inf",
    "loses_sign_of_zero": "(special) y0: 1 of 17 zeros have the other sign",
    "claims_float16": "exp-f16-17 (plain) y0: ",
    "claims_bfloat16": "exp-bf16-17 (plain) y0: ",
    "claims_int64": "abs-i64-3x5 (plain) y0: ",
    "claims_nothing_there": "untested: relu, bool at input 0 (plain) claims_nothing_there claims bool at input 0",
    "long_true": "True instead of True",
    "some_strides": "(reversed)",
    "wrong_broadcast": "elements differ",
    "wrong_axis": "elements differ",
    "refuses": "raised DeviceError: relu 'relu'",
    "silent_index": "(refused) an index out of range is accepted",
    "forgets_status": "(refused) an index out of range is accepted",
    "empty_sum": "reduce_sum-f32-3x0-axes=1 (plain) y0: 3 of 3 elements differ",
    "unsampled": "untested: no_such_op",
    "hidden": "by hidden",
}
STATE = {
    "shared_scratch": "a run changes static memory of the library",
    "counts": "y0: ",
    "leaks_prepared": "bytes of memory are lost each time that it is prepared",
    "keeps_last_prepared": "was prepared and ran, other bits",
    "by_the_clock": "y0: ",
}
PROCESS = {
    "crashes": "ended by SIGSEGV: a write at address 0x8",
    "aborts": "ended by SIGABRT",
    "hangs": "no result after 0.5 s: it hangs",
    "exits": "the process was left with status 86: exit() was called",
    "exits_at_once": "the process was left with status 3",
    "raises_kill": "ended by SIGTERM",
    "traps": "ended by SIGFPE",
    "prints": "(process) it writes to standard output: relu was here",
    "rounds_up": "(process) the rounding mode was changed: from to nearest to upward",
    "rounds_to_zero": "the rounding mode was changed: from to nearest to toward zero",
    "flushes_subnormals": "to to nearest, subnormals flushed",
    "sets_locale": "the locale was changed",
    "changes_folder": "the working directory was changed",
    "sets_umask": "Umask of /proc/self/status was changed",
    "blocks_signals": "SigBlk of /proc/self/status was changed",
    "takes_signals": "SigIgn of /proc/self/status was changed",
    "closes_a_file": "file descriptor 0 (/dev/null) was closed",
    "closes_all_files": "Bad file descriptor",
    "leaves_threads": "8 more threads are left after each run",
    "leaves_processes": "8 more processes are left after each run",
    "crashing_accepts": "what crashing_accepts accepts (plain) the process was ended by SIGSEGV",
    "crashing_prepare": "ended by SIGSEGV: a write at address 0x8",
}
RIGHT = ("right", "far", "checked_index", "declines")
LIMITS = {"leaves_processes": 5.0}  # seconds: a loaded machine takes long to make processes
# Which samples show a fault, where it isn't the vector of 17 elements.
SHAPES = {
    "wrong_broadcast": "add-f32-3x1x5-f32-4x1", "overruns_prepack": "add-f32-3x5-f32-5", "claims_int64": "abs-i32-3x5",
    "long_true": "greater-f32-3x5-f32-3x5", "wrong_axis": "softmax-f32-3x5", "some_strides": "relu-f32-3x5x7",
    "silent_index": "gather-f32-", "forgets_status": "gather-f32-", "checked_index": "gather-f32-",
    "empty_sum": "reduce_sum-f32-3x0", "shared_scratch": "relu-f32-3x5x7", "keeps_last_prepared": "relu-f32-",
}  # fmt: skip


@pytest.fixture(scope="module")
def faulty(tmp_path_factory):
    """The registry with all faulty devices, and the op of each."""
    library = tmp_path_factory.mktemp("faulty") / "faulty.so"
    flags = ["-O1", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror", f"-I{df.get_include()}"]
    subprocess.run([os.environ.get("CC", "cc").split()[-1], *flags, str(SOURCE), "-o", str(library), "-lm"], check=True)
    return load([DevicePlugin(*devices_of(library))])


def outcomes(registry, device, **options):
    (op,) = registry.kernels[device].keys() - {"copy"}
    named = SHAPES.get(device, f"{op}-f32-17")
    samples = [s for s in SAMPLES if s.op.name == op and s.name.startswith(named)][:4]
    limit = LIMITS.get(device, 0.5)
    return list(check_device(device, registry=registry, samples=[*COPY, *samples], limit=limit, **options))


def bad(found):
    return [str(outcome) for outcome in found if outcome.status in ("failed", "untested")]


@pytest.mark.parametrize(("device", "says"), [*{**MEMORY, **VALUES, **STATE, **PROCESS}.items()])
def test_a_faulty_kernel_is_caught(faulty, device, says):
    if device not in faulty.devices:
        pytest.skip("of another processor")
    options = {"variants": ["plain"]} if device == "hangs" else {}
    found = bad(outcomes(faulty, device, **options))
    assert any(says in text for text in found), found


@pytest.mark.parametrize("device", RIGHT)
def test_a_right_kernel_passes(faulty, device):
    assert bad(outcomes(faulty, device)) == []


def test_what_a_device_declines_when_it_prepares_is_not_claimed(faulty):
    (found,) = [o for o in outcomes(faulty, "declines") if o.sample == "relu-f32-17" and o.variant == "plain"]
    assert found.status == "not claimed" and "not of 17 elements" in found.text


def test_every_faulty_device_is_tested(faulty):
    devices = faulty.devices.keys() - load().devices.keys()
    assert devices - {*MEMORY, *VALUES, *STATE, *PROCESS} == {*RIGHT}


def test_processes_of_a_kernel_end_with_its_trial(faulty):
    outcomes(faulty, "leaves_processes")
    deadline = time.monotonic() + 10
    while _left_by_kernel() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert _left_by_kernel() == []


def _left_by_kernel():
    """Processes that have the name which the kernel gave them, and have not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = process.read_text().partition("(")[2].rpartition(")")
            found += [process] * (name == "left-by-kernel" and rest.split()[0] != "Z")
    return found


def test_what_comes_after_a_crash_runs(faulty):
    found = outcomes(faulty, "crashes")
    assert {o.sample for o in found if o.status == "passed"} >= {"copy-f32-17"}
    assert {o.sample for o in found if o.status == "failed"} >= {"relu-f32-17"}


# ---- functions of Python -----------------------------------------------------------------------------


def maximum(x):
    return np.maximum(x, 0)


def chaotic(x):
    return maximum(x) + np.random.default_rng().random(x.shape, np.float32) * np.float32(1e-6)


def changing(x):
    result = maximum(x)
    x[...] = 0
    return result


def after(action):
    """A kernel that is right, and does something else."""

    def run(x):
        action()
        return maximum(x)

    return run


def forever():
    while True:
        pass


FUNCTIONS = {
    "other bits": (chaotic, "a second run gives other bits"),
    "writes x": (changing, "destination is read-only"),
    "raises": (after(lambda: 1 / 0), "raised ZeroDivisionError"),
    "leaves": (after(lambda: sys.exit(4)), "a kernel of it failed: SystemExit: 4"),
    "leaves at once": (after(lambda: os._exit(4)), "the process was left with status 4"),
    "is killed": (after(lambda: os.kill(os.getpid(), signal.SIGKILL)), "ended by SIGKILL, as the system does"),
    "crashes": (after(lambda: ctypes.string_at(8)), "ended by SIGSEGV: a read at address 0x8"),
    "holds the interpreter": (after(forever), "no result after 0.5 s: it hangs"),
    "prints": (after(lambda: os.write(1, b"hello")), "it writes to standard output: hello"),
    "changes the folder": (after(lambda: os.chdir("/")), "the working directory was changed"),
    "seeds NumPy's numbers": (after(lambda: np.random.seed(0)), "NumPy's global random state was changed"),  # noqa: NPY002
    "draws Python's numbers": (after(random.random), "Python's global random state was changed"),
    "sets the locale": (after(lambda: locale.setlocale(locale.LC_ALL, "C")), "the locale was changed"),
    "ignores a signal": (after(lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN)), "SigIgn"),
    "closes a file": (after(lambda: os.closerange(0, 1)), "file descriptor 0"),
    "leaves threads": (
        after(lambda: threading.Thread(target=time.sleep, args=(60,), daemon=True).start()),
        "more threads are left after each run",
    ),
    "another shape": (lambda x: maximum(x)[:1], "gave a result of shape [1]; expected [17]"),
    "too many": (lambda x: np.zeros(x.size + 1, np.float32), "gave a result of shape [18]; expected [17]"),
    "nothing": (lambda x: None, "gave None; expected [17]"),
}


class OneFunction(PythonDevice):
    """A device with one kernel."""

    name = "one"

    def __init__(self, code):
        self.code = code

    def kernels(self):
        anything = OperandSpec(strided=True)
        return [Kernel("relu", "one relu", (anything,), (anything,), lambda attributes, x: self.code(x))]


@pytest.mark.parametrize("fault", FUNCTIONS)
def test_a_faulty_function_is_caught(fault):
    code, says = FUNCTIONS[fault]
    registry = load([DevicePlugin(OneFunction(code))])
    samples = [s for s in SAMPLES if s.name == "relu-f32-17"]
    variants = ["plain"] if "hangs" in says else ["plain", "repeated"]
    options = {"complete": False, "limit": 0.5, "variants": variants}
    found = bad(check_device("one", registry=registry, samples=samples, **options))
    assert any(says in text for text in found), found


def test_a_child_that_has_grown_is_followed_by_another(monkeypatch):
    monkeypatch.setattr(isolation, "_GROWTH", 1 << 26)
    kept = []

    def task(number):
        def run(report):
            memory = mmap.mmap(-1, 1 << 25)  # what malloc gives may be memory that the process had before
            np.frombuffer(memory, np.uint8)[:] = 1
            kept.append(memory)
            yield Outcome("one", "relu", f"task {number}", "plain", "passed", str(os.getpid()))

        return Task("relu", f"task {number}", run)

    found = [*isolation.run_isolated("one", lambda: [task(number) for number in range(7)])]
    assert [outcome.sample for outcome in found] == [f"task {number}" for number in range(7)]
    processes = [[*group] for _, group in itertools.groupby(outcome.text for outcome in found)]
    assert all(len(group) < 5 for group in processes), processes
    assert len(processes) > 1 and kept == []
