"""The device ``cuda`` for tests: over the stand-in, which runs its sources on the CPU, and on a card where one is.

Tests that take ``cuda`` run on both; those marked ``card`` need a card, and a run without one says how many it left
out.
"""

from __future__ import annotations

import ctypes
import dataclasses
import os
import subprocess
import sys

import pytest

from dataflow.plugin.registry import default_registry, load
from dataflow.testing import SAMPLES
from tests.cuda.building import standin_library

SCRIPT = """
import ctypes, sys
import numpy as np
import dataflow as df
from dataflow.plugin.registry import load
registry = load()
standin = ctypes.CDLL(sys.argv[1])
"""


def pytest_collection_modifyitems(items):
    reason = card_is_missing()
    for item in items:
        if reason and item.get_closest_marker("card"):
            item.add_marker(pytest.mark.skip(reason=f"needs a card: {reason}"))


def pytest_runtest_logreport(report):
    """Says at once what failed, where a machine may be gone before the last test has ended."""
    if report.failed and os.environ.get("DATAFLOW_SAY_FAILURES"):
        print(f"\n{report.nodeid}, {report.when}:\n{report.longreprtext[-2000:]}", file=sys.__stderr__, flush=True)


def card_is_missing():
    """Why the tests of a real card can't run, or an empty text."""
    device = default_registry().devices.get("cuda")
    return "the plugin is not installed" if device is None else device.unavailable or ""


class StandIn:
    """The plugin's sources over the stand-in runtime.

    Attributes:
        path: the library.
    """

    def __init__(self, path):
        self.path = path
        self._library = ctypes.CDLL(str(path))
        names = (
            "launches",
            "graph_launches",
            "overtakings",
            "allocated",
            "contexts",
            "peers",
            "handles",
            "questions",
            "watched",
        )
        for name in (f"standin_{name}" for name in names):
            getattr(self._library, name).restype = ctypes.c_longlong

    def fail(self, what, name="", skip=0):
        """Lets the next launch, kernel, allocation, ... fail, after ``skip`` that succeed; "" undoes all."""
        kinds = ("", "launch", "kernel", "allocation", "begin", "end", "instantiate", "conditional")
        self._library.standin_fail(kinds.index(what), name.encode(), skip)

    def refuse(self, *precisions):
        """The vendor's libraries have no algorithms of these precisions; none: they have all."""
        for precision in precisions or ("",):
            self._library.standin_refuse(precision.encode())

    @property
    def handles(self):
        """Handles of the vendor's libraries that nobody destroyed."""
        return self._library.standin_handles()

    def questions(self, card):
        """How often somebody asked the vendor's libraries for an algorithm on ``card``."""
        return self._library.standin_questions(card)

    def watch(self, array):
        """Counts from now on, in ``watched``, the copies of a card that read or write the array where it lies."""
        self._library.standin_watch(ctypes.c_void_p(array.ctypes.data))

    @property
    def watched(self):
        return self._library.standin_watched()

    def was_launched(self, kernel):
        return bool(self._library.standin_was_launched(kernel.encode()))

    def reverse(self, on):
        """Lets the threads of a block begin with the last one: finds barriers that are missing."""
        self._library.standin_reverse(int(on))

    @property
    def launches(self):
        return self._library.standin_launches()

    @property
    def graph_launches(self):
        return self._library.standin_graph_launches()

    @property
    def overtakings(self):
        """How often a node of a graph began before one that was captured earlier, and that it doesn't wait for."""
        return self._library.standin_overtakings()

    def allocated(self, card=0):
        return self._library.standin_allocated(card)

    def choose(self, card):
        """Makes ``card`` the calling thread's, as another library may; one that doesn't exist leaves an error."""
        self._library.standin_choose(card)

    @property
    def chosen(self):
        """The calling thread's card."""
        return self._library.standin_chosen()

    @property
    def contexts(self):
        """Cards that somebody worked with, as bits."""
        return self._library.standin_contexts()

    def peers(self, card):
        """Cards whose memory ``card`` may touch, as bits."""
        return self._library.standin_peers(card)


@pytest.fixture(scope="session")
def standin():
    """The library, built like the plugin, but by the C++ compiler; two cards of 4 GiB."""
    return StandIn(standin_library())


@pytest.fixture(scope="session")
def standin_registry(standin):
    """The installed plugins, ``cuda`` and ``cuda:1`` over the stand-in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DATAFLOW_CUDA_LIBRARY", str(standin.path))
        patch.setenv("STANDIN_DEVICES", "2")
        for variable in ("DATAFLOW_CUBLASLT", "DATAFLOW_CUDNN"):  # real ones can't work on the stand-in's memory
            patch.setenv(variable, "")
        registry = load()
        (node,) = next(s for s in SAMPLES if s.op.name == "conv").build().nodes
        for kernel in registry.kernels["cuda"]["conv"]:  # which look for the libraries when they are first asked
            kernel.refuses(node)
        return registry


@pytest.fixture
def alone(standin):
    """``alone(text, NAME=value)``: the words that a script prints in a process of its own, over the stand-in.

    It has ``df``, ``np``, ``registry`` and ``standin``, the functions of the stand-in's library.
    """

    def run(text, **environment):
        given = {"DATAFLOW_CUDA_LIBRARY": str(standin.path), "DATAFLOW_CUBLASLT": "", "DATAFLOW_CUDNN": ""}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT + text, str(standin.path)],
            env={**os.environ, **given, **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    return run


@pytest.fixture(params=["standin", pytest.param("card", marks=pytest.mark.card)])
def cuda(request):
    """A registry with the device ``cuda``: over the stand-in, and on a card."""
    return default_registry() if request.param == "card" else request.getfixturevalue("standin_registry")


@pytest.fixture
def without_capture():
    """``without_capture(registry)``: the same with segments launched kernel by kernel."""

    def make(registry):
        device = registry.devices["cuda"]

        class Plain:
            def __getattr__(self, name):
                return getattr(device, name)

            def open(self, options, precision="float32"):
                return device.open({**options, "capture": 0}, precision)

        return dataclasses.replace(registry, devices={**registry.devices, "cuda": Plain()})

    return make
