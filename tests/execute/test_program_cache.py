"""Programs that are kept: how many of each kind, which go first, and what nobody reads any more."""

from types import SimpleNamespace

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


def test_the_least_recently_used_of_a_kind_goes_first():
    unread = []
    cache = ProgramCache(lambda idle, read: unread.append((set(idle), set(read))))
    first, second = (cache.program(("a",), n, lambda n=n: Stub("shared", f"own{n}"), 2) for n in (1, 2))
    other = cache.program(("b",), 1, lambda: Stub("shared"), 2)
    assert cache.find(("a",), 1) is first
    third = cache.program(("a",), 3, lambda: Stub("own3"), 2)
    assert cache.find(("a",), 2) is None
    assert unread == [({"own2"}, {"shared", "own1", "own3"})]
    assert cache.recent is third
    assert list(cache.programs.values()) == [other, first, third]
    assert cache.program(("a",), 1, lambda: Stub("never"), 2) is first
    cache.clear()
    assert first.closed
    assert not second.closed  # it was dropped while it may have been running
    assert cache.recent is None
    cache.program(("a",), 4, lambda: Stub("own1"), 1)
    cache.program(("a",), 5, lambda: Stub(), 1)
    assert unread[1] == ({"shared", "own3", "own1"}, set())


def test_of_a_kind_of_which_none_is_kept_nothing_is():
    dropped = []
    cache = ProgramCache(lambda idle, read: dropped.append(set(idle)))
    assert isinstance(cache.program(("a",), 1, lambda: Stub("w"), 0), Stub)
    assert dropped == [{"w"}]
    assert (dict(cache.programs), cache.recent) == ({}, None)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5)), max_size=40), st.integers(0, 3))
def test_what_is_read_is_never_called_unread(uses, most):
    """Beside a model of it: a list per kind."""
    alive = set()
    cache = ProgramCache(lambda idle, read: alive.difference_update(idle))
    kept = {"a": [], "b": []}
    for kind, number in uses:
        names = (f"{kind}{number}", f"t{number % 3}", "all")

        def make(names=names):
            alive.update(names)
            return Stub(*names)

        cache.program((kind,), number, make, most)
        kept[kind] = ([n for n in kept[kind] if n != number] + [number])[max(0, len({*kept[kind], number}) - most) :]
        if not most:
            kept[kind] = []
        wanted = {name for k, numbers in kept.items() for n in numbers for name in (f"{k}{n}", f"t{n % 3}", "all")}
        assert {(key[0][0], key[1]) for key in cache.programs} == {(k, n) for k, ns in kept.items() for n in ns}
        assert alive == wanted
