"""The native runtime as Python meets it: libraries, the interpreter's lock, forks, interruption, memory."""

from __future__ import annotations

import ast
import ctypes
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from dataflow._runtime import ffi, lib
from dataflow.cdevice.log import log_to_python

HERE = Path(__file__).parent


def open_library(path: Path):
    error = ffi.new("df_error *")
    plugin = lib.df_library_open(os.fsencode(path), error)
    return plugin, ffi.string(error.text).decode()


@pytest.fixture(scope="module")
def library(compile_c) -> Path:
    return compile_c([HERE / "plugin.c"], "-shared", "-fPIC")


@pytest.fixture
def device(library):
    plugin, text = open_library(library)
    assert plugin, text
    return plugin.devices[0]


class Segment:
    """One step on one array, through the device's own table."""

    def __init__(self, device, kernel: int, array: np.ndarray, iterations: int | None = None) -> None:
        self.device = device
        self.keep = [array]
        shape = self._new("int64_t[]", [array.size])
        stride = self._new("int64_t[]", [1])
        operands = self._new("df_operand[]", 3)
        for operand in operands[0:2]:
            operand.struct_size, operand.item_bytes = ffi.sizeof("df_operand"), 8
            operand.dtype, operand.rank, operand.bytes = lib.DF_FLOAT64, 1, array.nbytes
            operand.shape, operand.strides = shape, stride
        operands[2].arena = -1
        arena = self._new("df_arena *", {"base": ffi.from_buffer(array), "bytes": array.nbytes, "slot": -1})
        step = self._new("df_step *", {"kernel": device.kernels[kernel], "n_inputs": 1, "n_outputs": 1})
        segment = self._segment(step, [operands + i for i in range(3)], arena)
        if iterations is not None:
            body = self._new("df_body *", {"segment": segment, "iterations": iterations})
            segment = self._segment(self._new("df_step *", {"body": body}), [], arena)
        self.error = ffi.new("df_error *")
        prepared = ffi.new("void **")
        assert device.prepare(device.self, segment, prepared, self.error) == lib.DF_OK, ffi.string(self.error.text)
        self.prepared = prepared[0]

    def _new(self, ctype: str, *init):
        self.keep.append(ffi.new(ctype, *init))
        return self.keep[-1]

    def _segment(self, step, operands, arena):
        segment = self._new("df_segment *", {"struct_size": ffi.sizeof("df_segment"), "threads": 2})
        segment.n_steps, segment.n_operands, segment.n_arenas = 1, len(operands), 1
        segment.steps, segment.arenas = self._new("df_step *[]", [step]), self._new("df_arena *[]", [arena])
        segment.operands = self._new("df_operand *[]", operands)
        return segment

    def run(self, cancel=ffi.NULL) -> int:
        run = ffi.new("df_run *", {"struct_size": ffi.sizeof("df_run"), "cancel": cancel})
        return self.device.run(self.device.self, self.prepared, run, self.error)

    def run_command(self) -> int:
        """As a program runs it: on the main thread Ctrl-C ends it."""
        cancel = ffi.new("int32_t *")
        run = ffi.new("df_run *", {"struct_size": ffi.sizeof("df_run"), "cancel": cancel})
        command = ffi.new(
            "df_command *", {"kind": lib.DF_COMMAND_SEGMENT, "device": self.device, "self": self.device.self}
        )
        command.prepared, command.host_slot = self.prepared, -1
        return lib.df_run_commands(command, 1, run, ffi.new("int64_t *"), self.error)

    def close(self) -> None:
        self.device.release(self.device.self, self.prepared)


# ---- libraries ---------------------------------------------------------------------------------------


