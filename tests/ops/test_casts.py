"""Casts between every pair of dtypes: kernels in C against the reference, and both against ml_dtypes where it rounds
as ONNX says."""

import itertools

import ml_dtypes
import numpy as np
import pytest

import dataflow as df
from dataflow.plugin import DTYPES
from dataflow_numpy.cast import cast_array

TYPES = [d for d in DTYPES if d.kind not in "sc"]
POWERS = df.plugin.dtype("float8_e8m0fnu")
SMALL = [d for d in TYPES if d.is_float and d.bits <= 8]
FLOAT8 = [d for d in SMALL if d.bits == 8 and d != POWERS]
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def codes(dtype):
    """Every element of a dtype of at most 8 bits."""
    return np.arange(1 << dtype.bits).astype(np.uint8).view(dtype.numpy)


def grid():
    """Where rounding to small floats changes: their numbers and what lies in the middle of two."""
    found = [np.arange(-40, 40) / 4, 2.0 ** np.arange(-150, 129), 1.5 * 2.0 ** np.arange(-150, 128)]
    for dtype in SMALL:
        numbers = codes(dtype).astype(np.float64)
        numbers = np.unique(numbers[np.isfinite(numbers)])
        found += [numbers, (numbers[1:] + numbers[:-1]) / 2, numbers[-1:] * [[1.05], [1.1], [1.5], [2]]]
    return np.unique(np.concatenate([row.reshape(-1) for row in found]))


