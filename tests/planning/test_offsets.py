from __future__ import annotations

import csv
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dataflow as df
from dataflow.ir.plan import Lifetime
from dataflow.planning.offsets import plan_memory


def live_peak(lifetimes: list[Lifetime]) -> int:
    """The largest sum of aligned sizes alive at one time, by looking at every time."""
    times = {t for life in lifetimes for t in (life.start, life.stop)}
    sizes = [-(-life.bytes // life.alignment) * life.alignment for life in lifetimes]
    alive = [sum(n for life, n in zip(lifetimes, sizes, strict=True) if life.start <= t < life.stop) for t in times]
    return max(alive, default=0)


LIFETIMES = st.lists(
    st.builds(lambda a, n, b: Lifetime(a, a + n, b), st.integers(0, 30), st.integers(1, 12), st.integers(0, 1000)),
    max_size=40,
)


@given(LIFETIMES)
def test_live_buffers_never_share_bytes(lifetimes: list[Lifetime]) -> None:
    plan = plan_memory(lifetimes)
    for i, a in enumerate(lifetimes):
        assert plan.offsets[i] % a.alignment == 0
        assert plan.offsets[i] + a.bytes <= plan.peak or not a.bytes
        for j, b in enumerate(lifetimes[:i]):
            if a.bytes and b.bytes and a.start < b.stop and b.start < a.stop:
                x, y = plan.offsets[i], plan.offsets[j]
                assert x + a.bytes <= y or y + b.bytes <= x
    assert plan.peak >= plan.lower_bound == live_peak(lifetimes)


@pytest.mark.parametrize(
    ("life", "text"),
    [
        (Lifetime(3, 2, 64), "stops before it starts"),
        (Lifetime(0, 1, -1), "negative size"),
        (Lifetime(0, 1, 8, 48), "power of two"),
        (Lifetime(0, 1, 1 << 62), "63 bits"),
    ],
)
def test_what_can_not_be_is_refused(life: Lifetime, text: str) -> None:
    with pytest.raises(df.InputError, match=text):
        plan_memory([Lifetime(0, 1, 8), life])


def test_the_same_lifetimes_give_the_same_offsets() -> None:
    random = np.random.default_rng(1)
    lives = [Lifetime(int(a), int(a + n), int(b)) for a, n, b in random.integers(1, 90, (60, 3))]
    assert len({plan_memory(lives).offsets for _ in range(3)}) == 1


def test_many_lifetimes_come_near_the_bound() -> None:
    random = np.random.default_rng(2)
    begins = random.integers(0, 100_000, 100_000)
    lengths, sizes = random.integers(1, 200, 100_000), random.integers(1, 1 << 20, 100_000)
    lives = [Lifetime(int(a), int(a + n), int(b)) for a, n, b in zip(begins, lengths, sizes, strict=True)]
    plan = plan_memory(lives)
    assert plan.peak < 1.15 * plan.lower_bound


def test_nested_lifetimes_reach_the_bound() -> None:
    nested = [Lifetime(i, 20 - i, 64 * (i + 1)) for i in range(10)]
    plan = plan_memory(nested)
    assert plan.peak == plan.lower_bound == 64 * 55


def least_peak(lifetimes: list[Lifetime]) -> int:
    """By first fit in every order, one of which is that of the offsets in a packing pushed down as far as it goes."""
    best = 1 << 62
    for order in itertools.permutations(lifetimes):
        done: list[tuple[Lifetime, int]] = []
        for life in order:
            others = sorted((o, p.bytes) for p, o in done if p.start < life.stop and life.start < p.stop)
            offset = 0
            for at, size in others:
                if at - offset >= life.bytes:
                    break
                offset = max(offset, at + size)
            done.append((life, offset))
        best = min(best, max(offset + life.bytes for life, offset in done))
    return best


@settings(max_examples=60)
@given(
    st.lists(
        st.builds(lambda a, n, b: Lifetime(a, a + n, b, 1), st.integers(0, 5), st.integers(1, 4), st.integers(1, 9)),
        min_size=1,
        max_size=6,
    )
)
def test_few_lifetimes_get_the_least_peak_there_is(lifetimes: list[Lifetime]) -> None:
    assert plan_memory(lifetimes).peak == least_peak(lifetimes)


@pytest.mark.parametrize("name", ["B", "C", "G", "H"])
def test_challenging_instances_reach_the_bound(name: str) -> None:
    """Those of MiniMalloc that the effort of a plan is enough for."""
    with (Path(__file__).parent / f"minimalloc/{name}.1048576.csv").open() as file:
        rows = list(csv.DictReader(file))
    lives = [Lifetime(int(r["lower"]), int(r["upper"]), int(r["size"]), 1) for r in rows]
    plan = plan_memory(lives)
    assert plan.peak == plan.lower_bound <= 1048576
    for (i, a), (j, b) in itertools.combinations(enumerate(lives), 2):
        if a.start < b.stop and b.start < a.stop:
            x, y = plan.offsets[i], plan.offsets[j]
            assert x + a.bytes <= y or y + b.bytes <= x
