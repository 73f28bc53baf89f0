"""Programs that are kept: how many of each kind, which go first, and what nobody reads any more."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataflow.execute.program_cache import ProgramCache


class Stub:
    """Stands for a program that reads some tensors."""

    def __init__(self, *reads):
        self.plan = SimpleNamespace(stored=dict.fromkeys(reads), prepacks={})
        self.closed = False

    def close(self):
        self.closed = True


def cache_with(alive, asked):
    """A cache that notes what it lets go; ``kept`` is of others too."""

    def drop(read):
        alive.intersection_update({*read, "kept"})

    return ProgramCache(lambda names: asked.append(set(names)) or not {"kept"}.issuperset(names), drop)


def test_the_least_recently_used_of_a_kind_goes_first():
    alive, asked = {"shared", "own1", "own2", "own3", "kept"}, []
    cache = cache_with(alive, asked)
    first, second = (cache.program(("a",), n, lambda n=n: Stub("shared", f"own{n}", "kept"), 2) for n in (1, 2))
    other = cache.program(("b",), 1, lambda: Stub("shared"), 2)
    assert cache.find(("a",), 1) is first
    third = cache.program(("a",), 3, lambda: Stub("own3"), 2)
    assert cache.find(("a",), 2) is None
    assert alive == {"shared", "own1", "own3", "kept"}
    assert asked == [{"shared", "own2", "kept"}]
    assert cache.recent is third
    assert list(cache.programs.values()) == [first, third, other]
    assert cache.program(("a",), 1, lambda: Stub("never"), 2) is first
    cache.clear()
    assert first.closed
    assert not second.closed  # it was dropped while it may have been running
    assert cache.recent is None
    cache.program(("a",), 4, lambda: Stub("own1"), 1)
    cache.program(("a",), 5, lambda: Stub(), 1)
    assert alive == {"kept"}


def test_of_a_kind_of_which_none_is_kept_nothing_is():
    alive = {"w"}
    cache = cache_with(alive, [])
    assert isinstance(cache.program(("a",), 1, lambda: Stub("w"), 0), Stub)
    assert not alive
    assert (dict(cache.programs), cache.recent) == ({}, None)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), max_size=40), st.integers(0, 3))
def test_what_is_read_is_never_let_go(uses, most):
    """Beside a model of it: a list per kind."""
    alive = set()
    cache = cache_with(alive, [])
    kept = {"a": [], "b": []}
    for kind, number in uses:
        names = (f"{kind}{number}", f"t{number % 3}", "all")

        def make(names=names):
            alive.update(names)
            return Stub(*names)

        cache.program((kind,), number, make, most)
        recent = [*(n for n in kept[kind] if n != number), number]
        kept[kind] = recent[max(0, len(recent) - most) :] if most else []
        wanted = {name for k, numbers in kept.items() for n in numbers for name in (f"{k}{n}", f"t{n % 3}", "all")}
        assert {(key[0][0], key[1]) for key in cache.programs} == {(k, n) for k, ns in kept.items() for n in ns}
        assert alive == wanted


def test_an_interrupt_while_programs_go_forgets_nothing():
    alive, asked = {"own1", "own2", "own3"}, []
    cache = cache_with(alive, asked)
    for n in (1, 2):
        cache.program(("a",), n, lambda n=n: Stub(f"own{n}"), 1 if n == 1 else 2)
    original = cache._may_drop

    def interrupted(names):
        raise KeyboardInterrupt

    cache._may_drop = interrupted
    with pytest.raises(KeyboardInterrupt):
        cache.program(("a",), 3, lambda: Stub("own3"), 2)
    cache._may_drop = original
    assert cache.find(("a",), 3) is not None
    cache.program(("a",), 4, lambda: Stub(), 2)
    assert alive == {"own3"}
