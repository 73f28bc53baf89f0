"""The short form of the long runs, and that they notice what grows."""

import sys

import pytest

from . import long_runs

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


@pytest.mark.parametrize(("kind", "count"), [("runs", 1000), ("sessions", 80), ("steps", 400), ("errors", 140)])
def test_nothing_grows(kind, count):
    report, flat = long_runs.campaign({kind: count})
    assert flat, report


def test_what_grows_is_noticed():
    kept = []
    readings, grew = long_runs.repeat(lambda call: kept.append(bytearray(b"x" * (1 << 20))), long_runs.ROUNDS)
    assert len(readings) == long_runs.ROUNDS
    assert [line.partition(":")[0] for line in grew] == ["resident"]
