"""Tangent, functions that give angles and remainders of float32, on every instruction set: against float64 and C."""

from __future__ import annotations

import pytest

from tests.support import left_to_nightly, python_on

COMPARED = """
import numpy as np
import dataflow as df

bits = np.linspace(0x00000000, 0x7F800000, 400_003).astype(np.uint32)  # from 0 to infinity
x = np.concatenate([bits.view(np.float32), (bits | 0x80000000).view(np.float32)])
x = np.concatenate([x, np.linspace(-1, 1, 300_001).astype(np.float32), np.linspace(-9, 9, 200_001).astype(np.float32)])
quarters = (np.arange(-2000, 2001) * (np.pi / 4)).astype(np.float32)  # poles and zeros, and floats beside them
x = np.concatenate([x, quarters, np.nextafter(quarters, np.float32(9e9)), np.nextafter(quarters, np.float32(-9e9))])
odd = np.array([0x7FC00000, 0x7F800001, 0xFFC00155, 0, 0x80000000, 1, 0x80000001, 0x7F7FFFFF], np.uint32)
x = np.concatenate([x, odd.view(np.float32), [np.float32(1), np.float32(-1), np.float32(1e6), np.float32(999999.9)]])
x = x.astype(np.float32)


def run(op, *arrays, **attributes):
    g = df.GraphBuilder()
    inputs = [g.input(f"x{n}", df.float32, a.shape) for n, a in enumerate(arrays)]
    g.output("y", op(*inputs, **attributes))
    feeds = {f"x{n}": a for n, a in enumerate(arrays)}
    return df.Session(df.Model(g.build()), ["cpu"], threads=1).run(feeds)["y"]


def off(y, exact):
    # in units of the last place, those of denormals included; NaN and infinity where they belong, and signs of zeros
    small = exact.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(exact))
    np.testing.assert_array_equal(np.signbit(y)[y == 0], np.signbit(small)[y == 0])
    known = np.isfinite(exact)
    return np.max(np.abs(y[known] - exact[known]) / np.maximum(np.spacing(np.abs(small[known])), 2.0**-149))


wide = x.astype(np.float64)
with np.errstate(all="ignore"):
    for name, exact, most in (
        ("tan", np.tan(wide), 3), ("atan", np.arctan(wide), 2),
        ("asin", np.arcsin(wide), 2), ("acos", np.arccos(wide), 2),
    ):
        found = off(run(getattr(df.ops, name), x), exact)
        assert found < most, (name, found)
        for n in (0, 1, 7, 511, 513):
            np.testing.assert_array_equal(run(getattr(df.ops, name), x[-n:] if n else x[:0]),
                run(getattr(df.ops, name), x)[-n:] if n else x[:0])

    # any two floats; near ones; multiples, beside which the quotient must not be rounded up; large quotients
    random = np.random.default_rng(5)
    a = random.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    b = random.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    near = (random.normal(size=200_000)).astype(np.float32)
    small = (random.normal(size=200_000) * 10.0 ** random.uniform(-9, 0, 200_000)).astype(np.float32)
    multiple = (small * random.integers(1, 2**24, 200_000)).astype(np.float32)
    special = np.array([0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3e38, 1e-38, 5, 0.1], np.float32)
    one, other = (v.ravel().copy() for v in np.meshgrid(special, special))
    pairs = [(a, b), (near, small), (multiple, small), (np.nextafter(multiple, np.float32(0)), small), (one, other)]
    for left, right in pairs:
        found, exact = run(df.ops.mod, left, right, fmod=1), np.fmod(left, right)
        np.testing.assert_array_equal(found, exact)
        np.testing.assert_array_equal(np.signbit(found)[found == 0], np.signbit(exact)[found == 0])
        rest = exact.astype(np.float64)  # with the sign of the divisor
        moved = np.where((rest < 0) != (right < 0), rest + right, rest)
        moved = np.where(rest == 0, np.copysign(0.0, right), moved)
        exact = np.where(right == 0, rest, moved).astype(np.float32)
        found = run(df.ops.mod, left, right)
        np.testing.assert_array_equal(found, exact)
        np.testing.assert_array_equal(np.signbit(found)[found == 0], np.signbit(exact)[found == 0])
    for n in (0, 1, 5, 512, 1300):
        np.testing.assert_array_equal(run(df.ops.mod, near[:n], small[:1], fmod=1), np.fmod(near[:n], small[:1]))
        np.testing.assert_array_equal(run(df.ops.mod, near[:1], small[:n], fmod=1), np.fmod(near[:1], small[:n]))
"""


@pytest.mark.parametrize("isa", ["avx512", "avx2", "portable"])
def test_angles_and_remainders(isa):
    left_to_nightly(isa)
    python_on(isa, "-c", COMPARED)
