import dataclasses
import gc
import os
import shlex
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import dataflow as df
from dataflow.plugin.hookspecs import hookimpl
from dataflow.plugin.registry import default_registry, load

FOLDER = Path(__file__).parent / "cdevice"

# Scratch grows with the threads, and so would the bytes that tests of memory count on a machine with many.
os.environ.setdefault("DATAFLOW_NUM_THREADS", "2")

# How long an example takes says what else the machine does.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# What runs in the background of a shell ignores Ctrl-C, and so would everything that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish():
    """Modules and thousands of tests stay to the end: the collector needn't look at them, nor so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


class Plugin:
    """A plugin object around a built library."""

    def __init__(self, path):
        self.path = path

    @hookimpl
    def dataflow_devices(self):
        return [df.CDevice(self.path)]


@pytest.fixture(scope="session")
def remote(tmp_path_factory):
    """A registry with the remote device."""
    return load([Plugin(device_library("remote", tmp_path_factory.mktemp("remote")))])


def device_library(name, folder):
    """The library of a device of tests/cdevice, built into ``folder``."""
    target = folder / f"{name}.so"
    compiler = shlex.split(sysconfig.get_config_var("CC") or "cc")
    flags = [
        "-std=gnu11",
        "-O1",
        "-shared",
        "-fPIC",
        "-pthread",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{df.get_include()}",
    ]
    subprocess.run([*compiler, *flags, str(FOLDER / f"{name}.c"), "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="session")
def refusing():
    """``refusing(third)``: the installed plugins, but a device has no kernel for every third op; all must copy."""

    def make(third, device="cpu", registry=None):
        registry = registry or default_registry()
        offered = sorted(registry.kernels[device].items())
        kept = {op: found for i, (op, found) in enumerate(offered) if i % 3 != third or op == "copy"}
        return dataclasses.replace(registry, kernels={**registry.kernels, device: kept})

    return make


@pytest.fixture(scope="session", autouse=True)
def every_plan_is_checked():
    """Whatever plan a test makes is proved right, or the test fails; those of very large arenas take too long."""
    from dataflow.planning import planner
    from dataflow.planning.verify import check_plan

    make = planner._Planning.run  # below every name by which make_plan is imported

    def checked(planning):
        plan = make(planning)
        if plan.peak_bytes < 200_000_000:  # of a shadow of 2 GB; inputs and results cost next to nothing
            check_plan(plan)
        return plan

    planner._Planning.run = checked
    yield
    planner._Planning.run = make
