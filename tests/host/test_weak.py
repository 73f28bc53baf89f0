"""Lists of weak references."""

import gc

import pytest

from dataflow.host.weak import WeakList

MOST = 64  # references that a list holds before it looks for dead ones


class Object:
    """Something that can be referred to weakly."""


class InCycle:
    """Garbage that only the collector finds, and that adds to a list when it goes."""

    def __init__(self, refers, item):
        self.itself, self.refers, self.item = self, refers, item

    def __del__(self):
        self.refers.add(self.item)


@pytest.fixture
def thresholds():
    """Of the collector, as they were."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def test_a_list_may_grow_while_it_looks_for_dead_references(thresholds):
    """The collector may run at any allocation, and others may add to the list then, by finalizers or other threads."""
    gc.freeze()  # or each of many collections would look through all that tests have left
    pairs = [(number, str(number)) for number in range(5000)]  # none are left that a new pair could lie in
    for allocations in range(1, MOST):
        refers, items = WeakList(), [Object() for _ in range(MOST + 1)]
        for item in items[:MOST]:
            refers.add(item)
        gc.collect()
        pairs += [(number, allocations) for number in range(3000)]
        InCycle(refers, items[0])
        gc.set_threshold(gc.get_count()[0] + allocations, 1000, 1000)
        refers.add(items[MOST])
        gc.collect()
        assert refers.alive() in ([*items, items[0]], [*items[:MOST], items[0], items[MOST]])
