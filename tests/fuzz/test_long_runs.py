"""The short form of the long runs, and that they notice what grows."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import dataflow as df

from . import long_runs

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.parametrize(("kind", "count"), [("runs", 1000), ("sessions", 80), ("steps", 400), ("errors", 140)])
def test_nothing_grows(kind, count):
    """In a process of its own: what other tests left in this one grows and shrinks."""
    code = (
        "from tests.fuzz import long_runs\n"
        f"report, flat = long_runs.campaign({{{kind!r}: {count}}})\n"
        "assert flat, report\n"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("name", ["resident", "tensors", "descriptors", "threads"])
def test_what_grows_is_noticed(name):
    level = long_runs.Held(50 << 20, 1000, 6, 2)
    step = 1 << 20 if name == "resident" else 1
    grown = [replace(level, **{name: getattr(level, name) + step * n}) for n in range(long_runs.ROUNDS)]
    assert [line.partition(":")[0] for line in long_runs.growth(grown)] == [name]
    assert not long_runs.growth(grown[: long_runs.WARM] + [grown[long_runs.WARM]] * (long_runs.ROUNDS - long_runs.WARM))


def test_every_kind_of_thing_is_read():
    before, wait = long_runs.held(), threading.Event()
    thread = threading.Thread(target=wait.wait)
    thread.start()
    array = df.empty((1000,), df.uint8)
    with Path(__file__).open():
        after = long_runs.held()
    wait.set()
    thread.join()
    del array
    assert (after.tensors, after.descriptors) == (before.tensors + 1000, before.descriptors + 1)
    assert after.threads > before.threads