def test_a_library_gives_its_devices(device):
    assert ffi.string(device.name) == b"test"
    assert [ffi.string(device.kernels[i].op) for i in range(device.n_kernels)] == [
        b"increment", b"wait", b"log", b"counted"]  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "messages"),
    [
        ("FAULT_MAJOR=1", ["version 1.5", f"has {lib.DF_ABI_MAJOR}.{lib.DF_ABI_MINOR}"]),
        ("FAULT_MAJOR=3", ["version 3.5", f"has {lib.DF_ABI_MAJOR}.{lib.DF_ABI_MINOR}"]),
        ("FAULT_SIZE", ["struct_size 12", "at least"]),
        ("FAULT_DEVICE_SIZE", ["struct_size 16", "at least"]),
        ("FAULT_KERNEL_SIZE", ["'test'", "kernel record 0", "struct_size 8", "at least"]),
        ("FAULT_NO_RUN", ["'increment f64'", "lacks op, name, operands or run"]),
        ("FAULT_NO_COPY", ["'test' lacks one of alloc, free, copy"]),
        ("FAULT_ASYNCHRONOUS", ["'test' is DF_ASYNCHRONOUS and has no sync"]),
        ("FAULT_MEMBERS=.alignment=48", ["'test' has an alignment that is no power of two"]),
        ("FAULT_MEMBERS=.alignment=-64", ["'test' has an alignment that is no power of two"]),
        ("FAULT_MEMBERS=.largest_buffer=-1", ["'test' has a largest_buffer below 0"]),
        ('FAULT_MEMBERS=.options="size"', ["'test' has options and no open, which takes them"]),
        ("FAULT_MEMBERS=.alloc_staging=device_alloc", ["'test' has alloc_staging and no free_staging"]),
        ("FAULT_NULL", ["returned null"]),
        ("FAULT_NO_ENTRY", ["exports no df_plugin_entry"]),
    ],
)
def test_a_library_that_breaks_the_contract_is_refused(compile_c, fault, messages):
    path = compile_c([HERE / "plugin.c"], "-shared", "-fPIC", f"-D{fault}", "-Wno-unused")
    plugin, text = open_library(path)
    assert not plugin
    assert str(path) in text
    for message in messages:
        assert message in text


def test_a_file_that_is_no_library_is_refused(tmp_path):
    for path in (tmp_path / "missing.so", HERE / "plugin.c"):
        plugin, text = open_library(path)
        assert not plugin
        assert str(path) in text


# ---- kernels at plan time ----------------------------------------------------------------------------


def nodes_with(inputs: list[int]):
    nodes = ffi.new("df_node[]", len(inputs))
    for node, n_inputs in zip(nodes, inputs, strict=True):
        node.struct_size, node.n_inputs = ffi.sizeof("df_node"), n_inputs
    return nodes


def test_accepts(device):
    increment, wait = device.kernels[0], device.kernels[1]
    one, two = nodes_with([1]), nodes_with([2])
    assert lib.df_accepts(increment, one) == ffi.NULL
    assert ffi.string(lib.df_accepts(increment, two)) == b"takes one input"
    assert lib.df_accepts(wait, two) == ffi.NULL  # it has no opinion


@pytest.mark.parametrize(
    ("inputs", "status", "text"),
    [
        ([1, 1, 1], lib.DF_OK, ""),
        ([1, 1, 2], lib.DF_UNSUPPORTED, "kernel 'counted': two inputs are too many"),
        ([1, 1, 3], lib.DF_INTERNAL, "kernel 'counted' asks for a workspace of -1 bytes"),
    ],
)
def test_kernels_are_prepared_all_or_none(device, library, inputs, status, text):
    alive = ctypes.CDLL(str(library)).df_test_alive  # the library that is open already
    kernels = ffi.new("df_kernel *[]", [device.kernels[3]] * 3)
    prepared = ffi.new("df_prepared[]", 3)
    error = ffi.new("df_error *")
    prepacks = ffi.new("df_prepack[]", 3 * lib.DF_MOST_PREPACKS)
    assert lib.df_prepare_kernels(3, kernels, nodes_with(inputs), prepared, prepacks, error) == status
    assert ffi.string(error.text).decode() == text
    assert alive() == (0 if status else 3)
    if status:
        assert error.step == 2
        return
    assert [p.workspace for p in prepared] == [128] * 3
    lib.df_release_kernels(3, kernels, prepared)
    assert alive() == 0


# ---- running -----------------------------------------------------------------------------------------


def test_a_segment_runs_without_the_interpreter_lock(device):
    array = np.zeros(1)
    segment = Segment(device, 1, array)
    runner = threading.Thread(target=segment.run)
    runner.start()  # the kernel spins until Python, which needs the lock for it, writes 1
    array[0] = 1
    runner.join()
    assert array[0] == 2
    segment.close()


