"""Devices that write their kernels as text: with OpenCL, where there is a platform, and a segment as one function."""

import ctypes
import importlib
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path

import numpy as np
import pytest

import dataflow as df
from dataflow.plugin.registry import load
from dataflow.testing import SAMPLES, check_device
from tests.support import recorded, recording

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "examples/devices/generated"
NAMES = ("compiling", "opencl")
OPS = ("conv_grad_input", "copy", "gather", "layer_norm", "max_pool_grad", "reduce_sum", "softmax_cross_entropy")


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """Both packages, built, by name."""
    folder = tmp_path_factory.mktemp("generated")
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    if shutil.which(compiler[0]) is None:
        pytest.skip("needs a C compiler")
    flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra", f"-I{df.get_include()}"]
    for name in NAMES:
        shutil.copytree(PACKAGE / f"dataflow_{name}", folder / f"dataflow_{name}")
        sources = [*(PACKAGE / "source").glob("*.c"), *(PACKAGE / f"dataflow_{name}").glob("*.c")]
        target = folder / f"dataflow_{name}/_native.so"
        command = [*compiler, *flags, f"-I{PACKAGE / 'source'}", *map(str, sources), "-o", str(target)]
        subprocess.run(command, check=True)
    sys.path.insert(0, str(folder))
    yield {name: importlib.import_module(f"dataflow_{name}") for name in NAMES}
    sys.path.remove(str(folder))


@pytest.fixture(params=NAMES)
def device(request, modules):
    """The name of a device that can be used, and a registry with it."""
    registry = load([modules[request.param]])
    if reason := registry.devices[request.param].unavailable:
        pytest.skip(reason)
    return request.param, registry


def test_the_kit_passes(device):
    name, registry = device
    samples = [next(s for s in SAMPLES if s.op.name == op and s.inputs[0].shape not in ((), (0,))) for op in OPS]
    found = [*check_device(name, registry=registry, samples=samples, complete=False, variants=["plain", "mixed"])]
    assert [str(outcome) for outcome in found if outcome.status not in ("passed", "not claimed")] == []
    assert {outcome.op for outcome in found if outcome.status == "passed"} == {*OPS}


@pytest.mark.parametrize("network", ["mlp", "cnn"])
def test_training_gives_the_recorded_losses(device, network):
    name, registry = device
    data = recorded(network)
    options = {"optimizer": df.optim.AdamW(lr=1e-2, no_decay=()), "accumulate": 1}
    with df.Trainer(recording(network), devices=[name], registry=registry, **options) as trainer:
        batches = zip(data["x"][:3].astype(np.float32), data["y"][:3].astype(np.int64), strict=True)
        losses = [trainer.step({"x": x, "labels": y}) for x, y in batches]
        plans = [program.plan for program in trainer.programs.engine.programs.values()]
    assert {segment.device for plan in plans for segment in plan.segments} == {name}
    np.testing.assert_allclose(losses, data["plain/losses"][:3], rtol=1e-5)


def counts(module):
    """Segments that were compiled, functions, results of the segments, those live behind them, and scratch."""
    found = (ctypes.c_int64 * 5)()
    ctypes.CDLL(str(module.library())).compiling_counts(found)
    return np.array(found)


def test_an_encoder_is_one_function_however_many_threads_ask(modules, tmp_path, monkeypatch):
    monkeypatch.setenv("DATAFLOW_COMPILING_SOURCES", str(tmp_path))
    registry, file = load([modules["compiling"]]), str(TESTS / "models/bert.onnx")
    feeds = {"ids": np.arange(18).reshape(2, 9), "mask": np.array([[1] * 9, [1] * 6 + [0] * 3])}
    before = counts(modules["compiling"])
    sessions = [df.Session(df.load(file), ["compiling"], registry=registry) for _ in range(4)]
    found = [None] * 4

    def run(number):
        found[number] = sessions[number].run(feeds)["y"]

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = df.Session(df.load(file), ["cpu"]).run(feeds)["y"]
    for y in found:
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
    plan = sessions[0].plan({name: array.shape for name, array in feeds.items()})
    (segment,) = plan.segments
    compiled, functions, *results = counts(modules["compiling"]) - before
    assert (compiled, functions) == (4, 1)
    values, live, scratch = np.array(results) // 4
    assert (segment.device, len(segment.steps), live) == ("compiling", values, 1)
    (source,) = tmp_path.glob("*/segment.c")
    text = source.read_text().split("int segment(")[1]
    assert (text.count("LIVE("), text.count("SCRATCH(")) == (live, scratch)
    assert scratch < values - live - 10  # the rest are variables of a loop
