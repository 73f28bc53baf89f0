"""Every C kernel against the reference, for each instruction set; errors name what is wrong."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import dataflow as df
from dataflow.plugin.registry import default_registry
from dataflow.testing import SAMPLES, check_device
from dataflow.testing.conformance import VARIANTS

# What the cpu device leaves to others: views are no steps, these nodes are run by the host.
HOST_DRIVEN = {"if_", "loop"}


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_every_kernel_agrees_with_the_reference(isa):
    code = (
        "import json, sys\n"
        "from dataflow.plugin.registry import default_registry\n"
        "from dataflow.testing import check_device\n"
        "device = default_registry().devices['cpu']\n"
        "if device.unavailable: print(json.dumps(None)); sys.exit()\n"
        "found = list(check_device('cpu'))\n"
        "print(json.dumps({'version': device.version, 'passed': sum(o.status == 'passed' for o in found),"
        " 'bad': [str(o) for o in found if o.status in ('failed', 'untested')],"
        " 'claimed': sorted({o.op for o in found if o.status == 'passed'})}))\n"
    )
    environment = {**os.environ, "DATAFLOW_CPU_ISA": isa}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if found is None:
        pytest.skip(f"this machine has no {isa}")
    assert isa in found["version"]
    assert found["bad"] == []
    assert found["passed"] > 3000
    views = {op.name for op in df.ops.ALL if op.view is not None}
    composite = {op.name for op in df.ops.ALL if op.decompose is not None}
    needed = {op.name for op in df.ops.ALL} - views - composite - HOST_DRIVEN
    assert needed <= set(found["claimed"])


def test_the_kit_finds_a_wrong_kernel_a_write_outside_and_an_untested_claim(monkeypatch):
    registry = default_registry()
    relu = [s for s in SAMPLES if s.op.name == "relu" and s.inputs[0].shape == (3, 5, 7)]

    def outcomes(code, op="relu"):
        kernel = registry.kernels["numpy"]["relu"][0]
        wrong = type(kernel)(op, "wrong", kernel.inputs, kernel.outputs, code)
        kernels = {**registry.kernels, "numpy": {op: (wrong,), "copy": registry.kernels["numpy"]["copy"]}}
        reference = {**registry.kernels["numpy"]}
        monkeypatch.setattr("dataflow.testing.conformance._expected", lambda s, r, l=(): expected(s, l, reference))
        changed = dataclasses.replace(registry, kernels=kernels)
        return [(o.variant, o.status) for o in check_device("numpy", registry=changed, samples=relu)]

    def expected(sample, layouts, reference):
        return {"y0": reference["relu"][0].code({}, *sample.arrays(layouts))}

    def failing(code):
        return {variant for variant, status in outcomes(code) if status == "failed"}

    def but_for(wrong):
        """A kernel that is right unless ``wrong`` holds for its operand's strides, in elements."""
        return lambda a, x: np.maximum(x, 0) + wrong([s // x.itemsize for s in x.strides])

    assert not failing(lambda a, x: np.maximum(x, 0))
    assert failing(lambda a, x: x) == {*VARIANTS} - {"constant"}  # which takes a second operand
    assert {*outcomes(lambda a, x: x, op="no_such_op")} == {("plain", "not claimed"), ("plain", "untested")}
    assert failing(but_for(lambda strides: 0 in strides)) >= {"broadcast"}
    assert failing(but_for(lambda strides: min(strides) < 0)) >= {"reversed"}
    assert failing(but_for(lambda strides: strides == [40, 8, 1])) == {"padded_rows"}  # rows of 7 elements
    assert failing(but_for(lambda strides: strides[0] < strides[2])) >= {"strided", "transposed"}


@pytest.mark.parametrize("device", ["cpu", "numpy"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_an_index_out_of_range_is_named(device, dtype):
    g = df.GraphBuilder()
    table = g.parameter("table", np.zeros((4, 2), np.float32))
    g.output("y", df.ops.gather(table, g.input("at", dtype, (3,)), name="lookup"))
    session = df.Session(df.Model(g.build()), devices=[device])
    with pytest.raises(df.InputError, match=r"gather 'lookup'.*index 4 .*\[?1\]?.*-4"):
        session.run(np.array([0, 4, 1], dtype))
    session.run(np.array([0, -4, 3], dtype))  # the session still works


@pytest.mark.parametrize("device", ["cpu", "numpy"])
def test_a_label_out_of_range_is_named(device):
    g = df.GraphBuilder()
    logits, labels = g.input("logits", df.float32, (3, 5)), g.input("labels", df.int64, (3,))
    g.output("loss", df.ops.softmax_cross_entropy(logits, labels, name="loss"))
    session = df.Session(df.Model(g.build()), devices=[device])
    x = np.zeros((3, 5), np.float32)
    with pytest.raises(df.InputError, match=r"softmax_cross_entropy 'loss'.*label 5 .*2"):
        session.run({"logits": x, "labels": np.array([0, -100, 5])})
    np.testing.assert_allclose(session.run({"logits": x, "labels": np.array([0, -100, 4])})["loss"][1], 0)


def test_results_do_not_depend_on_threads_that_are_free():
    random = np.random.default_rng(0)
    g = df.GraphBuilder()
    x = g.input("x", df.float32, (300, 700))
    w = g.constant(random.standard_normal((700, 300)).astype(np.float32))
    g.output("y", df.ops.reduce_sum(df.ops.matmul(x, w), axes=(0,)))
    session = df.Session(df.Model(g.build()), devices=["cpu"], threads=2)
    data = random.standard_normal((300, 700)).astype(np.float32)
    assert len({session.run(data)["y"].tobytes() for _ in range(20)}) == 1
