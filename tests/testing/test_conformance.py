"""The conformance kit finds kernels that are wrong for one form of operands (test_docs.py: that write outside)."""

import gc
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from dataflow.plugin import Kernel, OperandSpec, PythonDevice
from dataflow.plugin.registry import load
from dataflow.testing import SAMPLES, check_device
from dataflow.testing.conformance import VARIANTS
from dataflow.testing.process_state import ProcessState
from tests.support import DevicePlugin

RELU = [s for s in SAMPLES if s.op.name == "relu" and s.inputs[0].shape == (3, 5, 7)]
STRIDED = OperandSpec(strided=True)


class OneKernel(PythonDevice):
    """A device with one kernel."""

    name = "one"

    def __init__(self, op, code):
        self.op, self.code = op, code

    def kernels(self):
        return [Kernel(self.op, f"one {self.op}", (STRIDED,), (STRIDED,), self.code)]


def outcomes(code, op="relu"):
    registry = load([DevicePlugin(OneKernel(op, code))])
    return [(o.variant, o.status) for o in check_device("one", registry=registry, samples=RELU)]


def failing(code):
    return {variant for variant, status in outcomes(code) if status == "failed"}


def but_for(wrong):
    """A kernel that is right unless ``wrong`` holds for its operand's strides, in elements."""
    return lambda attributes, x: np.maximum(x, 0) + wrong([s // x.itemsize for s in x.strides])


def test_a_right_kernel_passes():
    assert not failing(lambda attributes, x: np.maximum(x, 0))


def test_a_wrong_kernel_fails_in_each_variant():
    not_here = {"constant", "in_place", "repeated", "refused", "memory"}  # of one operand, a function without state
    assert failing(lambda attributes, x: x) == {*VARIANTS} - not_here


@pytest.mark.parametrize(
    ("op", "says"),
    [
        ("no_such_op", "one no_such_op is for an op that nobody declares"),
        ("relu_grads", "one relu_grads is for an op that nobody declares; near: relu_grad"),
        ("relu_grad", "the device claims it, and no sample shows that it is right"),
        ("add", "none of the op's 1 samples is taken, e.g. not add-f32-3x5-f32-3x5: one add: 2 inputs, takes 1"),
    ],
)
def test_a_claim_without_a_sample_is_untested(op, says):
    registry = load([DevicePlugin(OneKernel(op, lambda attributes, x: x))])
    given = [*RELU, *(s for s in SAMPLES if s.name == "add-f32-3x5-f32-3x5")]
    (found,) = [o for o in check_device("one", registry=registry, samples=given) if o.status != "not claimed"]
    assert (found.op, found.variant, found.status) == (op, "plain", "untested")
    assert found.text.startswith(says)


def test_a_kernel_that_is_wrong_for_some_strides_fails_in_their_variants():
    assert failing(but_for(lambda strides: 0 in strides)) >= {"broadcast"}
    assert failing(but_for(lambda strides: min(strides) < 0)) >= {"reversed"}
    assert failing(but_for(lambda strides: strides == [40, 8, 1])) == {"padded_rows"}  # rows of 7 elements
    assert failing(but_for(lambda strides: strides[0] < strides[2])) >= {"strided", "transposed"}


def test_two_runs_at_once_of_strings_are_compared_by_what_they_say():
    samples = [s for s in SAMPLES if s.op.name == "string_case"][:1]
    found = list(check_device("numpy", samples=samples, complete=False, variants=["repeated"]))
    assert [(o.variant, o.status) for o in found] == [("repeated", "passed")]


def test_the_kit_runs_as_tests_of_pytest(tmp_path):
    options = ["-p", "dataflow.testing.pytest_kit", "--pyargs", "dataflow.testing", "-p", "no:cacheprovider", "-q"]
    command = [sys.executable, "-m", "pytest", *options, "--device", "numpy", "--sample", "is_nan"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed", done.stdout)


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("pipe:[7]", True),
        ("/tmp/x", True),
        ("/dev/null", True),
        ("anon_inode:[eventfd]", False),
        ("/dev/nvidia0", False),
        ("socket:[9]", False),
    ],
)
def test_what_a_driver_may_have_closed_is_no_change(file, said):
    before, after = (ProcessState({}, files, 1, 0) for files in ({"3": "/tmp/y", "4": file}, {"3": "/tmp/y"}))
    assert (after.changed(before) is not None) == said


@pytest.mark.parametrize(("made", "fails"), [("eventfd", False), ("pipe", True)])
def test_a_file_that_a_kernel_closes_is_said_unless_a_driver_may_have(made, fails):

    def code(attributes, x):
        if opened:
            os.close(opened.pop())
        return np.maximum(x, 0)

    opened = [os.eventfd(0)] if made == "eventfd" else list(os.pipe())
    try:
        assert failing(code) == ({"process"} if fails else set())
    finally:
        for number in opened:
            os.close(number)


def test_files_that_others_left_open_are_not_closed_meanwhile():
    """Python's collector closes what is garbage, in the middle of a trial too."""
    collects = []

    def relu(attributes, x):
        collects.append(gc.isenabled())
        return np.maximum(x, 0)

    assert not failing(relu)
    assert collects
    assert not any(collects)
    assert gc.isenabled()


def test_signals_that_the_c_library_handles_are_nobodys_fault():
    """It installs two handlers with the first thread of a process."""
    script = (
        "import threading; from dataflow.testing.process_state import ProcessState; before = ProcessState.now();"
        "t = threading.Thread(target=int); t.start(); t.join(); print(ProcessState.now().changed(before))"
    )
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "DATAFLOW_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=settings, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None"
