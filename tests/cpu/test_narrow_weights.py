"""Products of bytes by weights of which two products fit 16 bits, as shorter instructions take them, and by others."""

import numpy as np
import pytest

import dataflow as df
from tests.support import again_on

LIMITS = 127, 128, 129, 254  # of two weights that meet the same step: 128 * 255 fits 16 bits
STEP = 256.0  # of results; a power of two, so that sums are rounded once


def weights(random, shape, most):
    """Those beside each other along any axis have magnitudes that add up to ``most``."""
    odd = np.indices(shape).sum(axis=0) % 2
    return (np.where(odd, most // 2, most - most // 2) * random.choice([-1, 1], shape)).astype(np.int8)


def few_large(random, shape, filters):
    """Of one sign along all but the axis ``filters``; four products fit 16 bits with most, and not with some.

    128 * 255 fits, so that four of 32 do, and 33 by three of 32 is one too many.
    """
    sizes = random.choice([0, 1, 32], shape)
    rare = random.random(shape) < 0.02
    sizes = np.where(rare, random.choice([33, 40, 63], shape), sizes)
    signs = np.expand_dims(random.choice([-1, 1], shape[filters]), [i for i in range(len(shape)) if i != filters])
    return (sizes * signs).astype(np.int8)


def inputs(random, shape):
    """Bytes, most of them the largest."""
    return random.choice(np.array([0, 1, 254, 255, 255, 255], np.uint8), shape)


def result(build, x, w):
    """What the device cpu makes of ``build(x, w)`` with constant weights, on one thread and on two; they agree."""
    g = df.GraphBuilder()
    g.output("y", build(g.input("x", df.uint8, x.shape), g.initializer("w", w)))
    model = df.Model(g.build())
    one, two = (df.Session(model, devices=["cpu"], threads=count).run(x)["y"] for count in (1, 2))
    np.testing.assert_array_equal(one, two)
    return one


def windows(x, w, groups):
    """The convolution of 3x3 with a padding of one, as integers: (N, C, H, W) by (F, C / groups, 3, 3)."""
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    pairs = zip(np.split(seen, groups, axis=1), np.split(w.astype(np.int64), groups), strict=True)
    return np.concatenate([np.einsum("nchwab,fcab->nfhw", *pair) for pair in pairs], axis=1)


@pytest.mark.parametrize("most", LIMITS)
@pytest.mark.parametrize(("k", "columns"), [(4, 1), (37, 7), (64, 16), (301, 23)])
def test_matrices(most, k, columns):
    random = np.random.default_rng(k)
    w = weights(random, (k, columns), most)
    largest = np.where(w > 0, 255, 0).astype(np.uint8).T  # a row for each column, of which no product takes away
    for x in (inputs(random, (9, k)), largest):
        found = result(df.ops.matmul_integer, x, w)
        np.testing.assert_array_equal(found, x.astype(np.int64) @ w.astype(np.int64))


@pytest.mark.parametrize(("k", "columns"), [(4, 1), (8, 16), (37, 7), (64, 40), (301, 23), (512, 49)])
def test_matrices_of_few_large_weights(k, columns):
    """Products of four weights are added in 16 bits where they fit."""
    random = np.random.default_rng(k)
    for w in (
        few_large(random, (k, columns), 1),
        np.full((k, columns), 32, np.int8),
        np.full((k, columns), 33, np.int8),
    ):
        for x in (np.full((7, k), 255, np.uint8), inputs(random, (40, k))):
            found = result(df.ops.matmul_integer, x, w)
            np.testing.assert_array_equal(found, x.astype(np.int64) @ w.astype(np.int64))


@pytest.mark.parametrize(("channels", "filters", "groups"), [(3, 5, 1), (16, 32, 1), (8, 4, 2), (24, 20, 1)])
def test_convolutions_of_few_large_weights(channels, filters, groups):
    random = np.random.default_rng(channels)
    w = few_large(random, (filters, channels // groups, 3, 3), 0)
    convolve(np.full((2, channels, 5, 9), 255, np.uint8), w, groups)
    convolve(inputs(random, (2, channels, 5, 9)), w, groups)


@pytest.mark.parametrize("most", LIMITS)
@pytest.mark.parametrize(("channels", "filters", "groups"), [(3, 5, 1), (16, 32, 1), (8, 4, 2), (35, 35, 35)])
def test_convolutions(most, channels, filters, groups):
    random = np.random.default_rng(channels)
    w = weights(random, (filters, channels // groups, 3, 3), most)
    convolve(inputs(random, (2, channels, 5, 9)), w, groups)


def convolve(x, w, groups):
    """Compares sums, and steps of both layouts, with those of integers."""
    how = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": groups}
    exact = windows(x, w, groups)
    np.testing.assert_array_equal(result(lambda x, w: df.ops.conv_integer(x, w, **how), x, w), exact)

    def requantized(last):
        def build(x, w):
            one, zero, middle = np.float32(1), np.uint8(0), np.uint8(128)
            return df.ops.conv_requantized(
                x, one, zero, w, one, np.int8(0), np.float32(STEP), middle, channels_last=last, **how
            )

        return build

    steps = np.clip(np.rint(exact / STEP) + 128, 0, 255)
    np.testing.assert_array_equal(result(requantized(False), x, w), steps)
    last = result(requantized(True), np.ascontiguousarray(x.transpose(0, 2, 3, 1)), w)
    np.testing.assert_array_equal(last.transpose(0, 3, 1, 2), steps)


@pytest.mark.parametrize("isa", ["avx512_base", "avx2_base", "portable"])
def test_other_instruction_sets(isa):
    again_on(isa, __file__, but="other_instruction_sets")
