from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dataflow.memory import Lifetime, live_peak, plan_memory

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


def test_nested_lifetimes_reach_the_bound() -> None:
    nested = [Lifetime(i, 20 - i, 64 * (i + 1)) for i in range(10)]
    plan = plan_memory(nested)
    assert plan.peak == plan.lower_bound == 64 * 55