def values(dtype):
    """Elements of a dtype, the special ones among them."""
    random = np.random.default_rng(0)
    if dtype.name == "bool":
        return np.array([False, True])
    if dtype.bits <= 8:
        return codes(dtype)
    if dtype.is_int:
        limits = np.iinfo(dtype.numpy)
        drawn = random.integers(limits.min, limits.max, 100, dtype=dtype.numpy, endpoint=True)
        ends = np.array([limits.min, limits.max, 0, 1, 9], dtype.numpy)
        return np.concatenate([drawn, drawn >> dtype.numpy.type(dtype.bits // 2), ends])
    bits = BITS[dtype.bits // 8]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65535.5, -32768.5, 1e30]
    with np.errstate(over="ignore"):
        numbers = np.concatenate([grid(), special]).astype(dtype.numpy).view(bits)
    drawn = np.frombuffer(random.bytes(200 * dtype.bits // 8), bits)
    return np.concatenate([numbers, numbers + bits(1), numbers - bits(1), drawn]).view(dtype.numpy)


VALUES = {dtype: values(dtype) for dtype in TYPES}


def assert_same(found, expected, x):
    """Equal bits, or both NaN."""
    bits = BITS[found.itemsize]
    equal = found.view(bits) == expected.view(bits)
    if df.plugin.dtype(found).is_float:
        equal |= np.isnan(found) & np.isnan(expected)
    wrong = np.flatnonzero(~equal)
    assert not wrong.size, [(x[i], found[i], expected[i]) for i in wrong[:5]]


def reference(x, target, *chosen):
    with np.errstate(all="ignore"):
        return cast_array(x, target, *chosen)


def options(target):
    if target != POWERS:
        yield True, "up"
    if target in FLOAT8:
        yield False, "up"
    if target == POWERS:
        yield from itertools.product((True, False), ("up", "down", "nearest"))


@pytest.mark.parametrize("target", TYPES, ids=str)
def test_kernels_in_c_cast_as_the_reference(target):
    g = df.GraphBuilder("casts")
    wanted = {}
    for source in TYPES:
        x = g.input(source.name, source, VALUES[source].shape)
        for saturate, round_mode in options(target) if source != target else ():
            name = f"{source}_{saturate}_{round_mode}"
            g.output(name, df.ops.cast(x, to=target, saturate=saturate, round_mode=round_mode))
            wanted[name] = source, (saturate, round_mode)
    session = df.Session(g.build(), devices=["cpu"])
    found = session.run({source.name: VALUES[source] for source in TYPES})
    for name, (source, chosen) in wanted.items():
        assert_same(found[name], reference(VALUES[source], target, *chosen), VALUES[source])


@pytest.mark.parametrize("target", FLOAT8, ids=str)
def test_floats_of_8_bits_round_and_saturate_as_onnx_says(target):
    x = VALUES[df.float32]
    limits = ml_dtypes.finfo(target.numpy)
    held = np.clip(x, np.float32(limits.min), np.float32(limits.max))
    with np.errstate(invalid="ignore"):
        assert_same(cast_array(x, target, saturate=False), x.astype(target.numpy), x)
        assert_same(cast_array(x, target), held.astype(target.numpy), x)


@pytest.mark.parametrize("round_mode", ["up", "down", "nearest"])
def test_powers_of_two_are_those_beside_the_number(round_mode):
    x = np.array([0.124, 0.25, 1.1, 1.5, 1.7, 3.0, 6.0, 2.0**-126 * 1.25, 2.0**-127, 1e38], np.float32)
    log = np.log2(x.astype(np.float64))
    expected = {"up": np.ceil(log), "down": np.floor(log), "nearest": np.floor(log) + (x / 2.0 ** np.floor(log) >= 1.5)}
    np.testing.assert_array_equal(cast_array(x, POWERS, True, round_mode).view(np.uint8), expected[round_mode] + 127)


def test_what_has_no_power_of_two_becomes_an_end_or_nan():
    x = np.array([0, 1e-44, np.inf, np.nan, -4], np.float32)
    assert list(cast_array(x, POWERS).view(np.uint8)) == [0, 0, 254, 255, 129]
    assert list(cast_array(x, POWERS, False).view(np.uint8)) == [255, 255, 255, 255, 129]


def test_doubles_are_rounded_once():
    x = np.array([14.500000000000002, 2.6250000000000004, 61439.99999999999])  # float32 has the middle of two numbers
    assert [float(n) for n in cast_array(x, df.plugin.dtype("float8_e4m3fn"))[:2]] == [15, 2.75]
    assert float(cast_array(x, df.plugin.dtype("float8_e5m2"), False)[2]) == 57344


def test_integers_of_4_and_2_bits_keep_the_low_bits():
    x = np.array([-9, 8, 15, 2.7, -2.7, np.nan], np.float32)
    assert cast_array(x, df.plugin.dtype("int4")).astype(int).tolist() == [7, -8, -1, 2, -2, 0]
    assert cast_array(x.astype(np.float64), df.plugin.dtype("uint2")).astype(int).tolist() == [3, 0, 3, 2, 2, 0]


def test_a_round_mode_that_is_none_is_refused():
    g = df.GraphBuilder("g")
    with pytest.raises(df.InputError, match="round_mode='even'; expected one of up, down, nearest"):
        df.ops.cast(g.input("x", df.float32, (2,)), to=POWERS, round_mode="even")


@pytest.mark.parametrize("target", SMALL, ids=str)
def test_gradients_pass_small_floats_in_float32(target):
    g = df.GraphBuilder("g")
    x, w = g.input("x", df.float32, (4,)), g.input("w", target, (2, 2))
    g.output("y", df.ops.mul(df.ops.cast(df.ops.cast(x, to=target), to=df.float32), 3.0))
    g.output("z", df.ops.transpose(w, perm=(1, 0)))
    dy, dz = np.array([1e-6, -1e6, 0.3, -0.3], np.float32), np.array([[1, -2], [3e-9, 4]], np.float32)
    feeds = {"x": np.ones(4, np.float32), "w": np.ones((2, 2), target.numpy)}
    found = df.vjp(df.Model(g.build()), feeds, {"y": dy, "z": dz}, devices=["cpu"])
    np.testing.assert_array_equal(found["x"], dy * np.float32(3))
    np.testing.assert_array_equal(found["w"], dz.T)
