"""Memory that programs use in turn: it grows by more than is needed, so that it grows seldom."""

from types import SimpleNamespace

import pytest

from dataflow.errors import LimitExceeded
from dataflow.execute.scratch import Scratch
from dataflow.ir.kernel import HOST
from dataflow.ir.plan import Arena


class Memory:
    """Gives buffers of at most ``most`` bytes."""

    def __init__(self, most):
        self.most = most

    def allocate_scratch(self, plan, arena):
        if arena.bytes > self.most:
            raise LimitExceeded(f"{arena.bytes} bytes")
        return SimpleNamespace(bytes=arena.bytes)

    def free(self, memory, buffer):
        pass


def reserved(scratch, size):
    """Bytes of the buffer when a plan with so many is to run, and how often it was replaced."""
    scratch.reserve(SimpleNamespace(arenas=[Arena("x", HOST, 8, "input"), Arena("arena", HOST, size, "arena")]))
    return scratch.sizes[HOST], scratch.generation


def test_plans_that_are_a_little_larger_than_each_other_share_a_buffer():
    scratch = Scratch(Memory(1 << 20))
    found = [reserved(scratch, size) for size in (800, 808, 816, 900, 100, 1000)]
    assert found == [(800, 1), (909, 2), (909, 2), (909, 2), (909, 2), (1125, 3)]


def test_where_there_is_not_more_memory_a_buffer_is_as_large_as_is_needed():
    scratch = Scratch(Memory(1000))
    assert [reserved(scratch, size) for size in (800, 900)] == [(800, 1), (900, 2)]
    with pytest.raises(LimitExceeded):
        reserved(scratch, 1001)


def test_with_a_budget_a_buffer_is_as_large_as_is_needed():
    scratch = Scratch(Memory(1 << 20), exact=True)
    assert [reserved(scratch, size) for size in (800, 808, 700)] == [(800, 1), (808, 2), (808, 2)]