def test_many_threads_run_segments(device):
    arrays = [np.full(100, float(i)) for i in range(8)]

    def run_often(array: np.ndarray) -> None:
        segment = Segment(device, 0, array)
        for _ in range(500):
            assert segment.run() == lib.DF_OK
        segment.close()

    threads = [threading.Thread(target=run_often, args=(array,)) for array in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(array, i + 500)


def test_a_cancel_word_ends_a_run_from_another_thread(device):
    array = np.zeros(1)
    segment = Segment(device, 0, array, iterations=1 << 60)
    cancel = ffi.new("int32_t *")
    statuses: list[int] = []
    runner = threading.Thread(target=lambda: statuses.append(segment.run(cancel)))
    runner.start()
    while array[0] < 1000:
        pass
    cancel[0] = 1
    runner.join()
    assert statuses == [lib.DF_CANCELLED]
    assert segment.error.step == 0
    segment.close()


# A child process, because the signal is for the main thread of a whole program.
INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
sys.path.insert(0, {folder!r})
from test_runtime import Segment, ffi, lib, open_library
plugin, text = open_library({library!r})
array = np.zeros(1)
segment = Segment(plugin.devices[0], 0, array, iterations=1 << 60)

def interrupt():
    while array[0] < 1000:
        time.sleep(0.001)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    segment.run_command()
except KeyboardInterrupt:
    print("interrupted", segment.error.code == lib.DF_CANCELLED)
signal.signal(signal.SIGINT, signal.SIG_IGN)
short = Segment(plugin.devices[0], 0, array)
assert short.run_command() == lib.DF_OK
assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
"""


def test_ctrl_c_ends_a_native_run(library):
    script = INTERRUPTED.format(folder=str(HERE), library=str(library))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "interrupted True\n", done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on: there are threads
def test_a_forked_child_runs_segments(device):
    array = np.zeros(100)
    segment = Segment(device, 0, array)
    assert segment.run() == lib.DF_OK
    assert lib.df_pool_workers() > 0
    child = os.fork()
    if not child:
        began_anew = lib.df_pool_workers() == 0
        ok = segment.run() == lib.DF_OK and (array == 2).all() and lib.df_pool_workers() == 1
        os._exit(0 if began_anew and ok else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(array, 1)
    segment.close()


# ---- log and memory ----------------------------------------------------------------------------------

logged: list[tuple[int, bytes]] = []


def test_the_log_reaches_python(device):
    @ffi.callback("void(int32_t, const char *)")
    def record(severity: int, text) -> None:
        logged.append((severity, ffi.string(text)))

    segment = Segment(device, 2, np.zeros(1))
    lib.df_set_log(record)
    try:
        assert segment.run() == lib.DF_OK
    finally:
        lib.df_set_log(ffi.NULL)
    assert segment.run() == lib.DF_OK
    log_to_python()
    assert logged == [(30, b"from a kernel")]
    segment.close()


@pytest.mark.parametrize("size", [0, 1, 64, 65, 5 << 20])
def test_memory_is_counted_to_the_byte(size):
    bytes_before, count_before = lib.df_allocated_bytes(), lib.df_allocation_count()
    block = ffi.new("df_host_block *")
    assert lib.df_host_take(size, block) == lib.DF_OK
    assert int(ffi.cast("uintptr_t", block.base)) % 64 == 0
    ffi.memmove(block.base, bytes(size), size)
    assert lib.df_allocated_bytes() - bytes_before == size
    assert lib.df_allocation_count() - count_before == 1
    for _ in range(2):  # the second does nothing
        lib.df_host_free(block)
        assert lib.df_allocated_bytes() == bytes_before
        assert lib.df_allocation_count() == count_before


@pytest.mark.parametrize("size", [-1, (1 << 63) - 1, 1 << 60])
def test_impossible_memory_is_refused(size):
    before = lib.df_allocated_bytes()
    assert lib.df_host_take(size, ffi.new("df_host_block *")) == lib.DF_OUT_OF_MEMORY
    assert lib.df_allocated_bytes() == before


# ---- the typed face ----------------------------------------------------------------------------------


def test_the_stub_lists_every_function():
    stub = ast.parse((HERE.parent.parent / "dataflow/_runtime.pyi").read_text())
    (declared,) = [node for node in stub.body if isinstance(node, ast.ClassDef) and node.name == "_Lib"]
    functions = {node.name for node in declared.body if isinstance(node, ast.FunctionDef)}
    constants = {node.target.id for node in declared.body if isinstance(node, ast.AnnAssign)}
    assert functions | constants == set(dir(lib))
