"""Scratch memory that several programs use in turn."""

from types import SimpleNamespace

import pytest

from dataflow.execute.scratch import Scratch
from dataflow.ir.plan import Arena


class Devices:
    """Allocates until it fails."""

    fails: BaseException | None = None

    def allocate_scratch(self, plan, arena):
        if self.fails is not None:
            raise self.fails
        return SimpleNamespace(bytes=arena.bytes)

    def free(self, memory, buffer):
        pass


def plan(size):
    return SimpleNamespace(arenas=[Arena("arena", "host", size, "arena")])


def test_a_plan_has_its_buffer_after_another_could_not_get_one():
    """A buffer that was too small is given back first; an interrupt may come before there is a larger one."""
    devices = Devices()
    scratch, small = Scratch(devices), plan(64)
    scratch.reserve(small)
    devices.fails = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        scratch.reserve(plan(4096))
    devices.fails = None
    scratch.reserve(small)
    assert scratch.buffer("host").bytes >= 64
